"""``recover --adopt-layout`` while somebody else changes the tree: each file is looked at once more before its turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from changing import quarantined
from flink_trees import killed_job

from partfile.recovery.adopt.apply import adopt, plan_adoption
from partfile.recovery.adopt.plan import AdoptionOptions
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 4_000_000_000_000


@pytest.mark.fault("H8")
@pytest.mark.parametrize("late", ["d=1/_part-1-0.pending", "d=2/_part-0-2.pending", "d=2/_part-0-3.in-progress"])
def test_a_file_that_grows_while_others_are_done_is_left(tmp_path: Path, late: str) -> None:
    """It is not what was planned, so not a byte of it changes; the others are done, and the report names it."""
    killed_job(tmp_path)
    options = AdoptionOptions(layout="flink", publish_pending=True, quarantine_in_progress=True)
    grown = (tmp_path / late).read_bytes() + b"late rows"

    def grow(_items: int) -> None:
        (tmp_path / late).write_bytes(grown)

    with LocalStore(str(tmp_path)) as store:
        plan = plan_adoption(store, str(tmp_path), options, lambda _files: None)
        others = [item.path for item in plan.to_do][1:]
        assert late in others
        done = adopt(plan, store, str(tmp_path), NOW_MS, grow)
    assert [one.path for one in done.failed] == [late]
    assert (tmp_path / late).read_bytes() == grown
    assert done.published + done.cut + len(quarantined(tmp_path)) > 2
