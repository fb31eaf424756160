"""SIGKILL before each call of a start that restores on demand: the next start ends what it began."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.life_cycle import batch, continue_to, finished_files, in_child, long_sink, rows_of
from support.recovery import go_back

if TYPE_CHECKING:
    from collections.abc import Callable


FEW = 6
"""Kills in every run; with ``--long`` one at each call."""
ROWS = {f"row-{number:04d}": 1 for number in range(9)}


def seed(root: Path, *, is_published: bool) -> None:
    """A checkpoint with open parts, ``chosen``, that the sink went on from; and a savepoint of another sink."""
    out = long_sink(root / "out", retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    other = long_sink(root / "other").local().open()
    other.write(batch(0, 4), position=4)
    Path(other.stop_with_savepoint(root / "savepoints")).rename(root / "savepoint")


@pytest.mark.item("SP-14", "DL-10")
@pytest.mark.parametrize(
    "case",
    [
        "savepoint",
        "rollback",
        "rollback over published parts",
        "rollback over a damaged checkpoint",
        "rollback over a damaged checkpoint and published parts",
    ],
)
@pytest.mark.fault("K16", "M8")
def test_a_kill_at_any_call_of_a_restore(tmp_path: Path, case: str, chosen: Callable[[int, int], list[int]]) -> None:
    """Done again it begins where the user said, once; no row is lost, and only accepted ones come twice."""
    seed(tmp_path / "seed", is_published="published" in case)
    if "damaged" in case:
        metadata_files = (tmp_path / "seed" / "out" / "_partfile" / "life").glob("chk-*/_metadata")
        newest = max(metadata_files, key=lambda path: int(path.parent.name[4:]))
        newest.write_bytes(newest.read_bytes()[:-9])
    restored = "fresh" if case == "savepoint" else "out"

    def restore(root: Path, interceptor: object = None) -> int:
        origin = root / "savepoint" if case == "savepoint" else root / "out" / "_partfile" / "life" / "chk-2"
        if case != "savepoint":
            go_back(root / "out", origin, interceptor)
        return continue_to(long_sink(root / restored, restore_from=origin, interceptor=interceptor), 9)

    def killed(root: Path, kill: KillAt) -> None:
        restore(root, kill)

    recorder = Recorder(CHANGING_CALLS)
    assert restore(Path(shutil.copytree(tmp_path / "seed", tmp_path / "counted")), recorder) == 4
    for number in chosen(len(recorder.calls), FEW):
        root = Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))
        kill = KillAt(number, only=CHANGING_CALLS)
        assert in_child(partial(killed, root, kill)) == -signal.SIGKILL
        before = finished_files(root / restored)
        restore(root)
        after = finished_files(root / restored)
        assert before.items() <= after.items(), f"call {number}: {recorder.names[number - 1]}"
        rows = rows_of(after) + (rows_of(finished_files(root / "other")) if case == "savepoint" else rows_of({}))
        doubled = {f"row-{row:04d}" for row in range(4, 7)} if "published" in case else set()
        assert rows == {row: 2 if row in doubled else 1 for row in ROWS}, f"call {number}"
        shutil.rmtree(root)
