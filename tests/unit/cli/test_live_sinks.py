"""Whether a sink lives is seen by more than the age of its checkpoints (H4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from changing import age, seed_with_orphans
from command_line import run, told
from life_cycle import assert_exactly_once, batch, long_sink

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.fault("H4")
@pytest.mark.parametrize("verb", [("recover",), ("clean",), ("savepoint", "create")], ids=" ".join)
def test_a_part_that_is_held_proves_a_job(tmp_path: Path, verb: tuple[str, ...]) -> None:
    """However old the newest checkpoint is, a sink in plain Python that is writing is not fenced without --fence."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    words = (*verb, base, "--apply", *(("--to", tmp_path / "savepoints") if verb[0] == "savepoint" else ()))
    out = long_sink(base).local().open()
    out.write(batch(4, 4), position=8)
    out.checkpoint()
    out.write(batch(8, 2), position=10)
    age(base)
    refused = run(*words)
    assert refused.exit_code == 1
    assert "a task is writing its part 'bucket=b" in refused.stderr
    assert "--fence" in refused.stderr
    out.checkpoint()
    out.close()
    age(base)
    told(*words)
    told("recover", base, "--apply")
    assert_exactly_once(base, 10)
