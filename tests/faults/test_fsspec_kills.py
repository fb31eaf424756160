"""Kill the process before, in and after every call of the life on file systems of fsspec; lose replies; compare."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import CommitConflict, PartfileError, SnapshotCorrupt
from partfile.stores.fsspec.client import CHANGING_CALLS, FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl
from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.faults import FailAt, KillAt, count_calls, intercept
from support.crash.harness import CrashHarness
from support.crash.scenarios import OTHERS, Scenario, restore_that_cuts, stream
from support.files.fsspec_stores import register
from support.files.fsspec_worlds import InMemory, OnDisk, rows_owed_and_staged
from support.sinks.life_cycle import (
    assert_exactly_once,
    assert_only_grew,
    finished_files,
    in_child,
    make_sink,
    rows_of,
    run_to_the_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.testing.faults import When
    from support.crash.harness import Choose
    from support.state.tokens import NumberedTokens


URLS = {"dir": "dir::file://{}", "renaming": "renaming:/{}", "copying": "copying:/{}"}
ROWS = 6
FEW = 6
"""Kills of each kind in every run; with ``--long`` at each call."""


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a path is on a file system that links, one that renames and replaces, and one that copies."""
    register(monkeypatch)
    return URLS[str(request.param)]


class HalfDone(FsspecCalls):
    """Dies in the middle of the first write or copy to a name with these words in it."""

    def __init__(self, url: FsspecUrl, options: Any, *, words: str) -> None:
        super().__init__(url, options)
        self._words = words

    def write(self, path: str, data: bytes) -> None:
        """Half of it, where it is the one."""
        self._half(path, data)
        super().write(path, data)

    def copy(self, path: str, name: str) -> None:
        """Likewise."""
        self._half(name, self.read(path))
        super().copy(path, name)

    def _half(self, path: str, data: bytes) -> None:
        if self._words in path:
            super().write(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)


def life(url: str, base: Path, interceptor: Any = None, make: Callable[..., FsspecCalls] = FsspecCalls) -> None:
    """The small stream, through a store whose calls an interceptor sees."""

    def opener(place: str, options: Any) -> FsspecStore:
        calls = make(FsspecUrl.of(place), options)
        return FsspecStore(place, calls=intercept(calls, interceptor) if interceptor is not None else calls)

    run_to_the_end(make_sink(url.format(base), open_store=opener), ROWS)


@pytest.mark.drawn
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K11", "K13")
def test_a_kill_at_any_call_loses_and_doubles_nothing(
    url: str, when: When, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGKILL at call n, for some n or all: readers see whole committed rows at once, after a restart all rows once."""
    calls = count_calls(lambda recorder: life(url, tmp_path / "counted", recorder), CHANGING_CALLS)
    for number in chosen(calls, FEW):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(life, url, base, killer)) == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(life, url, base)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base, ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.fault("F8", "F16")
def test_a_call_that_fails_or_whose_reply_is_lost(
    url: str, applied: bool, tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """At some calls or each: the stream goes on, or stops by an error of ours and goes on at the next start."""
    calls = count_calls(lambda recorder: life(url, tmp_path / "counted", recorder), CHANGING_CALLS)
    stopped, numbers = 0, chosen(calls, 2 * FEW)
    for number in numbers:
        base = tmp_path / f"{number}"
        fault = FailAt(number, ConnectionResetError("lost"), applied=applied, only=CHANGING_CALLS)
        try:
            life(url, base, fault)
        except PartfileError:
            stopped += 1
        life(url, base)
        assert_exactly_once(base, ROWS)
    assert stopped < len(numbers)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_in_the_middle_of_a_link_is_undone_or_named(url: str, number: int, tmp_path: Path) -> None:
    """Where a checkpoint is written in place, the start stops and names it; without it, it was never there."""
    dying = partial(HalfDone, words=f"/chk-{number}/")
    assert in_child(partial(life, url, tmp_path, make=dying)) == -signal.SIGKILL
    before = finished_files(tmp_path)
    if url == URLS["copying"]:
        with pytest.raises(SnapshotCorrupt, match=rf"chk-{number}/_metadata"):
            life(url, tmp_path)
        (damaged,) = tmp_path.rglob(f"chk-{number}/_metadata")
        damaged.unlink()
    life(url, tmp_path)
    assert_only_grew(before, assert_exactly_once(tmp_path, ROWS))


def test_a_kill_in_the_middle_of_a_copy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is published over half a file; without it the staged one is published, and no row is lost."""
    register(monkeypatch)
    url = URLS["copying"]
    dying = partial(HalfDone, words="/part-")
    assert in_child(partial(life, url, tmp_path, make=dying)) == -signal.SIGKILL
    (half,) = finished_files(tmp_path)
    for _ in range(2):
        with pytest.raises(CommitConflict, match=Path(half).name):
            life(url, tmp_path)
    (tmp_path / half).unlink()
    life(url, tmp_path)
    assert_exactly_once(tmp_path, ROWS)


# Kill at every call, then the recovery at some of its calls, with ``--long`` at each, beside a consumer.
#
CONSUMED: dict[str, Any] = {"memory": InMemory(), **{name: OnDisk(url) for name, url in URLS.items()}}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", [stream("auto"), restore_that_cuts("auto"), *OTHERS], ids=lambda one: one.name)
@pytest.mark.parametrize("place", CONSUMED)
@pytest.mark.fault("K2", "K3", "K10", "K11", "K13", "K16")
def test_what_a_consumer_takes_at_once_comes_again_where_it_is_staged_too(
    place: str,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    second: Choose,
) -> None:
    """R5: each start goes on by itself, and shows no file again whose staged file is gone: where it is renamed, none.

    A staged file that a kill has left of a part that is owed is shown again, once.
    """
    register(monkeypatch)
    harness = CrashHarness(scenario, CONSUMED[place], numbered_tokens, second=second, again=rows_owed_and_staged)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > 5
    assert (explored.shown_again > 0) is (place != "renaming")
