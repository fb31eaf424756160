"""A job under a random schedule: drivers, rivals, zombies and a timer on real files, and the command line among them.

Its parts are lines of text, or staged Parquet: then tasks and coordinators encode staging files, and delete spent ones.

The rows of each batch are given, so that a batch that is run again writes the same; the position is the number of
batches that are complete. Whatever happens, in the end each row of each batch is in one finished file, whether it lies
there or a consumer has taken it the instant it was visible.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import partfile as pf
from partfile.errors import Fenced, RecoveryRefused
from partfile.sink.coordinator import Runtime
from partfile.stores.local.posix import CHANGING_CALLS
from support.crash.commands import clean_by_command, recover_by_command
from support.crash.worlds import Process, temporary_directory
from support.schedules.drivers import Driver, position_of
from support.schedules.turns import ClockedCalls, Schedule, needed_files_in, unkept_files
from support.sinks.life_cycle import SingleThreadedStore, assert_only_grew, finished_files, make_sink, rows_of
from support.sinks.recovery import broken_invariants

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.file_sink import FileSink
    from partfile.stores.local.posix import PosixCalls
    from partfile.testing.faults import Call
    from support.schedules.turns import Actor


MOST_STEPS = 6000
MOST_DRIVERS = 4
STALLS = 0.3
"""How many of the drivers that would be killed stall instead, and come home last."""
DAY_MS = 86_400_000
ROLLING = pf.RollingPolicy(max_part_bytes=30, rollover_interval_s=60, inactivity_interval_s=20)
STAGED_ROLLING = ROLLING.model_copy(update={"max_part_bytes": 700})
"""Some staging files are rolled by a task, for their size; others by the timer, the end and the next start."""
COMMANDS = ("recover", "clean")


class Violation(AssertionError):
    """Something happened that must not."""


class ModelJob:
    """One job from its first driver to its last.

    Args:
        seed: Of everything that is drawn.
        batches: How many there are.
        is_staged: Whether its parts are staged Parquet.
        is_distinct: Whether the sinks deduplicate; then each row comes again in its batch and in the two after it, and
            runs of keys and the states of tasks are files.
        has_consumer: Whether a consumer takes each finished file the instant it is visible; the sinks are told so.
    """

    def __init__(
        self,
        seed: int,
        batches: int = 4,
        *,
        is_staged: bool = False,
        is_distinct: bool = False,
        has_consumer: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.base = temporary_directory("partfile-model-")
        self.batches = batches
        self.schedule = Schedule(self.rng, lambda: ClockedCalls(self._disk_ms))
        self.drivers = 0
        self.now_ms = 1_000_000
        """The coordinators' clock."""
        self.ends: Counter[str] = Counter()
        """How commands have ended."""
        self._seen: dict[str, bytes] = {}
        """What readers have seen; with a consumer all that it has taken, by an order of its own."""
        self._has_consumer = has_consumer
        self._stalled: list[Actor] = []
        """Drivers that others take for dead; they go on when the last driver is done."""
        self._stalls = random.Random(seed)
        """Draws which drivers stall. A schedule in which none stalls is what it would be if none could."""
        self._copying: set[Actor] = set()
        """Those that have named a copy of a part and not shown or dropped it yet; see ``_kill``."""
        self._is_staged = is_staged
        self._is_distinct = is_distinct
        self._needed_files: set[str] = set()
        """Staging files and runs of keys that lay there before the last call."""

    def rows(self, batch: int, subtask: int) -> list[str]:
        """The rows of a subtask in a batch; all of one key come to one subtask."""
        new = self._new_rows(batch, subtask)
        if not self._is_distinct:
            return new
        subtasks = self.subtasks(batch)
        earlier = [
            row
            for before in range(max(1, batch - 2), batch)
            for other in range(self.subtasks(before))
            if other % subtasks == subtask
            for row in self._new_rows(before, other)
        ]
        return [*new, *earlier, *new]

    def _new_rows(self, batch: int, subtask: int) -> list[str]:
        return [f"row-{batch:02d}-{subtask}-{number}" for number in range(3)]

    def subtasks(self, batch: int) -> int:
        """How many subtasks a batch has: the same whenever it is run."""
        return 1 + batch % 2

    def run(self) -> dict[str, bytes]:
        """Let everything happen; returns the finished files. Raises Violation."""
        # Who takes turns with others has one thread.
        with patch("partfile.sink.coordinator._MOST_ENCODE_THREADS", 1):
            return self._run()

    def _run(self) -> dict[str, bytes]:
        try:
            self._start_driver()
            while self._lively() and self.schedule.steps < MOST_STEPS:
                self._meddle()
                if self._lively():
                    self._step()
            self._end()
            return self._seen
        finally:
            for actor in list(self.schedule.actors):
                self.schedule.kill(actor)
            shutil.rmtree(self.base, ignore_errors=True)

    def _meddle(self) -> None:
        """Kill a process, or begin a rival or a command, from time to time."""
        actors = self._lively()
        if actors and self.rng.random() < 0.004:
            self._kill(self.rng.choice(actors))
        has_driver = any(actor.name.startswith("driver") for actor in self._lively())
        if self.drivers < MOST_DRIVERS and (self.rng.random() < 0.003 or not has_driver):
            self._start_driver()
        if self.rng.random() < 0.002:
            self._start_command("recover", recover_by_command)
        if self.rng.random() < 0.003:
            self._start_clean()

    def _kill(self, actor: Actor) -> None:
        """SIGKILL, but beside a consumer not to one that copies a part. A driver may stall instead.

        A rival may have shown the original. If the copier dies then, the next start finds the copy alone, and its rows
        come twice, which section 7 of the protocol does not promise away. Without rivals they do not:
        ``test_life_cycle_kills.py`` kills copiers beside a consumer.
        """
        if actor in self._copying:
            return
        if actor.name.startswith("driver") and self._stalls.random() < STALLS:
            actor.wakes_at = sys.maxsize
            self._stalled.append(actor)
        else:
            self.schedule.kill(actor)

    def _lively(self) -> list[Actor]:
        """The processes that live and have not stalled."""
        return [actor for actor in self.schedule.actors if actor not in self._stalled]

    def _start_driver(self) -> None:
        self.drivers += 1
        self._drive(f"driver {self.drivers}", may_stop=True)

    def _drive(self, name: str, *, may_stop: bool) -> Actor:
        return self.schedule.start(name, lambda actor: Driver(self, actor, may_stop=may_stop).run())

    def _start_clean(self) -> None:
        # All that is older than the newest checkpoint is old enough.
        now_ms = self._disk_ms() + DAY_MS
        self._start_command("clean", partial(clean_by_command, delete=self.rng.random() < 0.5, now_ms=now_ms))

    def _start_command(self, name: str, command: Callable[[Process], object]) -> None:
        self.schedule.start(name, lambda actor: command(self._process(actor.calls)), is_brisk=True)

    def _process(self, calls: PosixCalls | None) -> Process:
        return Process(str(self.base), lambda url, _options: SingleThreadedStore(url, calls=calls))

    def _end(self) -> None:
        """Commands and zombies alone; then a last driver and zombies, which come home last, as stalled drivers do."""
        while self._copying:
            self._step()
        for actor in [one for one in self._lively() if not one.name.startswith("task")]:
            if actor.name not in COMMANDS or self.rng.random() < 0.5:
                self.schedule.kill(actor)
        if self.rng.random() < 0.5:
            self._start_clean()
        while any(actor.name in COMMANDS for actor in self.schedule.actors):
            self._step()
        last = self._drive("last driver", may_stop=False)
        while not last.is_done:
            self._step()
        for actor in self._stalled:
            actor.wakes_at = self.schedule.steps
        while self.schedule.actors:
            self._step()
        self._check_end()

    def _check_end(self) -> None:
        """Each row of each batch is visible once, and verify finds nothing."""
        expected = Counter(
            row
            for batch in range(1, self.batches + 1)
            for subtask in range(self.subtasks(batch))
            for row in self._new_rows(batch, subtask)
        )
        rows = rows_of(self._look())
        if rows != expected:
            raise Violation(f"in the end there is {sorted(rows.items())}")
        found = broken_invariants(self.base)
        if found:
            raise Violation(f"in the end verify finds {found}")

    def _step(self) -> None:
        actor = self.schedule.step()
        call = actor.last_call
        if self._has_consumer:
            self._note_copy(actor, call)
        if actor.is_done and actor.name in COMMANDS:
            self.ends[f"{actor.name}: {type(actor.error).__name__}"] += 1
        may_end_so = (Fenced, RecoveryRefused) if actor.name in COMMANDS else Fenced
        if actor.error is not None and not isinstance(actor.error, may_end_so):
            raise Violation(f"{actor.name}: {type(actor.error).__name__}: {actor.error}") from actor.error
        if call is not None and call.name in CHANGING_CALLS:
            self._check()

    def _note_copy(self, actor: Actor, call: Call | None) -> None:
        """A copy is named by a rename from one pending name to another; the same actor shows or drops it then."""
        if actor.is_done:
            self._copying.discard(actor)
        elif call is not None and call.name in {"rename_noreplace", "unlink"}:
            names = [str(name) for name in call.arguments[1:]]
            if len(names) == 2 and all(name.endswith(".pending") for name in names):
                self._copying.add(actor)
            elif names[0].endswith(".pending"):
                self._copying.discard(actor)

    def _look(self) -> dict[str, bytes]:
        """What readers have seen by now; a consumer takes what lies there."""
        files = finished_files(self.base) if self.base.exists() else {}
        if not self._has_consumer:
            return files
        for path in files:
            (self.base / path).unlink()
        return self._seen | {f"{len(self._seen)}/{path}": data for path, data in files.items()}

    def _check(self) -> None:
        """Nothing finished has changed or gone, no row is there twice, and none that no checkpoint holds.

        Nor is a staging file gone that a retained checkpoint names as data, nor a run of keys that it names (R6).
        """
        self._check_needed_files()
        files = self._look()
        if files == self._seen:
            return
        try:
            assert_only_grew(self._seen, files)
            assert max(rows_of(files).values(), default=1) == 1
        except AssertionError as error:
            raise Violation(str(error)) from error
        committed = self._committed()
        if any(int(row.split("-")[1]) > committed for row in rows_of(files)):
            raise Violation(f"rows beyond batch {committed} are visible: {sorted(rows_of(files))}")
        self._seen = files

    def _check_needed_files(self) -> None:
        if not self._is_staged and not self._is_distinct:
            return
        there, before = needed_files_in(self.base), self._needed_files
        self._needed_files = there
        if before - there:
            gone = unkept_files(self.base, there)
            if gone:
                raise Violation(f"deleted, although a retained checkpoint needs them: {gone}")

    def _committed(self) -> int:
        runtime = Runtime(self.sink(None).settings, "life")
        try:
            state = runtime.coordinator.look()
            return position_of(state.position.user_position) if state else 0
        finally:
            runtime.close()

    def open_store(self, calls: PosixCalls | None) -> SingleThreadedStore:
        """A store on the base."""
        return SingleThreadedStore(str(self.base), calls=calls)

    def sink(self, calls: PosixCalls | None) -> FileSink:
        """A sink on the base."""
        staged: dict[str, Any] = {"format": "parquet", "columnar": "staged", "rolling": STAGED_ROLLING}
        options = staged if self._is_staged else {"rolling": ROLLING}
        if self._is_distinct:
            # Every run is a file, and runs of one age are merged in the next batch.
            options |= {"deduplicate": pf.Deduplicate("row"), "inline_threshold_bytes": 0}
        return make_sink(
            self.base,
            clock=lambda: self.now_ms,
            open_store=self._process(calls).open_store,
            consumers_take_files=self._has_consumer,
            **options,
        )

    def _disk_ms(self) -> int:
        """The clock of the disk: no two steps are at the same time."""
        return self.schedule.steps


def violation_of(seed: int, **kind: bool) -> str | None:
    """Run a job and return what has gone wrong, None if nothing has.

    Args:
        seed: Of everything that is drawn.
        kind: Which kind of job it is, as ``ModelJob`` is told.
    """
    try:
        ModelJob(seed, **kind).run()
    except Violation as violation:
        return f"seed {seed}: {violation}"
    return None
