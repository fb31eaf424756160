"""The supervisor of the flights demo: starts the Spark driver, kills it inside batches, starts it again."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from flights_source import FlightsSource

_POLL_S = 0.01
_FREEZE_S = 0.05
_FIRST_GUESS_S = 0.5
_LINES_OF_LOG = 30


@dataclass(frozen=True, slots=True)
class Job:
    """One stream into one sink."""

    sink: str
    source: FlightsSource
    output: Path
    checkpoint: Path
    log: Path

    @property
    def command(self) -> Sequence[str]:
        """The driver's command line: the same after every kill."""
        return (
            sys.executable,
            str(Path(__file__).with_name("flights_driver.py")),
            f"--sink={self.sink}",
            f"--source={self.source.files}",
            f"--files-per-batch={self.source.files_per_batch}",
            f"--output={self.output}",
            f"--checkpoint={self.checkpoint}",
        )


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL that is known to have landed inside a batch."""

    batch: int
    after_s: float
    """Seconds since the batch began."""


@dataclass(slots=True)
class Outcome:
    """What became of a job."""

    seconds: float = 0.0
    starts: int = 0
    batches: int = 0
    kills: list[Kill] = field(default_factory=list)


class BatchLog:
    """What Spark's checkpoint directory says about batches, read from outside.

    Spark writes ``offsets/N`` before it runs batch N and ``commits/N`` after it, so batch N is under way while the
    first is there and the second is not.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._commits = checkpoint / "commits"

    def committed(self) -> int:
        """Batches that are done."""
        return _newest(self._commits) + 1

    def running(self) -> int | None:
        """The batch under way, if there is one."""
        # In this order: a batch that ends between the two looks is not taken for a running one.
        planned, done = _newest(self._offsets), _newest(self._commits)
        return planned if planned > done else None

    def typical_seconds(self) -> float:
        """How long a batch takes, as far as is known."""
        done = range(max(0, self.committed() - 10), self.committed())
        lengths = [_written(self._commits / str(batch)) - _written(self._offsets / str(batch)) for batch in done]
        return statistics.median(lengths) if lengths else _FIRST_GUESS_S


class Supervisor:
    """Runs a job to its end, with a number of SIGKILLs at random instants inside batches spread over the stream.

    Args:
        job: What to run.
        kills: How often to kill its driver.
        rng: Chooses batches and instants.
    """

    def __init__(self, job: Job, *, kills: int, rng: random.Random) -> None:
        self._job = job
        self._rng = rng
        self._log = BatchLog(job.checkpoint)
        self._targets = choose_batches(len(job.source.batch_rows), kills, rng)
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Start the driver again and again until it ends by itself."""
        began = time.monotonic()
        rows = sum(self._job.source.batch_rows)
        with tqdm(total=rows, unit=" rows", desc=f"{self._job.sink:8}", smoothing=0.1) as bar:
            while True:
                self._outcome.starts += 1
                with _driver(self._job) as driver:
                    exit_code = self._watch(driver, bar)
                if exit_code == 0:
                    break
                if exit_code != -signal.SIGKILL:
                    raise SystemExit(_last_words(self._job, exit_code))
        self._outcome.seconds = time.monotonic() - began
        self._outcome.batches = self._log.committed()
        return self._outcome

    def _watch(self, driver: subprocess.Popen[bytes], bar: tqdm[None]) -> int:
        """Follow one life of the driver until it ends by itself or by our hand; returns its exit code."""
        while driver.poll() is None:
            self._show(bar)
            batch = self._log.running()
            if self._targets and batch is not None and batch >= self._targets[0]:
                delay_s = self._rng.random() * self._log.typical_seconds()
                kill = _kill_inside(driver, batch, self._log, delay_s)
                if kill is not None:
                    self._targets.pop(0)
                    self._outcome.kills.append(kill)
                    number = len(self._outcome.kills)
                    bar.write(f"SIGKILL {number} in batch {kill.batch}, {kill.after_s:.2f} s after it began")
            time.sleep(_POLL_S)
        self._show(bar)
        return driver.wait()

    def _show(self, bar: tqdm[None]) -> None:
        bar.update(sum(self._job.source.batch_rows[: self._log.committed()]) - bar.n)


def choose_batches(batches: int, kills: int, rng: random.Random) -> list[int]:
    """One batch for each kill, each at random in its own stretch of the stream, never the first or the last two."""
    bounds = [1 + (batches - 3) * kill // kills for kill in range(kills + 1)] if kills else []
    return [rng.randrange(start, end) for start, end in pairwise(bounds)]


def _kill_inside(driver: subprocess.Popen[bytes], batch: int, log: BatchLog, delay_s: float) -> Kill | None:
    """Wait, freeze the driver, and kill it if it is still inside that batch; else let it go on."""
    began = time.monotonic()
    while time.monotonic() - began < delay_s and driver.poll() is None:
        time.sleep(min(_POLL_S, delay_s))
    after_s = time.monotonic() - began
    if driver.poll() is not None:
        return None
    # Python and the JVM are one process group. Frozen, the batch cannot end between the look and the kill.
    os.killpg(driver.pid, signal.SIGSTOP)
    time.sleep(_FREEZE_S)
    if log.running() != batch:
        os.killpg(driver.pid, signal.SIGCONT)
        return None
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    return Kill(batch, after_s) if log.running() == batch else None


@contextmanager
def _driver(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    with job.log.open("ab") as log:
        driver = subprocess.Popen(job.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield driver
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def _newest(directory: Path) -> int:
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _last_words(job: Job, exit_code: int) -> str:
    lines = job.log.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:]
    return "\n".join([*lines, f"the driver of {job.sink} ended with exit code {exit_code}; its whole log: {job.log}"])
