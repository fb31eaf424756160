"""SIGKILL before and after calls of recover, clean and savepoint; run again; then the sink goes on (H6).

Each call with ``--long``; else some at random. ``test_command_kills.py`` has every picture that a kill can leave.
"""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile import dispose_savepoint, list_savepoints, show_savepoint
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    continue_to,
    finished_files,
    in_child,
    long_sink,
    rows_of,
    staged_files,
)
from support.recovery import clean_all, planned_cleaning, planned_recovery, recover_all, save, seed_with_orphans

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Cut
    from partfile.testing.faults import When

    Choose = Callable[[int, int], list[int]]


FEW = 6
"""Calls of a kind that are died at in every run."""


def copied(tmp_path: Path, name: str | int) -> Path:
    return Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{name}", copy_function=shutil.copy2))


@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("cut", ["auto", "rewrite", "valid-length"])
def test_a_kill_at_any_call_of_recover(cut: Cut, when: When, chosen: Choose, tmp_path: Path) -> None:
    """After a second run nothing waits any more; the sink goes on from its position, and each row is there once."""
    seed_with_orphans(tmp_path / "seed")
    recorder = Recorder(CHANGING_CALLS)
    recover_all(copied(tmp_path, "counted"), recorder, cut=cut)
    assert "link" in recorder.names
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)

        def killed(base: Path = base, number: int = number) -> None:
            recover_all(base, KillAt(number, when, only=CHANGING_CALLS), cut=cut)

        assert in_child(killed) == -signal.SIGKILL, f"call {number}"
        seen = finished_files(base)
        recover_all(base, cut=cut)
        assert not planned_recovery(base).jobs, f"call {number}: {recorder.names[number - 1]}"
        assert sum(rows_of(finished_files(base)).values()) == 4
        assert continue_to(long_sink(base, cut=cut), 9) == 4
        assert_only_grew(seen, assert_exactly_once(base, 9))
        shutil.rmtree(base)


@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("delete", [False, True])
def test_a_kill_at_any_call_of_clean(tmp_path: Path, when: When, chosen: Choose, *, delete: bool) -> None:
    """After a second run the orphans are gone, and what a checkpoint vouches for is all there."""
    seed_with_orphans(tmp_path / "seed")
    assert len(staged_files(tmp_path / "seed")) == 4
    recorder = Recorder(CHANGING_CALLS)
    clean_all(copied(tmp_path, "counted"), recorder, delete=delete)
    assert ("unlink" if delete else "move") in recorder.names
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)
        killer = KillAt(number, when, only=CHANGING_CALLS)

        def killed(base: Path = base, killer: KillAt = killer) -> None:
            clean_all(base, killer, delete=delete)

        assert in_child(killed) == -signal.SIGKILL, f"call {number}"
        clean_all(base, delete=delete)
        # What the killed run itself has left is younger than the checkpoint by which this run judged.
        left = [item.path for item in planned_cleaning(base).to_do if item.kind == "orphan"]
        assert not left, f"call {number}: {recorder.names[number - 1]}"
        assert len(staged_files(base)) == (2 if delete else 4), "the others are in the quarantine"
        assert continue_to(long_sink(base), 9) == 4
        assert_exactly_once(base, 9)
        shutil.rmtree(base)


@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_second_kill_at_any_call_of_the_recovery_that_follows(when: When, chosen: Choose, tmp_path: Path) -> None:
    """Killed in the middle, and killed again at each call of the next run: the third one ends it."""
    seed_with_orphans(tmp_path / "seed")
    recorder = Recorder(CHANGING_CALLS)
    recover_all(copied(tmp_path, "counted"), recorder)
    calls = len(recorder.calls)
    for first in range(calls // 4, calls, calls // 4):
        half = copied(tmp_path, f"half-{first}")
        assert in_child(partial(recover_all, half, KillAt(first, only=CHANGING_CALLS))) == -signal.SIGKILL
        again = Recorder(CHANGING_CALLS)
        recover_all(Path(shutil.copytree(half, tmp_path / f"{first}-counted")), again)
        for second in chosen(len(again.calls), FEW):
            base = Path(shutil.copytree(half, tmp_path / f"{first}-{second}"))
            assert in_child(partial(recover_all, base, KillAt(second, when, only=CHANGING_CALLS))) == -signal.SIGKILL
            recover_all(base)
            assert not planned_recovery(base).jobs
            assert continue_to(long_sink(base), 9) == 4
            assert_exactly_once(base, 9)
            shutil.rmtree(base)


@pytest.mark.fault("H6")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_call_of_a_savepoint(when: When, chosen: Choose, tmp_path: Path) -> None:
    """After a second run there is a whole savepoint; what the first one left is none, and can be disposed of."""
    seed_with_orphans(tmp_path / "seed")
    recorder = Recorder(CHANGING_CALLS)
    save(copied(tmp_path, "counted"), recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)
        assert in_child(partial(save, base, KillAt(number, when, only=CHANGING_CALLS))) == -signal.SIGKILL
        location = save(base)
        assert show_savepoint(location).job == "life"
        for found in list_savepoints(Path(location).parent):
            if found.metadata is None:
                dispose_savepoint(Path(location).parent / found.directory)
        assert all(not found.problem for found in list_savepoints(Path(location).parent)), f"call {number}"
        assert continue_to(long_sink(base, restore_from=location), 9) == 4
        assert_exactly_once(base, 9)
        shutil.rmtree(base)
