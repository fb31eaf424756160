"""A pipeline: from one source through functions into a sink, exactly once, in one thread.

The sink's checkpoints are the job's. Each has the position of the source behind the rows that it holds, so that rows
and position are one atomic step. After a crash the source is opened at the position of the newest checkpoint.

Source: Flink's job with one task, as of 1.20.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from partfile.errors import CheckpointMismatch, ConfigError, Fenced, RecordError
from partfile.pipeline.dead_letters import DeadLetters
from partfile.quantities import duration_s
from partfile.sink.file_sink import FileSink
from partfile.sink.local import milliseconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import timedelta
    from types import FrameType

    from pydantic import JsonValue

    from partfile.pipeline.source import Source, SourceReader
    from partfile.sink.local import LocalSink
    from partfile.sink.progress import BatchProgress


logger = logging.getLogger("partfile")
_MOST_WAIT_S = 0.5
"""So long a read waits for rows, before the clock and signals are looked at."""
_MOST_DELAY_S = 24 * 60 * 60
_HOPELESS = (ConfigError, CheckpointMismatch, Fenced, RecordError)
"""Errors that a restart cannot mend."""


@dataclass(frozen=True, slots=True)
class Restart:
    """How often a job that failed begins again from its newest checkpoint, as Flink's fixed-delay strategy.

    Args:
        attempts: So many failures in a row; rows that count in between begin it anew.
        delay_s: From a failure to the next attempt; seconds, a ``timedelta`` or text such as ``"10s"``.

    Raises:
        ConfigError: An option cannot be used.
    """

    attempts: int = 0
    delay_s: float | str | timedelta = 1.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 0:
            raise ConfigError(f"Restart: attempts={self.attempts!r} is no number from 0 on", hint="Write attempts=3.")
        seconds = duration_s(self.delay_s)
        if seconds is None or seconds > _MOST_DELAY_S:
            raise ConfigError(f"Restart: delay_s={self.delay_s!r} is no time up to a day", hint="Write delay_s=10.")
        object.__setattr__(self, "delay_s", seconds)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, at a checkpoint that is complete."""

    job: str
    checkpoint: BatchProgress
    """What the sink has done at it."""
    rows: int
    """Rows that count, of all checkpoints of this run."""
    dead_letters: int
    """Records of this run that are no rows."""
    lag: Mapping[str, int]
    """How many rows are known to wait, by partition, or how many ``files``; empty where the source does not know."""
    restarts: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a run of a job has done."""

    rows: int
    """Rows that count: those that checkpoints of this run hold, without duplicates that the sink has left out."""
    dead_letters: int
    """Records that are no rows, and were written to files of their own."""
    checkpoints: int
    position: JsonValue
    """Where the source stands behind the last checkpoint."""
    restarts: int
    is_ended: bool
    """Whether the source has ended; False if the job was told to stop."""


class Pipeline:
    """A job. Describe it from the source to the sink, then run it.

    Args:
        name: Of the job.
        interval_s: From one checkpoint to the next: seconds, a ``timedelta`` or text such as ``"10s"``.
        restart: What to do where it fails; None raises the first error.
        on_progress: Called after each checkpoint, in the thread that runs the job. What it raises is logged, and never
            harms the job.

    Raises:
        ConfigError: An argument cannot be used.
    """

    def __init__(
        self,
        name: str,
        *,
        interval_s: float | str | timedelta = 10.0,
        restart: Restart | None = None,
        on_progress: Callable[[JobProgress], object] | None = None,
    ) -> None:
        given: object = name
        if not isinstance(given, str) or not given:
            raise ConfigError(f"a pipeline's name is {name!r}", hint="Write for instance pf.Pipeline('orders').")
        if restart is not None and not isinstance(restart, Restart):
            raise ConfigError(f"restart={restart!r} is no Restart", hint="Write restart=pf.Restart(attempts=3).")
        if on_progress is not None and not callable(on_progress):
            raise ConfigError(f"on_progress={on_progress!r} is no function", hint="Write on_progress=print.")
        try:
            interval_ms = milliseconds_of(interval_s)
        except ConfigError as error:
            message = error.message.replace("checkpoint_interval_s", "interval_s")
            raise ConfigError(message, hint="Write interval_s=10, a timedelta, or '1m'.") from None
        if interval_ms is None:
            raise ConfigError(f"{name}: interval_s is None, so that nothing would count", hint="Write interval_s=10.")
        self.name = name
        self.interval_s = interval_ms / 1000
        self._restart = restart or Restart()
        self.on_progress = on_progress
        self._source: Source | None = None
        self.functions: list[Callable[[Any], Any]] = []
        self._sink: FileSink | None = None
        self._dead_letters: FileSink | None = None
        # A flag and no Event: a signal handler that waits for a lock of the thread that it interrupts waits for ever.
        self._is_stopping = False
        self._running = threading.Lock()

    def source(self, source: Source, *, dead_letters: FileSink | None = None) -> Self:
        """Read from a source; a job has one.

        Args:
            source: What is read.
            dead_letters: Where records go that are no rows, with what is wrong with them; None ends the job at the
                first one.
        """
        if self._source is not None:
            raise ConfigError(f"{self.name}: there is a source already", hint="Write one call of job.source(SOURCE).")
        if isinstance(source, type) or not callable(getattr(source, "open", None)):
            raise ConfigError(f"{source!r} is no source", hint="Write for instance pf.IterableSource(ROWS).")
        if dead_letters is not None and not isinstance(dead_letters, FileSink):
            raise ConfigError(
                f"dead_letters={dead_letters!r} is no sink", hint="Write dead_letters=pf.FileSink(PATH, uid=NAME)."
            )
        self._source, self._dead_letters = source, dead_letters
        return self

    def map_batches(self, function: Callable[[Any], Any]) -> Self:
        """Make other rows of each batch that is read.

        A function takes what the source reads, a ``pyarrow.RecordBatch`` of Kafka and of dictionaries. It returns
        whatever a ``LocalSink`` takes but dictionaries: a record batch, a table, a frame of polars or pandas; with no
        rows in it, where none are to be written.

        It is called again for batches that come again after a failure, so that it has to make the same of the same.
        """
        if not callable(function):
            raise ConfigError(f"{function!r} is no function", hint="Write job.map_batches(FUNCTION).")
        if self._sink is not None:
            raise ConfigError(f"{self.name}: the sink is the last step", hint="Call map_batches() before sink().")
        self.functions.append(function)
        return self

    def sink(self, sink: FileSink) -> Self:
        """Write the rows to a sink; a job has one, and it is the last step."""
        if self._sink is not None:
            raise ConfigError(f"{self.name}: there is a sink already", hint="Write one call of job.sink(SINK).")
        if not isinstance(sink, FileSink):
            raise ConfigError(f"{sink!r} is no sink", hint="Write job.sink(pf.FileSink(PATH, uid=NAME)).")
        self._sink = sink
        return self

    def stop(self) -> None:
        """Have ``run`` end with a last checkpoint that publishes everything; any thread may, and a signal handler."""
        self._is_stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._is_stopping

    def run(self) -> JobResult:
        """Run until the source ends, or until it is told to stop: by ``stop``, SIGTERM or SIGINT.

        A SIGINT while it stops ends it at once, by KeyboardInterrupt: what has no checkpoint does not count.

        Raises:
            ConfigError: The job has no source or no sink, or runs already.
            CheckpointMismatch: The source does not continue what the newest checkpoint holds.
            Fenced: Another process has taken the sink over.
            RecordError: A record is no row, and the job has no dead letters.
            Exception: What the source, a function or the sink raised, once the restarts are used up.
        """
        if _DESCRIBED_ONLY:
            raise ConfigError(
                f"{self.name}: partfile run runs the job by itself",
                hint='Put the call below its own line: if __name__ == "__main__": job.run()',
            )
        source, sink = self._described()
        if not self._running.acquire(blocking=False):
            raise ConfigError(f"{self.name}: the job runs already", hint="Call job.stop() first.")
        try:
            with self._stopped_by_signals():
                return self._run(source, sink)
        finally:
            self._is_stopping = False
            self._running.release()

    def _described(self) -> tuple[Source, FileSink]:
        if self._source is None or self._sink is None:
            missing = "source" if self._source is None else "sink"
            raise ConfigError(f"{self.name}: the job has no {missing}", hint=f"Write job.{missing}({missing.upper()}).")
        if self._dead_letters is not None and self._dead_letters.settings.uid == self._sink.settings.uid:
            raise ConfigError(
                f"{self.name}: dead_letters has the uid of the rows, {self._sink.settings.uid!r}",
                hint="Give it one of its own: dead_letters=pf.FileSink(PATH, uid=ANOTHER)",
            )
        return self._source, self._sink

    def _run(self, source: Source, sink: FileSink) -> JobResult:
        told, failures = _Told(), 0
        while True:
            before = told.rows
            try:
                return self._attempt(source, sink, told)
            except _HOPELESS:
                raise
            except Exception as error:
                failures = failures + 1 if told.rows == before else 1
                if failures > self._restart.attempts or self.is_stopping:
                    raise
                told.restarts += 1
                logger.warning("%s: restart %d from its newest checkpoint, after: %s", self.name, told.restarts, error)
                self._wait(duration_s(self._restart.delay_s) or 0.0)

    def _wait(self, seconds: float) -> None:
        """Wait, unless the job is told to stop."""
        ends = time.monotonic() + seconds
        while not self.is_stopping and (left := ends - time.monotonic()) > 0:
            time.sleep(min(_MOST_WAIT_S, left))

    def _attempt(self, source: Source, sink: FileSink, told: _Told) -> JobResult:
        # The sinks are let go of first: a reader may wait for brokers that do not answer.
        with ExitStack() as readers, ExitStack() as sinks:
            dead_letters = None
            if self._dead_letters is not None:
                dead_letters = DeadLetters(self._dead_letters, sink.settings.uid)
                sinks.callback(self._close, "dead letters", dead_letters.close)
                dead_letters.open()
            out = sink.local()
            sinks.callback(self._close, "sink", out.close)
            out.open()
            if dead_letters is not None:
                dead_letters.begin_beside(out)
            reader = source.open(out.position, self.name, dead_letters)
            readers.callback(self._close, "source", reader.close)
            return _Attempt(self, out, dead_letters, told).run(reader)

    def _close(self, what: str, close: Callable[[], object]) -> None:
        """Let go of something; a failure must not hide why the job ends."""
        try:
            close()
        except Exception as error:  # noqa: BLE001 - of whatever a source is made.
            logger.warning("%s: its %s could not be closed: %s", self.name, what, error)

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT end the job; only the main thread of a process can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGINT and self._is_stopping:
                raise KeyboardInterrupt
            self._is_stopping = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                # A handler that is not Python's own is told as None, and cannot be given back.
                if handler is not None:
                    signal.signal(number, handler)


def _checked(rows: Any, whose: object) -> Any:
    """What a source or a function gives; raises ConfigError where it has no columns with types."""
    if not hasattr(rows, "__arrow_c_stream__") and not (hasattr(rows, "__arrow_c_array__") and hasattr(rows, "schema")):
        name = getattr(whose, "__name__", type(whose).__name__)
        raise ConfigError(
            f"{name} gives rows of type {type(rows).__name__}, which has no columns with types",
            hint="Return a pyarrow.RecordBatch or Table, or a frame. Where there is nothing to write, it has no rows: "
            "return rows.slice(0, 0)",
        )
    return rows


@dataclass(slots=True)
class _Told:
    """What the attempts of one run have done so far."""

    rows: int = 0
    dead_letters: int = 0
    checkpoints: int = 0
    restarts: int = 0


class _Attempt:
    """One way from the newest checkpoint to an end or a failure; its sinks are open.

    Args:
        job: What is run.
        out: Takes the rows.
        dead_letters: Takes records that are no rows; None where the job has no place for them.
        told: Is added to.
    """

    def __init__(self, job: Pipeline, out: LocalSink, dead_letters: DeadLetters | None, told: _Told) -> None:
        self._job = job
        self._out = out
        self._dead_letters = dead_letters
        self._told = told

    def run(self, reader: SourceReader) -> JobResult:
        """Read, apply, write, until the source ends or the job is told to stop; raises what fails on the way."""
        job, due_s = self._job, time.monotonic() + self._job.interval_s
        is_fresh = self._out.position is None
        while not (job.is_stopping or reader.is_ended):
            if is_fresh and reader.position is not None:
                # Where a job begins at the newest records, that place has to outlast a crash before its first rows.
                self._checkpoint(reader)
                is_fresh = False
            rows = reader.read(min(_MOST_WAIT_S, max(0.0, due_s - time.monotonic())))
            if rows is not None:
                is_fresh = False
                rows = _checked(rows, reader)
                for function in job.functions:
                    rows = _checked(function(rows), function)
                if reader.position is None:
                    raise ConfigError(
                        f"{job.name}: the source has no position behind rows that it has read",
                        hint="Return a JSON value, for instance position=lambda item: item['offset'].",
                    )
                self._out.write(rows, position=reader.position)
            is_full = self._dead_letters is not None and self._dead_letters.is_full
            if is_full or time.monotonic() >= due_s:
                self._checkpoint(reader)
                due_s = time.monotonic() + job.interval_s
        is_ended, told = reader.is_ended, self._told
        if self._dead_letters is not None:
            told.dead_letters += self._dead_letters.checkpoint()
        self._note(self._out.finish(reader.position), reader)
        if self._dead_letters is not None:
            self._dead_letters.confirm()
            self._dead_letters.finish()
        return JobResult(
            rows=told.rows,
            dead_letters=told.dead_letters,
            checkpoints=told.checkpoints,
            position=reader.position,
            restarts=told.restarts,
            is_ended=is_ended,
        )

    def _checkpoint(self, reader: SourceReader) -> None:
        """Dead letters first: the source passes over those that are ahead of the rows, and never the reverse."""
        if self._dead_letters is not None:
            self._told.dead_letters += self._dead_letters.checkpoint()
        self._note(self._out.checkpoint(reader.position), reader)
        if self._dead_letters is not None:
            self._dead_letters.confirm()

    def _note(self, done: BatchProgress, reader: SourceReader) -> None:
        """Tell the source, and the function that listens, of a checkpoint that is complete."""
        told, job = self._told, self._job
        told.rows += done.rows
        told.checkpoints += 1
        reader.confirm(reader.position)
        if job.on_progress is None:
            return
        try:
            job.on_progress(JobProgress(job.name, done, told.rows, told.dead_letters, dict(reader.lag), told.restarts))
        except Exception:
            logger.exception("%s: on_progress has failed; the job goes on", job.name)


_DESCRIBED_ONLY: list[bool] = []
"""Not empty while a file is loaded whose job another function runs."""


@contextmanager
def described_only() -> Iterator[None]:
    """Refuse ``Pipeline.run`` within the block: a program that describes a job is loaded, and run later."""
    _DESCRIBED_ONLY.append(True)
    try:
        yield
    finally:
        _DESCRIBED_ONLY.pop()
