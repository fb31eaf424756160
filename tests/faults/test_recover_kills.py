"""SIGKILL before and after calls of recover, clean and savepoint; run again; then the sink goes on (H6).

Each call with ``--long``; else some at random. ``test_command_kills.py`` has every picture that a kill can leave.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile import dispose_savepoint, list_savepoints, show_savepoint
from partfile.errors import NotReady
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt, Recorder, intercept
from support.crash.commands import CLEANED_TWICE, COMMANDS
from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.worlds import Local, Powerless
from support.sinks.life_cycle import (
    LONG,
    assert_exactly_once,
    assert_only_grew,
    continue_to,
    finished_files,
    in_child,
    long_sink,
    rows_of,
    staged_files,
)
from support.sinks.recovery import (
    broken_invariants,
    clean_all,
    planned_cleaning,
    planned_recovery,
    recover_all,
    save,
    seed_with_orphans,
)
from support.sinks.shared_streams import BUCKETS, continue_sharing, counted, rows_in, sharing_sink

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from partfile.stores.base import Cut
    from partfile.testing.faults import Interceptor, When
    from support.crash.scenarios import Scenario
    from support.state.tokens import NumberedTokens

    Choose = Callable[[int, int], list[int]]


FEW = 6
"""Calls of a kind that are died at in every run."""


def copied(tmp_path: Path, name: str | int) -> Path:
    return Path(shutil.copytree(tmp_path / "seed", tmp_path / f"{name}", copy_function=shutil.copy2))


@pytest.mark.drawn
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


@pytest.mark.drawn
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


@pytest.mark.slow
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


@pytest.mark.drawn
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


# Kills and power losses of recover and clean, then what follows, on a local directory.


# Kill recover and clean at every call, then what follows at each of its calls, on a local directory.
#
# Enumerated with ``--long``; else some of the moments at random, and of what follows each of them.

FIRST, SECOND = 5, 4


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [*COMMANDS, *CLEANED_TWICE], ids=lambda one: one.name)
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
@pytest.mark.parametrize("scenario", [*COMMANDS, *CLEANED_TWICE], ids=lambda one: one.name)
@pytest.mark.fault("K16", "H6")
def test_what_a_consumer_takes_at_once_comes_back_by_no_command(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """R5: what a command shows, or its killed predecessor did, is each row once, wherever the files went since."""
    first, second = (all_of, all_of) if is_long else (some_of(rng, FIRST), some_of(rng, SECOND))
    harness = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > 10
    assert explored.second_moments > FIRST


# The power fails after a call of recover or of clean: nothing that counts is lost or doubled (H6).
#
# After each call, and with each picture of it, with ``--long``; else with some at random.

COMMAND_FEW = 25
"""Different pictures of what a power loss leaves that are gone on from, in every run."""


@pytest.mark.slow
@pytest.mark.parametrize("scenario", COMMANDS, ids=lambda one: one.name)
@pytest.mark.fault("H6")
def test_a_power_loss_during_a_command_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """Whatever subset of unsynced names and bytes survives, the sink or the same command goes on from there."""
    first = all_of if is_long else some_of(rng, COMMAND_FEW)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert {"link", "sync"} <= set(explored.calls)
    assert ("move" in explored.calls) is (scenario.name == "clean")


# SIGKILL of a sink whose multi-bucket staging file has a bucket in which no file can be made.
#
# What the others got stays theirs.


ROWS = 2 * BUCKETS
STUCK = "k=7"
STUCK_FEW = 10
"""Kills of each kind of part in every run; all of them with ``--long``."""


class OneAfterTheOther(LocalStore):
    """A store whose calls come in the same order each time."""

    persist_threads = 1


def live(base: Path, form: str, interceptor: Interceptor) -> None:
    """Write what is missing; each checkpoint rolls the staging file, so that its task encodes what it can."""
    aged: dict[str, Any] = {"rolling": LONG.model_copy(update={"rollover_interval_s": 1e-3}), "publish_threads": 1}
    calls = intercept(PosixCalls(), interceptor)
    opened = {"open_store": lambda url, _options: OneAfterTheOther(url, calls=calls)}
    sink = sharing_sink(base, format=form, **aged, **opened)
    # The bucket's own rows are the end's complaint; that they stay is what this is about.
    with suppress(NotReady) if (base / STUCK).is_file() else nullcontext():
        continue_sharing(sink, ROWS, base.with_name(f"{base.name}.told"))


def block(base: Path) -> Path:
    """Put a foreign file where the directory of a bucket should be."""
    base.mkdir(parents=True)
    path = base / STUCK
    path.write_text("foreign")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "json"])
@pytest.mark.fault("K1", "K2", "K3", "K6")
def test_a_kill_beside_a_stuck_bucket_loses_and_doubles_nothing(
    form: str, tmp_path: Path, rng: random.Random, *, is_long: bool
) -> None:
    """At any call: no row is there twice, and once the bucket is free again each of all rows is there."""
    block(tmp_path / "whole")
    recorder = Recorder(only=CHANGING_CALLS)
    live(tmp_path / "whole", form, recorder)
    calls = len(recorder.calls)
    every = counted(0, ROWS)
    others = Counter(place for place in every if place[0] != STUCK)
    assert rows_in(tmp_path / "whole", form) == others
    numbers = range(1, calls + 1)
    for number in numbers if is_long else sorted(rng.sample(numbers, STUCK_FEW)):
        base = tmp_path / f"{number}"
        blocking = block(base)
        killer = KillAt(number, rng.choice(["before", "after"]), only=CHANGING_CALLS)
        assert in_child(partial(live, base, form, killer)) == -signal.SIGKILL, f"call {number} of {calls}"
        assert rows_in(base, form) <= others, f"call {number} of {calls}"
        blocking.unlink()
        assert in_child(partial(live, base, form, Recorder())) == 0, f"call {number} of {calls}"
        assert rows_in(base, form) == every, f"call {number} of {calls}"
        assert broken_invariants(base) == []
