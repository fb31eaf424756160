"""SIGKILL at the calls of the whole life cycle on HDFS, several lives at a time; restart; compare."""

from __future__ import annotations

import json
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.hdfs.life import assert_exactly_once, finished_files, opener
from support.programs.clean_forks import CleanForks
from support.sinks.life_cycle import assert_only_grew, rows_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.base import Cut
    from partfile.testing.faults import When
    from support.hdfs.cluster import HdfsCluster

    Point = tuple[int, When]
    Choose = Callable[[int], list[Point]]
    Second = Callable[[], Point | None]


STEPS = {True: 10, False: 20}
"""Every so many-th call of a restore that cuts, and of a life that has nothing to cut; from a random one on."""
TWICE_STEP = 40
CALLS_OF_A_RESTART = 25
PARALLEL = 4
"""Lives at a time; each of them mostly waits for leases and DataNodes."""


def after_each(calls: int) -> list[tuple[int, When]]:
    """Every state that a crash can leave: before the first call, and after each; nothing changes between two calls."""
    return [(1, "before"), *((number, "after") for number in range(1, calls + 1))]


def some_of(rng: random.Random, step: int) -> Choose:
    """Every so many-th of those states, from a random one on."""
    first = rng.randrange(step)
    return lambda calls: after_each(calls)[first::step]


class Kills(NamedTuple):
    """Lives of one kind in one directory."""

    cluster: HdfsCluster
    directory: str
    cut: Cut
    is_restore: bool
    """Whether they begin with parts that are longer than what a checkpoint vouches for, which the restore cuts."""

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
            calls = self._calls(idle, notes)
            assert ("truncate" in calls) is (self.is_restore and self.cut == "truncate")
            pool = stack.enter_context(ThreadPoolExecutor(PARALLEL))
            lives = [pool.submit(self._die_and_live, idle, calls, second(), point) for point in choose(len(calls))]
            assert lives
            for life in lives:
                life.result()

    def _calls(self, idle: queue.SimpleQueue[CleanForks], notes: Path) -> list[str]:
        forks = idle.get()
        url = self._begin(forks, "counted")
        assert self._run(forks, "count", url, to=str(notes), is_restore=self.is_restore) == 0
        idle.put(forks)
        names = json.loads(notes.read_text())
        assert isinstance(names, list)
        return names

    def _die_and_live(
        self, idle: queue.SimpleQueue[CleanForks], calls: list[str], second: Point | None, first: Point
    ) -> None:
        number, when = first
        shown = f"{when} call {number} of {len(calls)}, {calls[number - 1]}; then {second}"
        forks = idle.get()
        url = self._begin(forks, f"{when}-{number}")
        code = self._run(forks, "die", url, number=number, when=when, is_restore=self.is_restore)
        # A truncate and a lease are asked about until they are done, which may be sooner than the first time.
        is_past_the_end = code == 0 and number > len(calls) - calls.count("truncate") - calls.count("append")
        assert code == -signal.SIGKILL or is_past_the_end, shown
        with opener(self.cluster.http_address)(url, None) as store:
            seen = finished_files(store)
            assert max(rows_of(seen).values(), default=1) == 1, shown
            if second is not None:
                again = self._run(forks, "die", url, number=second[0], when=second[1], is_restore=self.is_restore)
                # A process that has less to do than that ends well.
                assert again in {-signal.SIGKILL, 0}, shown
                seen_later = finished_files(store)
                assert max(rows_of(seen_later).values(), default=1) == 1, shown
                assert_only_grew(seen, seen_later)
            assert self._run(forks, "live", url, is_restore=self.is_restore) == 0, shown
            assert_only_grew(seen, assert_exactly_once(store))
        idle.put(forks)

    def _begin(self, forks: CleanForks, name: str) -> str:
        url = f"{self.cluster.url}{self.directory}/{name}"
        if self.is_restore:
            assert self._run(forks, "seed", url) == -signal.SIGKILL
        return url

    def _run(self, forks: CleanForks, function: str, url: str, **arguments: object) -> int:
        return forks.run(function, url=url, http_address=self.cluster.http_address, cut=self.cut, **arguments)


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
        Kills(hdfs, hdfs_directory, self.cut, is_restore).enumerate(tmp_path / "calls.json", choose)

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
        kills = Kills(hdfs, hdfs_directory, self.cut, is_restore=True)
        kills.enumerate(tmp_path / "calls.json", choose, somewhere(rng))
