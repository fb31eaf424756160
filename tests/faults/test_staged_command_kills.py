"""Kill recover, clean and savepoint over staged columnar parts, then what follows; by picture, and by SIGKILL (H6).

Each moment with ``--long``; else some at random.
"""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from partfile import show_savepoint
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.crash.harness import CrashHarness, all_of, some_of
from support.crash.staged import STAGED_COMMANDS, STAGING_FILES_CLEANED_TWICE
from support.crash.worlds import Local
from support.sinks.dead import die_with_an_unnamed_encode, die_with_open_staging_files
from support.sinks.life_cycle import assert_only_grew, continue_to, finished_files, in_child
from support.sinks.recovery import (
    age,
    broken_invariants,
    clean_all,
    planned_cleaning,
    planned_recovery,
    recover_all,
    save,
)
from support.sinks.staged_streams import finished_rows, names, pending_in, staged_sink, staging_files_in

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from partfile.testing.faults import When
    from support.crash.scenarios import Scenario
    from support.state.tokens import NumberedTokens

    Choose = Callable[[int, int], list[int]]


FIRST, SECOND = 5, 4
"""Moments of a command, and of what follows each of them, in every run."""
FEW = 5
"""Calls that are died at by SIGKILL in every run."""
WHEN = pytest.mark.parametrize("when", ["before", "after"])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", [*STAGED_COMMANDS, *STAGING_FILES_CLEANED_TWICE], ids=lambda one: one.name)
@pytest.mark.fault("K16", "H6")
def test_two_kills_of_commands_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """What a second kill finds may be the same command or the sink; what a third run leaves is the same as ever."""
    first, second = (all_of, all_of) if is_long else (some_of(rng, FIRST), some_of(rng, SECOND))
    explored = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=second).explore()
    assert explored.moments > 10
    assert explored.second_moments > FIRST


@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", [*STAGED_COMMANDS, *STAGING_FILES_CLEANED_TWICE], ids=lambda one: one.name)
@pytest.mark.fault("K16", "H6")
def test_what_a_consumer_takes_at_once_comes_back_by_no_command(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """R5: neither from a staging file nor from what it was encoded to, whichever command or start comes next."""
    first, second = (all_of, all_of) if is_long else (some_of(rng, FIRST), some_of(rng, SECOND))
    harness = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > 10
    assert explored.second_moments > FIRST


def copied(tmp_path: Path, name: str | int) -> Path:
    return Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{name}", copy_function=shutil.copy2))


def ended(base: Path, seen: dict[str, bytes]) -> None:
    """The sink goes on to its end: each row is there once, and what readers had seen is there still."""
    assert continue_to(staged_sink(base), 9) == 4
    assert finished_rows(base) == names(0, 9)
    assert_only_grew(seen, finished_files(base))
    assert broken_invariants(base) == []


@WHEN
@pytest.mark.fault("H6")
def test_a_kill_at_any_call_of_recover(when: When, chosen: Choose, tmp_path: Path) -> None:
    """In the middle of an encode, before a checkpoint names the file, before it is published: run again it ends."""
    die_with_open_staging_files(tmp_path / "seed")
    recorder = Recorder(CHANGING_CALLS)
    recover_all(copied(tmp_path, "counted"), recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(recover_all, base, killer)) == -signal.SIGKILL, f"call {number}"
        seen = finished_files(base)
        recover_all(base)
        assert not planned_recovery(base).jobs, f"call {number}: {recorder.names[number - 1]}"
        assert finished_rows(base) == names(0, 4)
        ended(base, seen)
        shutil.rmtree(base)


@pytest.mark.drawn
@WHEN
@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.fault("H6")
def test_a_kill_at_any_call_of_clean(tmp_path: Path, when: When, chosen: Choose, *, delete: bool) -> None:
    """Files that were encoded for no checkpoint go.

    The staging files that one vouches for stay, and are encoded later.
    """
    seed = tmp_path / "seed"
    die_with_an_unnamed_encode(seed)
    age(seed)
    assert (len(staging_files_in(seed)), len(pending_in(seed))) == (2, 2)
    recorder = Recorder(CHANGING_CALLS)
    clean_all(copied(tmp_path, "counted"), recorder, delete=delete)
    assert ("unlink" if delete else "move") in recorder.names
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(clean_all, base, killer, delete=delete)) == -signal.SIGKILL, f"call {number}"
        clean_all(base, delete=delete)
        assert not [item.path for item in planned_cleaning(base).to_do if item.kind == "orphan"], f"call {number}"
        assert len(list(base.glob("bucket=*/*.pending"))) == 0
        assert len(list(base.glob("bucket=*/*.in-progress"))) == 2
        ended(base, {})
        shutil.rmtree(base)


@pytest.mark.drawn
@WHEN
@pytest.mark.fault("H6")
def test_a_kill_at_any_call_of_a_savepoint(when: When, chosen: Choose, tmp_path: Path) -> None:
    """Run again it is whole, and names no staging file: every row of it is finished."""
    die_with_open_staging_files(tmp_path / "seed")
    recorder = Recorder(CHANGING_CALLS)
    save(copied(tmp_path, "counted"), recorder)
    for number in chosen(len(recorder.calls), FEW):
        base = copied(tmp_path, number)
        assert in_child(partial(save, base, KillAt(number, when, only=CHANGING_CALLS))) == -signal.SIGKILL
        assert show_savepoint(save(base)).job == "life"
        assert finished_rows(base) == names(0, 4)
        ended(base, {})
        shutil.rmtree(base)
