"""Kill the process before and after every call of the life cycle on file systems of fsspec; lose replies; compare."""

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
from plain_file_systems import register

from partfile.filesystems.errors import PartfileError
from partfile.filesystems.faults import FailAt, KillAt, count_calls, intercept
from partfile.filesystems.fsspec import FsspecStore
from partfile.filesystems.fsspec_calls import CHANGING_CALLS, FsspecCalls
from partfile.filesystems.fsspec_url import FsspecUrl

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.filesystems.faults import When

URLS = {"dir": "dir::file://{}", "renaming": "renaming:/{}", "copying": "copying:/{}"}
ROWS = 6


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a path is on a file system that links, one that renames and replaces, and one that copies."""
    register(monkeypatch)
    return URLS[str(request.param)]


def life(url: str, base: Path, interceptor: Any = None) -> None:
    """The small stream, through a store whose calls an interceptor sees."""

    def opener(place: str, options: Any) -> FsspecStore:
        calls = FsspecCalls(FsspecUrl.of(place), options)
        return FsspecStore(place, calls=intercept(calls, interceptor) if interceptor is not None else calls)

    run_to_the_end(make_sink(url.format(base), open_store=opener), ROWS)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_call_loses_and_doubles_nothing(url: str, when: When, tmp_path: Path) -> None:
    """SIGKILL at call n, for every n: readers see whole committed rows at once, and after a restart all rows once."""
    calls = count_calls(lambda recorder: life(url, tmp_path / "counted", recorder), CHANGING_CALLS)
    for number in range(1, calls + 1):
        base = tmp_path / f"{number}"
        killer = KillAt(number, when, only=CHANGING_CALLS)
        assert in_child(partial(life, url, base, killer)) == -signal.SIGKILL, f"call {number} of {calls}"
        seen = finished_files(base) if base.exists() else {}
        assert max(rows_of(seen).values(), default=1) == 1
        assert in_child(partial(life, url, base)) == 0, f"call {number} of {calls}"
        assert_only_grew(seen, assert_exactly_once(base, ROWS))


@pytest.mark.parametrize("applied", [True, False])
def test_a_call_that_fails_or_whose_reply_is_lost(url: str, applied: bool, tmp_path: Path) -> None:
    """At each call: the stream goes on, or stops by an error of ours and goes on at the next start."""
    calls = count_calls(lambda recorder: life(url, tmp_path / "counted", recorder), CHANGING_CALLS)
    stopped = 0
    for number in range(1, calls + 1):
        base = tmp_path / f"{number}"
        fault = FailAt(number, ConnectionResetError("lost"), applied=applied, only=CHANGING_CALLS)
        try:
            life(url, base, fault)
        except PartfileError:
            stopped += 1
        life(url, base)
        assert_exactly_once(base, ROWS)
    assert stopped < calls
