"""Kill the process before and after every file-system call of the life cycle; restart; compare. Enumerated."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    finished_files,
    in_child,
    make_sink,
    rows_of,
    run_to_the_end,
)

from partfile.filesystems.faults import KillAt, count_calls
from partfile.filesystems.posix import CHANGING_CALLS

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.filesystems.faults import When

CUTS = ["truncate", "rewrite", "valid-length"]


def life(base: Path, **options: Any) -> None:
    run_to_the_end(make_sink(base, **options))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_kill_at_any_call_loses_and_doubles_nothing(cut: str, when: When, tmp_path: Path) -> None:
    """SIGKILL at call n, for every n: readers see whole committed rows at once, and after a restart all rows once."""
    calls = count_calls(lambda recorder: life(tmp_path / "counted", interceptor=recorder, cut=cut), CHANGING_CALLS)
    for number in range(1, calls + 1):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(partial(life, base, interceptor=killer, cut=cut))
        assert code == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(life, base, cut=cut)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base))


def test_a_restart_of_a_finished_stream_changes_no_file(tmp_path: Path) -> None:
    """Restoring again and again leaves every finished file as it is and adds none."""
    run_to_the_end(make_sink(tmp_path))
    files = assert_exactly_once(tmp_path)
    for _ in range(3):
        run_to_the_end(make_sink(tmp_path))
        assert finished_files(tmp_path) == files
