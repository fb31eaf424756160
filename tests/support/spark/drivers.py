"""Spark drivers of the tests as process groups of their own, killed inside batches again and again."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from support.processes.deadline import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType


# A Spark driver of the tests as a process group of its own, so that its JVM and workers die with it.

PROGRAM = Path(__file__).parents[1] / "programs" / "kill_driver.py"
_DYING_WITH_US = (sys.executable, str(PROGRAM.with_name("die_with_owner.py")))
_LONGEST_RUN_S = 300

STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "distinct": {"deduplicate": "id", "options": {"inline_threshold_bytes": 0}},
}
"""Jobs of tests that are for any stream, by name: one remembers keys, in files."""


class Driver:
    """A running ``kill_driver.py``.

    Args:
        job: What it is to do.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        # Not a pipe: nothing reads it while the driver runs.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open for as long as the driver
        self.process = subprocess.Popen(
            [*_DYING_WITH_US, str(os.getpid()), sys.executable, str(PROGRAM), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")]),
            },
            start_new_session=True,
        )
        self._unread = b""

    def go(self, **changes: Any) -> None:
        """Let a driver begin that stands by; what is in ``changes`` takes the place of the same in its job."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(changes) + "\n")
        self.process.stdin.flush()

    def wait_for(self, word: str, timeout_s: float = _LONGEST_RUN_S) -> str | None:
        """Read lines until one begins with ``word``; None if the process ended first, or none did in time."""
        ends_at_s = time.monotonic() + timeout_s
        while (line := self._next_line(ends_at_s)) is not None:
            if line.startswith(word):
                return line
        return None

    def kill(self) -> list[str]:
        """SIGKILL to the driver, its JVM and its workers; returns the lines that were not read yet."""
        os.killpg(self.process.pid, signal.SIGKILL)
        return self._rest()

    def finish(self) -> str:
        """Wait for the end; returns the last line it said."""
        lines = self._rest()
        assert self.process.returncode == 0, self.last_words
        return lines[-1] if lines else ""

    def has_given_up(self) -> bool:
        """Wait for the end; whether it failed by itself, as one whose NameNode was away too long."""
        self._rest()
        return self.process.returncode != 0

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, however it ended."""
        return self.process.poll() is not None

    @property
    def last_words(self) -> str:
        """The end of what it complained of."""
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def _rest(self) -> list[str]:
        """Wait for the end; returns the lines that were not read yet."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        ends_at_s = time.monotonic() + _LONGEST_RUN_S
        lines = list(iter(lambda: self._next_line(ends_at_s), None))
        self.process.wait(max(0.0, ends_at_s - time.monotonic()))
        self.process.stdout.close()
        return lines

    def _next_line(self, ends_at_s: float) -> str | None:
        """The next line; None where there is none any more, or not in time."""
        assert self.process.stdout is not None
        # Not by the pipe's own readline, which cannot stop waiting.
        pipe = self.process.stdout.fileno()
        while b"\n" not in self._unread:
            is_readable, _, _ = select.select([pipe], [], [], max(0.0, ends_at_s - time.monotonic()))
            some = os.read(pipe, 1 << 16) if is_readable else b""
            if not some:
                return None
            self._unread += some
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().strip()


def copy_checkpoint(checkpoint: Path, copy: Path) -> None:
    """Copy the checkpoint of a driver whose Python is stopped: its JVM lives on, and still renames what it wrote."""
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*.tmp*"))


class Relay:
    """Drivers of one job, one after the other.

    While one works the next one starts and stands by: most of a short life is starting.

    Args:
        job: What each of them is to go on with.
        changes: Asked whenever one begins: what takes the place of the same in its job, except how its session is made.
    """

    def __init__(self, job: Mapping[str, Any], changes: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._job = {**job, "standby": True}
        self._changes = changes
        self._standby: Driver | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._standby is not None:
            self._standby.kill()

    def next(self, *, is_last: bool = False) -> Driver:
        """Let the driver that stands by begin, and start another one unless this is the last."""
        driver = self._standby or Driver(self._job)
        self._standby = None if is_last else Driver(self._job)
        driver.go(**self._changes())
        return driver


# One Spark stream whose drivers are killed inside batches again and again, with other mischief in between.

MOST_BATCHES_A_LIFE = 2
FIRST_GUESS_S = 0.5
ROWS_A_FILE = 12_500


@dataclass
class Chaos:
    """One stream and its drivers; remembers how long batches take, so that kills land inside them."""

    drivers: Relay
    rng: random.Random
    most_given_up: int
    """How many drivers may end by themselves, which a server that is away is reason for."""
    first_s: list[float] = field(default_factory=list)
    """How long the first batch of a life took, which restores as well."""
    later_s: list[float] = field(default_factory=list)
    driver_kills: int = 0
    """Inside a batch."""
    kills: int = 0
    """Of drivers, wherever they stood."""
    gave_up: int = 0
    broken_off: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a batch was under way that something was done to, in seconds since 1970."""

    def life(self, mischief: Callable[[Driver], object] | None = None) -> None:
        """One life of the driver, which ends inside its last batch by SIGKILL; the mischief is done in its first one.

        Args:
            mischief: Done inside the batch; the driver then ends that one, and is killed in a later one.
        """
        driver = self.drivers.next()
        batches = self.rng.randint(1 + (mischief is not None), MOST_BATCHES_A_LIFE)
        for number in itertools.count(1):
            line = driver.wait_for("begin")
            began, began_at = time.monotonic(), time.time()
            if line is None:
                self._note_given_up(driver)
                return
            batch = line.split()[1]
            known_s = self.first_s if number == 1 else self.later_s
            if number == 1 and mischief is not None:
                time.sleep(self._instant(self.first_s))
                mischief(driver)
                driver.wait_for(f"end {batch}")
            # A last one that is quicker than those before it has ended by that instant: then the next one is the last.
            elif driver.wait_for(f"end {batch}", self._instant(known_s) if number >= batches else _LONGEST_RUN_S):
                known_s.append(time.monotonic() - began)
                continue
            elif number >= batches:
                self.kills += 1
                self.driver_kills += f"end {batch}" not in driver.kill()
            self.broken_off.append((began_at, time.time()))
            if number >= batches:
                return

    def life_until(self, has_happened: Callable[[], bool]) -> None:
        """One life of the driver, which ends by SIGKILL as soon as something has happened."""
        driver, began_at = self.drivers.next(), time.time()
        wait_until(has_happened, "it has never happened in this life")
        assert not driver.has_ended, driver.last_words
        driver.kill()
        self.kills += 1
        self.broken_off.append((began_at, time.time()))

    def to_the_end(self) -> None:
        """Let the stream end."""
        assert self.drivers.next(is_last=True).finish() == "done"

    def _note_given_up(self, driver: Driver) -> None:
        self.gave_up += 1
        assert driver.has_given_up(), "the stream ended before all kills; make it longer"
        assert self.gave_up <= self.most_given_up, driver.last_words

    def _instant(self, known_s: list[float]) -> float:
        """A random instant of a batch, in seconds from its beginning."""
        return self.rng.uniform(0, statistics.median(known_s) if known_s else FIRST_GUESS_S)


# The Python workers of a Spark driver, to be killed while they run tasks.

_UNTIL_A_TASK_RUNS_AGAIN_S = 1.0
_WORKERS_RUN = "pyspark.worker"
"""In the command of each daemon, whichever it is, and of what it forks."""


@dataclass
class WorkerKills:
    """Kills Python workers of whatever driver it is called with.

    Args:
        rng: Draws which.
        most: How many a call kills at most, one after the other; a task may fail three times.
    """

    rng: random.Random
    most: int = 1
    done: int = 0

    def __call__(self, driver: Driver) -> None:
        """SIGKILL some of them, if there are any by now."""
        for number in range(self.rng.randint(1, self.most)):
            if number:
                time.sleep(self.rng.uniform(0, _UNTIL_A_TASK_RUNS_AGAIN_S))
            workers = list(python_workers(driver.process.pid))
            if workers:
                os.kill(self.rng.choice(workers), signal.SIGKILL)
                self.done += 1


def python_workers(driver: int) -> Iterator[int]:
    """The Python workers below a driver: forked by the daemon, and running what it runs."""
    parents = dict(_processes())
    for process, (parent, command) in parents.items():
        if _WORKERS_RUN in command and _WORKERS_RUN in parents.get(parent, (0, ""))[1]:
            above = parent
            while above in parents and above != driver:
                above = parents[above][0]
            if above == driver:
                yield process


def _processes() -> Iterator[tuple[int, tuple[int, str]]]:
    """Every process of the machine with its parent and its command."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(path.name), (parent, (path / "cmdline").read_text(errors="replace"))
            except OSError:
                continue  # It has ended meanwhile.
