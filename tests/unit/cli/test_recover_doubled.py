"""Which rows come twice if a sink goes back is found out again before that is done (H5)."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from changing import planned_recovery, recover_planned
from life_cycle import batch, everything, finished_files, long_sink

from partfile.errors import RecoveryRefused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.fault("H5")
@pytest.mark.parametrize("is_damaged", [False, True], ids=["readable", "damaged"])
def test_what_would_come_twice_is_looked_for_again(tmp_path: Path, is_damaged: bool) -> None:
    """A finished file that came after the plan makes it another one, which is refused; nothing is changed."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.finish()
    if is_damaged:
        newest = max(base.rglob("_metadata"), key=lambda path: int(path.parent.name[4:]))
        newest.write_bytes(newest.read_bytes()[:-9])
    chosen = str(base / "_partfile" / "life" / "chk-2")
    plan = planned_recovery(base, restore_from=chosen, accept_newer=True)
    doubled = plan.jobs[0].doubled
    later = base / doubled[0].replace("-0-0.", "-0-99.").replace("-0-1.", "-0-99.")
    shutil.copy(base / doubled[0], later)
    before = everything(base)
    with pytest.raises(RecoveryRefused):
        recover_planned(plan, base)
    assert everything(base) == before
    again = planned_recovery(base, restore_from=chosen, accept_newer=True)
    assert set(again.jobs[0].doubled) == {*doubled, str(later.relative_to(base))}
    recover_planned(again, base)
    assert str(later.relative_to(base)) in finished_files(base)
