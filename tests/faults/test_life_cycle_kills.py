"""Kill the process before and after every file-system call of the life cycle; restart; compare."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder, count_calls
from support.life_cycle import (
    LONG,
    assert_exactly_once,
    assert_only_grew,
    finished_files,
    in_child,
    make_sink,
    rows_of,
    run_to_the_end,
    seed_with_a_tail,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import When


FEW = 6
"""Kills of each kind in every run; with ``--long`` at each call. Pictures of each are in test_second_kills."""
CUTS = ["truncate", "rewrite", "valid-length"]


def life(base: Path, **options: Any) -> None:
    run_to_the_end(make_sink(base, **options))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13")
def test_a_kill_at_any_call_loses_and_doubles_nothing(
    cut: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGKILL at call n, for some n or all: readers see whole committed rows at once, after a restart all rows once."""
    calls = count_calls(lambda recorder: life(tmp_path / "counted", interceptor=recorder, cut=cut), CHANGING_CALLS)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        code = in_child(partial(life, base, interceptor=killer, cut=cut))
        assert code == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(life, base, cut=cut)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", [*CUTS, "auto"])
@pytest.mark.fault("K3", "K6", "K11b", "K14")
def test_a_kill_at_any_call_of_a_restore_that_cuts(
    cut: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """The same from a crash on that left open parts with a tail, so that the restore has something to finalize."""
    seed_with_a_tail(tmp_path / "seed", cut=cut)

    def again(number: int | str) -> Path:
        return Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{number}"))

    go_on = partial(life, cut=cut, rolling=LONG)
    recorder = Recorder(CHANGING_CALLS)
    go_on(again("counted"), interceptor=recorder)
    assert ("truncate" in recorder.names) is (cut in {"truncate", "auto"})
    for number in chosen(len(recorder.calls), FEW):
        base = again(number)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(go_on, base, interceptor=killer)) == -signal.SIGKILL, f"call {number}"
        seen = finished_files(base)
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(go_on, base)) == 0, f"call {number} {recorder.names[number - 1]}"
        assert_only_grew(seen, assert_exactly_once(base))
        shutil.rmtree(base)


@pytest.mark.fault("K13")
def test_a_restart_of_a_finished_stream_changes_no_file(tmp_path: Path) -> None:
    """Restoring again and again leaves every finished file as it is and adds none."""
    run_to_the_end(make_sink(tmp_path))
    files = assert_exactly_once(tmp_path)
    for _ in range(3):
        run_to_the_end(make_sink(tmp_path))
        assert finished_files(tmp_path) == files
