"""The supervisor of the flights demos: starts the Spark driver, kills it and others inside batches, starts it again."""

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
from typing import TYPE_CHECKING, Protocol

from tqdm import tqdm

from partfile.stores.registry import open_store

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from flights_source import FlightsSource

MODES = ("start", "plain")
"""A query is started by ``sink.start``, or by plain ``writeStream.foreachBatch``."""
_NAP_S = 0.01
_FREEZE_S = 0.05
_FIRST_GUESS_S = 0.5
_LINES_OF_LOG = 30
_LOGGED_EACH_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """One stream into one sink."""

    sink: str
    source: FlightsSource
    output: str
    """Path or URL of the directory that the files go to."""
    checkpoint: str
    """Path or URL of Spark's checkpoint."""
    log: Path
    format: str = "json"
    """Of the files: ``json`` or ``parquet``."""
    mode: str = "start"
    """How the query is started; one of ``MODES``."""
    deduplicate: bool = False
    """Whether the sink is to leave out rows that came before."""

    @property
    def command(self) -> Sequence[str]:
        """The driver's command line: the same after every kill."""
        return (
            sys.executable,
            str(Path(__file__).with_name("flights_driver.py")),
            f"--sink={self.sink}",
            f"--source={self.source.files.as_uri()}",
            f"--files-per-batch={self.source.files_per_batch}",
            f"--output={self.output}",
            f"--checkpoint={self.checkpoint}",
            f"--format={self.format}",
            f"--mode={self.mode}",
            *(["--deduplicate"] if self.deduplicate else []),
        )


class Victim(Protocol):
    """A process that is killed while a batch is under way."""

    @property
    def name(self) -> str:
        """As it is told of."""

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill, with SIGKILL. The driver and all of its process group are frozen: kill it, or let it go on."""


class TheDriver:
    """The Spark driver itself, with its JVM and its workers."""

    name = "driver"

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill the process group, and wait until the driver is gone."""
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


@dataclass(frozen=True, slots=True)
class Kill:
    """One SIGKILL that is known to have landed inside a batch."""

    victim: str
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

    Args:
        checkpoint: Path or URL of the directory, on any store that partfile can open.
    """

    def __init__(self, checkpoint: str) -> None:
        self._store = open_store(checkpoint)

    def committed(self) -> int:
        """Batches that are done."""
        return max(self._written_ms("commits"), default=-1) + 1

    def running(self) -> int | None:
        """The batch under way, if there is one."""
        # In this order: a batch that ends between the two looks is not taken for a running one.
        planned, done = max(self._written_ms("offsets"), default=-1), self.committed() - 1
        return planned if planned > done else None

    def typical_seconds(self) -> float:
        """How long a batch takes, as far as is known."""
        began, ended = self._written_ms("offsets"), self._written_ms("commits")
        lengths = [ended[batch] - began[batch] for batch in sorted(ended)[-10:]]
        return statistics.median(lengths) / 1000 if lengths else _FIRST_GUESS_S

    def _written_ms(self, directory: str) -> dict[int, int]:
        """When the numbered files of a directory were written, by their numbers; temporary files mean nothing."""
        files = [(file.path.rpartition("/")[2], file.modified_at_ms) for file in self._store.list(directory)]
        return {int(name): written_ms for name, written_ms in files if name.isdigit()}


class Supervisor:
    """Runs a job to its end, with SIGKILLs at random instants inside batches spread over the stream.

    Args:
        job: What to run.
        victims: Whom to kill, in this order. After each one but the driver, the driver may end by itself once.
        rng: Chooses batches and instants.
        poll_s: How often to look at Spark's checkpoint, in seconds.
    """

    def __init__(self, job: Job, victims: Sequence[Victim], rng: random.Random, *, poll_s: float = 0.01) -> None:
        self._job = job
        self._rng = rng
        self._poll_s = poll_s
        self._log = BatchLog(job.checkpoint)
        self._targets = list(zip(victims, choose_batches(len(job.source.batch_rows), len(victims), rng), strict=True))
        self._excuses = 0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Start the driver again and again until it ends by itself."""
        began = time.monotonic()
        rows = sum(self._job.source.batch_rows)
        # In a file each look is a line that stays.
        interval_s = 0.1 if sys.stderr.isatty() else _LOGGED_EACH_S
        name = f"{self._job.sink:8}"
        with tqdm(total=rows, unit=" rows", desc=name, smoothing=0.1, mininterval=interval_s) as bar:
            while True:
                self._outcome.starts += 1
                with _driver(self._job) as driver:
                    exit_code = self._watch(driver, bar)
                if exit_code == 0:
                    break
                if exit_code != -signal.SIGKILL:
                    self._excuses -= 1
                    if self._excuses < 0:
                        raise SystemExit(_last_words(self._job, exit_code))
                    bar.write(f"the driver has ended by itself with exit code {exit_code}, and is started again")
        self._outcome.seconds = time.monotonic() - began
        self._outcome.batches = self._log.committed()
        return self._outcome

    def _watch(self, driver: subprocess.Popen[bytes], bar: tqdm[None]) -> int:
        """Follow one life of the driver until it ends by itself or by our hand; returns its exit code."""
        while driver.poll() is None:
            self._show(bar)
            batch = self._log.running()
            if self._targets and batch is not None and batch >= self._targets[0][1]:
                victim = self._targets[0][0]
                delay_s = self._rng.random() * self._log.typical_seconds()
                kill = _kill_inside(victim, driver, batch, self._log, delay_s)
                if kill is not None:
                    self._targets.pop(0)
                    self._outcome.kills.append(kill)
                    self._excuses += not isinstance(victim, TheDriver)
                    bar.write(_told(kill, len(self._outcome.kills)))
            time.sleep(self._poll_s)
        self._show(bar)
        return driver.wait()

    def _show(self, bar: tqdm[None]) -> None:
        bar.update(sum(self._job.source.batch_rows[: self._log.committed()]) - bar.n)


def choose_batches(batches: int, kills: int, rng: random.Random) -> list[int]:
    """One batch for each kill, each at random in its own stretch of the stream, never the first or the last two."""
    bounds = [1 + (batches - 3) * kill // kills for kill in range(kills + 1)] if kills else []
    return [rng.randrange(start, end) for start, end in pairwise(bounds)]


def _kill_inside(
    victim: Victim, driver: subprocess.Popen[bytes], batch: int, log: BatchLog, delay_s: float
) -> Kill | None:
    """Wait, freeze the driver, and kill the victim if the batch is still under way; let the driver go on if it can."""
    began = time.monotonic()
    while time.monotonic() - began < delay_s and driver.poll() is None:
        time.sleep(min(_NAP_S, delay_s))
    after_s = time.monotonic() - began
    if driver.poll() is not None:
        return None
    # Python and the JVM are one process group. Frozen, the batch cannot end between the look and the kill.
    os.killpg(driver.pid, signal.SIGSTOP)
    time.sleep(_FREEZE_S)
    if log.running() != batch:
        os.killpg(driver.pid, signal.SIGCONT)
        return None
    victim.kill(driver)
    # A commit that a dead driver had sent may have come after the look; one that lives goes on with its batch.
    is_inside = driver.poll() is None or log.running() == batch
    return Kill(victim.name, batch, after_s) if is_inside else None


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


def _told(kill: Kill, number: int) -> str:
    return f"SIGKILL {number} to the {kill.victim} in batch {kill.batch}, {kill.after_s:.2f} s after it began"


def _last_words(job: Job, exit_code: int) -> str:
    lines = job.log.read_text(errors="replace").splitlines()[-_LINES_OF_LOG:]
    return "\n".join([*lines, f"the driver of {job.sink} ended with exit code {exit_code}; its whole log: {job.log}"])
