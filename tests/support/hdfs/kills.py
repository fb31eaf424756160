"""SIGKILL at the calls of the whole life cycle on HDFS, several lives at a time; restart; compare."""

from __future__ import annotations

import json
import queue
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.crash.harness import explained
from support.hdfs.life import Kind, Notes, finished_files, opener, taken_by, taken_files
from support.programs.clean_forks import CleanForks
from support.sinks.life_cycle import ROWS, assert_only_grew, rows_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.stores.base import Cut
    from partfile.testing.faults import When
    from support.hdfs.cluster import HdfsCluster

    Point = tuple[int, When]
    Choose = Callable[[Notes], list[Point]]
    Second = Callable[[], Point | None]


STEPS = {True: 15, False: 30}
"""Every so many-th call of a restore that cuts, and of a life that has nothing to cut; from a random one on."""
TWICE_STEP = 40
CALLS_OF_A_RESTART = 25
TAKES, OTHERS = 2, 2
"""Calls that show a file to a consumer, and other ones."""
PARALLEL = 4
"""Lives at a time; each of them mostly waits for leases and DataNodes."""
EVERY_ROW = Counter(f"row-{number:04d}" for number in range(ROWS))


def after_each(notes: Notes) -> list[tuple[int, When]]:
    """Every state that a crash can leave: before the first call, and after each; nothing changes between two calls."""
    return [(1, "before"), *((number, "after") for number in range(1, len(notes.calls) + 1))]


def some_of(rng: random.Random, step: int) -> Choose:
    """Every so many-th of those states, from a random one on."""
    first = rng.randrange(step)
    return lambda notes: after_each(notes)[first::step]


def where_files_are_taken(rng: random.Random) -> Choose:
    """Some of the states in which a consumer has just taken a file, and some others."""

    def choose(notes: Notes) -> list[Point]:
        takes: list[Point] = [(number, "after") for number in notes.takes]
        others = [point for point in after_each(notes) if point not in takes]
        return [*rng.sample(takes, min(TAKES, len(takes))), *rng.sample(others, OTHERS)]

    return choose


class Kills(NamedTuple):
    """Lives of one kind in one directory."""

    cluster: HdfsCluster
    directory: str
    cut: Cut
    kind: Kind

    def enumerate(self, notes: Path, choose: Choose, second: Second = lambda: None) -> None:
        """Die at each of the chosen calls in a life of its own; all rows are there once, before and after a restart.

        Args:
            notes: A file for the calls of a life.
            choose: Among the calls.
            second: Draws the call at which the restart dies too, before another one; None lets it live.
        """
        with ExitStack() as stack:
            idle: queue.SimpleQueue[CleanForks] = queue.SimpleQueue()
            for _ in range(PARALLEL):
                idle.put(stack.enter_context(CleanForks("support.hdfs.life")))
            noted = self._count(idle, notes)
            assert ("truncate" in noted.calls) is (self.kind.is_restore and self.cut == "truncate")
            assert bool(noted.takes) is self.kind.has_consumer
            pool = stack.enter_context(ThreadPoolExecutor(PARALLEL))
            lives = [pool.submit(self._die_and_live, idle, noted.calls, second(), point) for point in choose(noted)]
            assert lives
            for life in lives:
                life.result()

    def _count(self, idle: queue.SimpleQueue[CleanForks], notes: Path) -> Notes:
        with _borrowed(idle) as forks:
            url = self._begin(forks, "counted")
            assert self._live(forks, "count", url, to=str(notes)) == 0
            if self.kind.has_consumer:
                taken = self._seen(url, {})
                assert self._live(forks, "live", url) == 0
                assert self._seen(url, taken) == taken, "a further start has shown a file"
        return Notes(*json.loads(notes.read_text()))

    def _die_and_live(
        self, idle: queue.SimpleQueue[CleanForks], calls: list[str], second: Point | None, first: Point
    ) -> None:
        number, when = first
        shown = f"{when} call {number} of {len(calls)}, {calls[number - 1]}; then {second}"
        with _borrowed(idle) as forks, explained(shown):
            url = self._begin(forks, f"{when}-{number}")
            code = self._live(forks, "die", url, number=number, when=when)
            # A truncate and a lease are asked about until they are done, which may be sooner than the first time.
            is_past_the_end = code == 0 and number > len(calls) - calls.count("truncate") - calls.count("append")
            assert code == -signal.SIGKILL or is_past_the_end
            seen = self._seen(url, {})
            if second is not None:
                again = self._live(forks, "die", url, number=second[0], when=second[1])
                # A process that has less to do than that ends well.
                assert again in {-signal.SIGKILL, 0}
                seen = self._seen(url, seen)
            assert self._live(forks, "live", url) == 0
            assert rows_of(self._seen(url, seen)) == EVERY_ROW

    def _seen(self, url: str, before: dict[str, bytes]) -> dict[str, bytes]:
        """What readers see, or consumers have taken by now: whole rows, each once, and nothing has changed."""
        opened = opener(self.cluster.http_address)
        with opened(url, None) as store, opened(taken_by(url), None) as taken:
            seen = finished_files(store)
            if self.kind.has_consumer:
                assert seen == {}, "a file is visible that no consumer has taken"
                seen = taken_files(taken)
        assert max(rows_of(seen).values(), default=1) == 1, "a row was seen twice"
        assert_only_grew(before, seen)
        return seen

    def _begin(self, forks: CleanForks, name: str) -> str:
        url = f"{self.cluster.url}{self.directory}/{name}"
        if self.kind.is_restore:
            assert self._run(forks, "seed", url) == -signal.SIGKILL
        return url

    def _live(self, forks: CleanForks, function: str, url: str, **arguments: object) -> int:
        return self._run(forks, function, url, kind=self.kind, **arguments)

    def _run(self, forks: CleanForks, function: str, url: str, **arguments: object) -> int:
        return forks.run(function, url=url, http_address=self.cluster.http_address, cut=self.cut, **arguments)


@contextmanager
def _borrowed(idle: queue.SimpleQueue[CleanForks]) -> Iterator[CleanForks]:
    """One of those that are idle, for as long as it is needed."""
    forks = idle.get()
    try:
        yield forks
    finally:
        idle.put(forks)


def somewhere(rng: random.Random) -> Second:
    """A call among the first of a restart, which finalize and publish."""
    return lambda: (rng.randint(1, CALLS_OF_A_RESTART), rng.choice(["before", "after"]))


class KillsWithOneCut:
    """The tests of one way of cutting, in a file of its own: the files of tests run side by side."""

    cut: Cut

    @pytest.mark.drawn(1)
    @pytest.mark.parametrize("is_restore", [False, True], ids=["life", "restore"])
    @pytest.mark.fault("K3", "K6", "K10", "K11", "K13", "K14")
    def test_a_kill_at_any_call_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
        self,
        is_restore: bool,
        hdfs: HdfsCluster,
        hdfs_directory: str,
        tmp_path: Path,
        rng: random.Random,
        pytestconfig: pytest.Config,
    ) -> None:
        """The parts of a restore are longer than a checkpoint vouches for; with ``--long`` no call is left out."""
        choose = after_each if pytestconfig.getoption("long") else some_of(rng, STEPS[is_restore])
        Kills(hdfs, hdfs_directory, self.cut, Kind(is_restore)).enumerate(tmp_path / "calls.json", choose)

    @pytest.mark.fault("K16")
    def test_a_second_kill_loses_and_doubles_nothing(
        self,
        hdfs: HdfsCluster,
        hdfs_directory: str,
        tmp_path: Path,
        rng: random.Random,
        pytestconfig: pytest.Config,
    ) -> None:
        """The restart that finalizes what the first kill left is killed too, at random; with ``--long`` after each."""
        choose = after_each if pytestconfig.getoption("long") else some_of(rng, TWICE_STEP)
        kills = Kills(hdfs, hdfs_directory, self.cut, Kind(is_restore=True))
        kills.enumerate(tmp_path / "calls.json", choose, somewhere(rng))

    @pytest.mark.drawn(1)
    @pytest.mark.parametrize("is_restore", [False, True], ids=["life", "restore"])
    @pytest.mark.fault("K3", "K6", "K10", "K11", "K13", "K14", "K16")
    def test_what_a_consumer_takes_at_once_is_each_row_once(  # noqa: PLR0917 - fixtures.
        self,
        is_restore: bool,
        hdfs: HdfsCluster,
        hdfs_directory: str,
        tmp_path: Path,
        rng: random.Random,
        pytestconfig: pytest.Config,
    ) -> None:
        """R5: no file comes back after a consumer has moved it, and each start goes on by itself.

        The start after the first kill is killed too, at random.
        """
        choose = after_each if pytestconfig.getoption("long") else where_files_are_taken(rng)
        kills = Kills(hdfs, hdfs_directory, self.cut, Kind(is_restore, has_consumer=True))
        kills.enumerate(tmp_path / "calls.json", choose, somewhere(rng))
