"""The sink on a Spark driver, where a micro-batch is a checkpoint.

``SparkStream`` restores once a run, recognises batches that come again, writes, completes and publishes. Between two
batches its timer closes what is due. ``QueryWatch`` ends the sink with its query. ``StartedQuery`` waits for that.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import WeakValueDictionary

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQuery

from partfile.errors import ConfigError, Fenced, PartfileError, StoreError
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrency import AT_EXIT, wait_ms
from partfile.sink.coordinator import Runtime
from partfile.sink.deduplicate import check_runs, checked_kinds, known_kinds
from partfile.sink.progress import BatchProgress
from partfile.sink.report import progress_of, report
from partfile.sink.restore import RestoreTerms
from partfile.sink.restore_rules import (
    ReplayDecision,
    check_new_query,
    check_replay,
    check_same_keys,
    has_pending_output,
    is_no_others,
    position_after,
    second_call,
)
from partfile.sink.savepoints import reserved_savepoint
from partfile.sink.settings import check_hidden
from partfile.sink.spark.distinct import key_plan
from partfile.sink.spark.encode_job import staging_encoder
from partfile.sink.spark.identity import OffsetsLog, active_query, current_run, is_active, is_new_location
from partfile.sink.spark.write_job import (
    acknowledged_snapshots,
    check_columns,
    check_workers,
    hash_partitions,
    run_write_job,
)
from partfile.sink.states import QueryPosition
from partfile.snapshot.timer import Timer
from partfile.stores.registry import check_url, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from partfile.sink.coordinator import SinkCoordinator
    from partfile.sink.encode import StagingEncoder
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.savepoints import ReservedSavepoint
    from partfile.sink.settings import SinkSettings
    from partfile.sink.spark.distinct import KeyPlan
    from partfile.sink.spark.identity import QueryRun
    from partfile.sink.states import SeenKeys, StreamPosition
    from partfile.snapshot.storage import CheckpointStorage


logger = logging.getLogger("partfile")

_REPLAYED: dict[tuple[str, str], tuple[str, int]] = {}
"""By the directory of checkpoints and the uid: the run and the batch that was passed over last, since an earlier run
had completed it. A second call for it brings another DataFrame, maybe to another sink object of this uid."""


class StartedQuery(StreamingQuery):
    """A streaming query into a sink: Spark's ``StreamingQuery``, with a clean end and savepoints.

    However the query ends, the sink ends with it. In a ``with`` block that is waited for: a query that ends by itself
    (``availableNow``) may do so, any other is stopped between two batches, then the sink publishes its open parts. If
    the block or the query fails, nothing more is published now; the next run finalizes what completed checkpoints vouch
    for.

    What the sink or one of its tasks failed with is raised as a ``PartfileError``, from Spark's exception.

    Args:
        watch: Ends the sink when the query ends.
        stream: The sink's side of it.
        ends_itself: Whether the trigger lets the query end by itself.
    """

    def __init__(self, watch: QueryWatch, stream: SparkStream, *, ends_itself: bool) -> None:
        super().__init__(watch.query._jsq)  # noqa: SLF001 - Spark's classic queries are made of it alone
        self._query = watch.query
        self._watch = watch
        self._stream = stream
        self._ends_itself = ends_itself
        self._has_told_failure = False

    @property
    def query(self) -> StreamingQuery:
        """Spark's own object."""
        return self._query

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end of the query, as Spark's method of this name does.

        Args:
            timeout: Longest wait, in seconds; None waits to the end.

        Returns:
            Whether the query has ended; None without a timeout.

        Raises:
            PartfileError: The sink or one of its tasks failed the query.
            StreamingQueryException: The query failed for another reason.
        """
        with self._failure_told():
            return self._query.awaitTermination(timeout)

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all rows that the source has now are written, as Spark's method of this name does.

        Raises:
            PartfileError: The sink or one of its tasks failed the query.
            StreamingQueryException: The query failed for another reason.
        """
        with self._failure_told():
            self._query.processAllAvailable()

    def stop(self) -> None:
        """Stop the query, if possible between two batches, and end the sink cleanly.

        Raises:
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
            PartfileError: The sink or one of its tasks had failed the query, and no other call has raised it yet.
        """
        self._stream.wait_for_batch()
        self._query.stop()
        self.finish()
        # A batch that the stop interrupts fails, and the query does not.
        error = self._query.exception()
        if error is not None and self._watch.failure is not None and not self._has_told_failure:
            self._tell_failure(error)

    @contextmanager
    def _failure_told(self) -> Iterator[None]:
        try:
            yield
        except StreamingQueryException as error:
            self._tell_failure(error)

    def _tell_failure(self, error: StreamingQueryException) -> NoReturn:
        """Raise what the sink failed the query with; Spark's exception where the sink did not."""
        self._has_told_failure = True
        self._watch.raise_failure(error)

    def savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Take a savepoint between two batches; the query goes on.

        Args:
            directory: Where to make it; None takes the sink's ``savepoint_dir``.

        Returns:
            Its location, for ``restore_from``.

        Raises:
            ConfigError: There is no directory for it.
            PartfileError: No batch has come in this run yet, or a part could not be published.
            StoreError: The directory cannot be written; no savepoint was made.
        """
        return self._stream.savepoint(directory)

    def stop_with_savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Stop the query between two batches, publish everything, and take a savepoint: nothing is written after it.

        Go on with ``restore_from`` and the same Spark checkpoint.

        Args:
            directory: Where to make it; None takes the sink's ``savepoint_dir``.

        Returns:
            Its location.

        Raises:
            ConfigError: There is no directory for it; the query goes on.
            StoreError: The directory cannot be written. If that shows before the stop, the query goes on.
        """
        return self._stream.stop_with_savepoint(self._watch, directory)

    def finish(self) -> None:
        """Wait for the clean end of the sink once the query has ended: open parts are published, or kept (``on_stop``).

        Does nothing while the query is active. After it failed, nothing is published, and the sink is released. A run
        that no batch came to finalizes what the last completed checkpoint holds.

        Raises:
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        self._stream.finish_run(self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._ends_itself:
            try:
                if not self._has_told_failure:
                    self.awaitTermination()
            finally:
                self.finish()
        elif kind is None:
            self.stop()
            error = self._query.exception()
            if error is not None and not self._has_told_failure:
                self._tell_failure(error)
        elif issubclass(kind, KeyboardInterrupt):
            try:
                self.stop()
            except PartfileError as error:
                # The interrupt is what its user waits for.
                logger.warning("%s", error)
        else:
            if self._watch.failure is not None and not self._has_told_failure:
                logger.warning("the sink has failed the query: %s", self._watch.failure)
            try:
                with self._watch.dismissed():
                    self._query.stop()
            finally:
                self._stream.release()


class QueryWatch:
    """Waits for the end of one run of a query in a thread, and then ends the sink.

    No listener of Spark's does it: Spark drops events where their queue is full, and tells a listener of the queries of
    its own session alone, while a batch comes in a clone of it.

    Args:
        query: Spark's.
        end: Ends the sink with this run; called in the watch's thread.
    """

    def __init__(self, query: StreamingQuery, end: Callable[[QueryWatch], None]) -> None:
        self.query = query
        self.query_id = str(query.id)
        self.run_id = str(query.runId)
        self.is_dismissed = False
        """Whether another thread ends the sink with this run, instead of the watch."""
        self.has_ended_sink = False
        self.failure: PartfileError | None = None
        """What the sink or one of its tasks failed the last batch with."""
        self._end = end
        self._error: BaseException | None = None
        self._process_id = os.getpid()
        self._thread = threading.Thread(target=self._run, name="partfile-query-watch", daemon=True)
        AT_EXIT.add(self.wait_at_exit)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the query goes on; one whose JVM does not answer does not."""
        try:
            return bool(self.query.isActive)
        except Exception as error:  # noqa: BLE001 - whatever Py4J raises when the JVM is gone
            logger.debug("query %s: %s", self.query_id, error)
            return False

    @property
    def has_succeeded(self) -> bool:
        """Whether the query has ended without an error."""
        try:
            return self.query.exception() is None
        except Exception as error:  # noqa: BLE001 - whatever Py4J raises when the JVM is gone: the query was killed
            logger.warning("query %s: Spark's JVM is gone: %s", self.query_id, error)
            return False

    def raise_failure(self, error: StreamingQueryException) -> NoReturn:
        """Raise what the sink failed the query with, from Spark's exception, or that one if the sink did not.

        Args:
            error: What Spark ended the query with.
        """
        failure = self.failure
        if failure is None:
            raise error
        # A copy, for the stored error keeps its own cause: what storage or Spark's job raised.
        error.__cause__ = failure
        raise copy.copy(failure) from error

    @contextmanager
    def dismissed(self) -> Iterator[None]:
        """Stop the query in this block, and end the sink after it; if the stop fails, the watch ends the sink."""
        self.is_dismissed = True
        try:
            yield
        except BaseException:
            self.is_dismissed = False
            if not self._thread.is_alive():
                # It found itself dismissed.
                self._end(self)
            raise

    def check_end(self) -> None:
        """Wait for the end of the sink if the query has ended; a failure of it is raised once.

        Raises:
            PartfileError: What kept the sink from a clean end.
        """
        if os.getpid() != self._process_id or self.is_active or threading.current_thread() is self._thread:
            return
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait_at_exit(self) -> None:
        """Wait for the end of the sink if the query has ended; one that is active ends with this process."""
        if self.is_active:
            logger.warning(
                "query %s is active while Python exits: what is open in its sink stays hidden until the next start",
                self.query_id,
            )
        else:
            self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(Exception):  # What ended the query, or that the JVM is gone.
                self.query.awaitTermination()
            self._end(self)
        except PartfileError as error:
            self._error = error
            logger.warning("%s", error)
        except BaseException as error:
            self._error = error
            logger.exception("the clean end of query %s failed; a later start, or recover, does it", self.query_id)
        finally:
            AT_EXIT.discard(self.wait_at_exit)


class SparkStream:
    """One sink on a Spark driver. Batches, the idle timer and the clean end take one mutex.

    Args:
        settings: The sink's options.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._mutex = threading.RLock()
        self._session: SparkSession | None = None
        """Of the query: its jobs encode what no task of a batch has."""
        self._runtime: Runtime | None = None
        """Of the epoch; None if there is none."""
        self._run: QueryRun | None = None
        """The run of the query that a batch has begun an epoch for; it outlives an epoch that storage has ended."""
        self._timer: Timer | None = None
        """Of that run."""
        self._failed_ticks = 0
        """Ticks in a row in which storage failed."""
        self._encoder: Callable[[CheckpointStorage, StagingEncoder], StagingEncoder] | None = None
        """Made in the thread of the query's batches, for all epochs of its run: it knows which jobs failed."""
        self._encoder_run: QueryRun | None = None
        self._last_epoch: int | None = None
        """Held by this driver, now or before."""
        self._takeovers: frozenset[str] = frozenset()
        """Nonces of takeovers tried after that one was held: the store may have made one and not said so."""
        self._fenced: tuple[QueryRun, Fenced] | None = None
        """The run that was fenced between two batches: it must stop, and not begin a new epoch."""
        self._offsets = OffsetsLog()
        self._checked_columns: tuple[StructType | None, pa.Schema | None] = (None, None)
        """Schema of the last stream or batch that passed the check, so that equal batches are not checked again, and
        that of its record batches."""
        self._checked_application: str | None = None
        """Id of the Spark application whose workers passed the check."""
        self._watch: QueryWatch | None = None
        """Of the last run that was seen."""
        self._watches: WeakValueDictionary[str, QueryWatch] = WeakValueDictionary()
        """By the run that they watch."""
        self._watch_lock = threading.Lock()
        self._begun_run_id: str | None = None
        """The last run that a batch has begun an epoch for, until the sink ends with it."""
        self._batch_thread: threading.Thread | None = None
        """That Spark calls for the batches of the last run."""

    def foreach_batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch and complete its checkpoint, unless an earlier run has completed it.

        Any failure ends the epoch; the next batch restores.

        Raises:
            CheckpointMismatch: The query or batch does not continue what the sink holds, this run has completed the
                batch already, or ``on_schema_change`` does not let its columns pass; nothing was written.
            ConfigError: The bucketer cannot work on the columns, or there are none, or Spark's Python workers cannot
                import this version of partfile; nothing was written.
            Fenced: Another driver has taken the sink over.
            UnsupportedTypeError: The format has no form for a column; no job was run.
        """
        run = current_run(df.sparkSession)
        watch = self._watch
        if watch is None or watch.run_id != run.run_id:
            watch = self._watch_query(active_query(df.sparkSession, run))
        try:
            schema = self._check_columns(df)
            self._check_workers(df)
            self._write_batch(df, run, batch_id, schema)
        except PartfileError as error:
            watch.failure = error
            raise

    def _write_batch(self, df: DataFrame, run: QueryRun, batch_id: int, schema: pa.Schema) -> None:
        self._session, self._batch_thread = df.sparkSession, threading.current_thread()
        batch = QueryPosition(
            query_id=run.query_id,
            batch_id=batch_id,
            offsets_digest=self._offsets.digest(df.sparkSession, run, batch_id),
            run_id=run.run_id,
        )
        with self._mutex:
            self._check_fence(run)
            try:
                self._batch(df, run, batch, schema)
            except BaseException:
                # Whatever was decided may or may not have happened; only a restore can tell.
                self._end_epoch()
                raise

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint_location: str,
        trigger: Mapping[str, Any],
        query_name: str | None,
        options: Mapping[str, str] | None,
    ) -> StartedQuery:
        """Start a query with a clean end bound to it; the arguments are those of ``FileSink.start``.

        Raises:
            ConfigError: ``df`` is no streaming DataFrame of a classic session; the bucketer cannot work on its columns;
                the trigger is none of Spark's; the Python workers cannot import this version of partfile; ``options``
                name the checkpoint location as well; or it lies visibly below the base, where readers would take
                Spark's files for data. No query was started.
            UnsupportedTypeError: The format has no form for a column; no query was started.
            CheckpointMismatch: ``on_schema_change`` does not let the columns pass, or the checkpoint location is new
                and another query has written the sink; no query was started.
            SnapshotCorrupt, StoreError: What they are to follow cannot be read; no query was started.
        """
        self._check_stream(df)
        schema = self._check_columns(df)
        for option, value in (("checkpoint_location", checkpoint_location), ("query_name", query_name)):
            may_be_left_out = option == "query_name" and value is None
            if not may_be_left_out and not (isinstance(value, str) and value):
                raise ConfigError(f"{option}={value!r} is no text, or empty", hint=f"Write {option}='NAME'.")
        self._check_location(checkpoint_location)
        if "checkpointlocation" in {name.lower() for name in options or {}}:
            raise ConfigError(
                "options name a checkpointLocation besides checkpoint_location",
                hint="Pass the directory by itself: checkpoint_location=DIRECTORY",
            )
        self._check_position(df, schema, checkpoint_location)
        self._check_workers(df)
        self._session, self._encoder = df.sparkSession, None
        writer = df.writeStream.foreachBatch(self.foreach_batch).option("checkpointLocation", checkpoint_location)
        for name, value in (options or {}).items():
            writer = writer.option(name, value)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger:
            writer = _triggered(writer, trigger)
        ends_itself = any(trigger.get(name) for name in ("availableNow", "once"))
        return StartedQuery(self._watch_query(writer.start()), self, ends_itself=ends_itself)

    def wait_for_batch(self) -> None:
        """Wait until no batch is being written."""
        with self._mutex:
            return

    def finish(self, query_id: str) -> None:
        """End cleanly: publish every open part, or keep them all (``on_stop``), and release the sink.

        If no batch came, or the stop interrupted one, a restore first finalizes what the last completed checkpoint
        holds.

        Args:
            query_id: The query that has ended.

        Raises:
            Fenced: Another driver has taken the sink over; it publishes what is left.
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        with self._mutex:
            try:
                self._check_fence()
                runtime = self._runtime or self._go_on(lambda left: has_pending_output(left, query_id))
                if runtime is not None:
                    keep = self._settings.on_stop == "keep"
                    done = runtime.coordinator.close_all(self._settings.now_ms(), keep=keep)
                    if done is not None:
                        self._tell(progress_of(self._settings.uid, runtime.coordinator, done))
                    if not keep:
                        runtime.coordinator.check_all_is_visible()
                        runtime.coordinator.discard_staging_files(self._settings.now_ms())
            finally:
                self.release()

    def _check_stream(self, df: object) -> None:
        told = f"a {type(df).__name__}"
        if isinstance(df, ClassicDataFrame):
            if df.isStreaming:
                return
            told = "a DataFrame that is no stream"
        elif type(df).__module__.startswith("pyspark.sql.connect."):
            raise ConfigError(
                f"{self._settings.uid}: partfile does not work with Spark Connect, which does not tell it the query",
                hint="Run the driver in a classic session: SparkSession.builder.master(...), not .remote(...).",
            )
        raise ConfigError(
            f"{self._settings.uid}: start() needs a streaming DataFrame of Spark, not {told}",
            hint="Read it by spark.readStream; to write rows without a stream, use sink.local().",
        )

    def _check_location(self, checkpoint_location: str) -> None:
        """Refuse a directory for Spark's checkpoints whose files would be taken for data, or for this sink's own."""
        if checkpoint_location.startswith("~"):
            raise ConfigError(
                f"checkpoint_location={checkpoint_location!r} begins with ~, which only a shell makes a home directory",
                hint=f"Write checkpoint_location={str(Path(checkpoint_location).expanduser())!r}.",
            )
        if not _is_served(checkpoint_location):
            return
        base, storage_options = self._settings.base, self._settings.storage_options
        check_hidden(checkpoint_location, base, "checkpoint_location", storage_options)
        own = self._settings.checkpoint_url
        inside = path_inside(checkpoint_location, own, self._settings.checkpoint_options)
        if inside is not None and inside[:1] in {(), (self._settings.uid,)}:
            raise ConfigError(
                f"checkpoint_location={checkpoint_location!r} lies among the sink's own checkpoints, in {own!r}",
                hint=f"Choose another directory, for instance checkpoint_location={base.rstrip('/') + '/_spark'!r}.",
            )

    def _check_columns(self, df: DataFrame) -> pa.Schema:
        """Refuse columns that the tasks cannot write; equal ones are checked once.

        Returns:
            The schema of the record batches that a task gets.
        """
        checked, schema = self._checked_columns
        if schema is None or df.schema != checked:
            schema = check_columns(df, self._settings)
            self._checked_columns = (df.schema, schema)
        return schema

    def _check_position(self, df: DataFrame, schema: pa.Schema, checkpoint_location: str) -> None:
        """Refuse what must not follow the newest checkpoint, by a look that fences no other driver.

        Spark notes at the start of a new query where it begins, for good. So another query than the sink's is refused
        before that.
        """
        settings, is_new = self._settings, is_new_location(df.sparkSession, checkpoint_location)
        if settings.on_schema_change == "roll" and settings.deduplicate is None and not is_new:
            return
        runtime = Runtime(settings, settings.uid)
        try:
            left = runtime.coordinator.look()
        finally:
            runtime.close()
        if left is None:
            return
        if is_new:
            check_new_query(settings.uid, left.position.query, settings.rules)
        if settings.on_schema_change != "roll":
            settings.row_schema_after(left.position.row_schema, schema)
        if settings.restore_from is None:
            # With one, the sink may begin with other keys: the first batch compares with those.
            check_same_keys(settings, settings.uid, left.position.seen_keys, settings.deduplicate)
            self._kinds(left.position, schema)

    def _check_workers(self, df: DataFrame) -> None:
        """Refuse workers without this partfile; those of one application are checked once."""
        application = df.sparkSession.sparkContext.applicationId
        if application != self._checked_application:
            check_workers(df.sparkSession)
            self._checked_application = application

    def finish_run(self, watch: QueryWatch | None = None) -> None:
        """Wait for the end of the sink if a run has ended; does nothing in a batch of the query, which has not.

        Args:
            watch: Of a run that ``start`` began, to which maybe no batch came; None takes the last run with a batch.

        Raises:
            PartfileError: What kept the sink from a clean end.
        """
        of = watch or self._watch
        if of is None or of.is_active or threading.current_thread() is self._batch_thread:
            return
        if self._mutex._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 - the watch would wait for this thread
            self._end(of)
        else:
            of.check_end()
        with self._mutex:
            is_others = self._begun_run_id not in {None, of.run_id}
            if watch is not None and not (watch.has_ended_sink or watch.is_dismissed or is_others):
                self._end_with(watch)

    def _watch_query(self, query: StreamingQuery) -> QueryWatch:
        """Watch a run of a query for its end; there is one watch a run."""
        with self._watch_lock:
            watch = self._watches.get(str(query.runId)) or QueryWatch(query, self._end)
            self._watch = self._watches[watch.run_id] = watch
            return watch

    def _end(self, watch: QueryWatch) -> None:
        """End the sink with a run that has begun an epoch of it; a later run, or what stops the query, may have it."""
        with self._mutex:
            if not watch.is_dismissed and self._begun_run_id == watch.run_id:
                self._end_with(watch)

    def _end_with(self, watch: QueryWatch) -> None:
        watch.has_ended_sink, self._begun_run_id = True, None
        if watch.has_succeeded:
            self.finish(watch.query_id)
        else:
            self.release()

    def savepoint(self, directory: str | os.PathLike[str] | None) -> str:
        """Publish everything between two batches, take a savepoint, and go on.

        Args:
            directory: Where to make it; None takes ``savepoint_dir``.

        Returns:
            Its location.

        Raises:
            ConfigError: There is no directory for it.
            Fenced: Another driver has taken the sink over.
            PartfileError: No batch has come in this run yet, or a part could not be published.
            StoreError: Storage failed; no savepoint was made.
        """
        with self._mutex:
            self._check_fence()
            if self._runtime is None and self._run is not None and self._timer is not None:
                # Storage failed in a tick of the timer, and the next one may be minutes away or never come.
                self._go_on_with(self._run, lambda _left: True)
                self._timer.set(self._after(self._check_interval_ms))
            if self._runtime is None:
                raise PartfileError(
                    f"sink {self._settings.uid!r} has no query that runs and has written a batch: nothing to save",
                    hint=(
                        "Ask after the query's first batch and before its end, or by stop_with_savepoint(); in "
                        "plain Python ask the LocalSink."
                    ),
                )
            with reserved_savepoint(self._settings, self._settings.uid, directory) as reserved:
                return self._savepoint(self._runtime, reserved, ends_the_job=False)

    def stop_with_savepoint(self, watch: QueryWatch, directory: str | os.PathLike[str] | None) -> str:
        """Stop a query between two batches, publish everything, take a savepoint, and release the sink.

        Args:
            watch: Of the query.
            directory: Where to make it; None takes ``savepoint_dir``.

        Returns:
            Its location.

        Raises:
            ConfigError: There is no directory for it; the query goes on.
            Fenced: Another driver has taken the sink over.
            PartfileError: The query has failed, or the sink holds another query's rows, or a part could not be
                published.
            StoreError: The directory cannot be written, or the last checkpoint. Before the stop, the query goes on.
        """
        uid, query = self._settings.uid, watch.query
        with reserved_savepoint(self._settings, uid, directory) as reserved:
            self.wait_for_batch()
            with watch.dismissed():
                query.stop()
            with self._mutex:
                try:
                    self._check_fence()
                    runtime = self._runtime
                    if runtime is None and query.exception() is None:
                        # No batch came to it in this run, or its last batch was lost.
                        runtime = self._go_on(lambda left: is_no_others(left, str(query.id)))
                    failure = query.exception()
                    if runtime is None and failure is not None and watch.failure is not None:
                        watch.raise_failure(failure)
                    if runtime is None:
                        raise PartfileError(
                            f"query {query.id} has failed, or sink {uid!r} holds the rows of another query",
                            hint=(
                                "Start the query again by sink.start(df, checkpoint_location=DIRECTORY), let it "
                                "write a batch, then ask for the savepoint."
                            ),
                        )
                    return self._savepoint(runtime, reserved, ends_the_job=True)
                finally:
                    self.release()

    def _savepoint(self, runtime: Runtime, reserved: ReservedSavepoint, *, ends_the_job: bool) -> str:
        try:
            runtime.coordinator.close_all(self._settings.now_ms())
        except BaseException:
            # The timer stays: an idle stream has no next batch that would restore.
            self._lose_epoch()
            raise
        return reserved.complete(runtime.coordinator, self._settings.now_ms(), ends_the_job=ends_the_job)

    def release(self) -> None:
        """Let go of everything without a clean end; the next run restores, maybe in another session."""
        with self._mutex:
            self._end_epoch()
            self._encoder = None

    def _check_fence(self, run: QueryRun | None = None) -> None:
        """Refuse to go on in a run that was fenced; a query that was started again is another run."""
        if self._fenced is not None and run in {None, self._fenced[0]}:
            raise self._fenced[1]

    def _batch(self, df: DataFrame, run: QueryRun, batch: QueryPosition, schema: pa.Schema) -> None:
        restore_ms = self._restore(run, batch, schema) if self._runtime is None or run != self._run else 0.0
        runtime = self._live()
        stands = runtime.coordinator.state.position
        if self._check_replay(stands, run, batch) is ReplayDecision.REPLAY:
            _REPLAYED[self._settings.checkpoint_url, self._settings.uid] = (run.run_id, batch.batch_id)
            done = runtime.coordinator.publish_owed(self._settings.now_ms())
            self._tell(
                BatchProgress(
                    uid=self._settings.uid,
                    query_id=batch.query_id,
                    batch_id=batch.batch_id,
                    checkpoint_id=runtime.coordinator.newest_checkpoint_id,
                    replayed=True,
                    parts_finished=done.published if done else 0,
                    restore_ms=restore_ms,
                )
            )
            return
        row_schema = self._settings.row_schema_after(stands.row_schema, schema)
        kinds = self._kinds(stands, schema)
        now_ms = self._settings.now_ms()
        began = stopwatch_ms()
        triggered = runtime.coordinator.trigger(now_ms)
        hashed = hash_partitions(df, self._settings, stands)
        keys = self._key_plan(stands, kinds, hashed, triggered.time_ms)
        try:
            acknowledged = run_write_job(df, self._settings, runtime, triggered, keys or hashed)
            write_ms = stopwatch_ms() - began
            snapshots = acknowledged_snapshots(runtime, triggered, acknowledged)
        except Exception:
            # A driver that took the sink over takes the names of open parts as well, and the tasks fail for that; it
            # also deletes checkpoints, and what tasks have written for one of the same id.
            with suppress(StoreError):
                runtime.coordinator.check_fence()
            raise
        # A batch without rows says nothing of the columns of rows.
        has_rows = any(one.rows for one in acknowledged)
        changed: dict[str, object] = {"hash_partitions": hashed}
        changed["row_schema"] = row_schema if has_rows else stands.row_schema
        answers = [one.keys for one in acknowledged if one.keys is not None]
        if keys is not None:
            changed["seen_keys"] = keys.after(answers, triggered.checkpoint_id)
        position = position_after(stands, batch).model_copy(update=changed)
        done = runtime.coordinator.complete(triggered, snapshots, position)
        told = progress_of(
            self._settings.uid,
            runtime.coordinator,
            done,
            snapshots,
            batch_id=batch.batch_id,
            rows=sum(one.rows for one in acknowledged),
            added_bytes=sum(one.bytes for one in acknowledged),
            duplicates=sum(one.duplicates for one in answers),
        )
        self._tell(told.model_copy(update={"restore_ms": restore_ms, "write_ms": write_ms}))

    def _kinds(self, stands: StreamPosition, schema: pa.Schema) -> tuple[str, ...]:
        """The kinds of values of the key's columns, none without keys; raises what ``checked_kinds`` does."""
        options, seen, uid = self._settings.deduplicate, stands.seen_keys, self._settings.uid
        before = known_kinds(seen)
        return () if options is None else checked_kinds(schema, self._settings, options, uid, before)

    def _key_plan(
        self, stands: StreamPosition, kinds: tuple[str, ...], partitions: int | None, now_ms: int
    ) -> KeyPlan | None:
        options = self._settings.deduplicate
        if options is None or partitions is None:
            return None
        planned = key_plan(options, partitions, stands.seen_keys, kinds, now_ms)
        uid = self._settings.uid
        return replace(planned, sink=uid, forget_command=self._settings.forget_command(uid))

    def _check_replay(self, stands: StreamPosition, run: QueryRun, batch: QueryPosition) -> ReplayDecision:
        """Decide about a batch by where the sink stands, and by Spark's own record where the batch id skips others."""

        def is_copied(batch_id: int) -> bool:
            return self._session is not None and self._offsets.is_copied(self._session, run, batch_id)

        decision = check_replay(self._settings.uid, stands, batch, self._settings.rules, is_copied)
        replayed = _REPLAYED.get((self._settings.checkpoint_url, self._settings.uid))
        if decision is ReplayDecision.REPLAY and replayed == (run.run_id, batch.batch_id):
            raise second_call(self._settings.uid, batch)
        return decision

    def _restore(self, run: QueryRun, batch: QueryPosition, schema: pa.Schema) -> float:
        """Begin an epoch for this run; raises before anything is changed if the run may not go on."""

        def check(stands: StreamPosition) -> None:
            if self._check_replay(stands, run, batch) is not ReplayDecision.REPLAY:
                self._settings.row_schema_after(stands.row_schema, schema)
                self._kinds(stands, schema)

        began = stopwatch_ms()
        self._end_epoch()
        if self._encoder is None or run != self._encoder_run:
            self._encoder, self._encoder_run = staging_encoder(self._settings, self._session), run
        self._begin(RestoreTerms(restore_from=self._settings.restore_from), check)
        self._run, self._fenced, self._failed_ticks = run, None, 0
        self._begun_run_id = run.run_id
        self._timer = Timer(partial(self._tick, run), self._settings.clock, name="partfile-idle-timer")
        self._timer.set(self._after(self._check_interval_ms))
        return stopwatch_ms() - began

    def _go_on_with(self, run: QueryRun, is_wanted: Callable[[SinkSnapshot | None], bool]) -> Runtime | None:
        """Begin an epoch for a run that lost its last one between two batches; not if the query has ended."""
        return self._go_on(is_wanted) if is_active(self._session, run) else None

    def _go_on(self, is_wanted: Callable[[SinkSnapshot | None], bool]) -> Runtime | None:
        """Begin an epoch after the last one of this driver, if the newest checkpoint is as wanted.

        Args:
            is_wanted: Judges what the newest checkpoint holds; None if there is none.

        Returns:
            None if the newest checkpoint is not as wanted.

        Raises:
            Fenced: Another driver has begun an epoch since then; only what this driver left is ended here.
        """
        # No older checkpoint is gone back to: only a batch shows whether Spark has gone back as well.
        terms = RestoreTerms(succeeding=self._last_epoch, own_takeovers=self._takeovers)
        return self._begin(terms, lambda _stands: None, is_wanted)

    def _begin(
        self,
        terms: RestoreTerms,
        check: Callable[[StreamPosition], None],
        is_wanted: Callable[[SinkSnapshot | None], bool] | None = None,
    ) -> Runtime | None:
        """Begin an epoch, and remember which, or the takeovers by which one may have been begun.

        Args:
            terms: How it is begun.
            check: Raises if the sink must not go on from that position.
            is_wanted: Says whether to begin at all; None always does, without a look at the newest checkpoint.

        Returns:
            None if none was wanted.
        """
        encoder = self._encoder or staging_encoder(self._settings, self._session)
        runtime = Runtime(self._settings, self._settings.uid, encoder=encoder)
        try:
            if is_wanted is None or is_wanted(runtime.coordinator.look()):
                # A driver that goes on after itself has checked them, and its tasks have made the others.
                check_keys = partial(self._check_keys, runtime, reads_runs=terms.succeeding is None)
                runtime.coordinator.start(check, self._settings.now_ms(), terms, open_keys=check_keys)
                # Also of a driver that has nothing to write yet: a free marker tells recover that there is none.
                runtime.storage.store.hold_marker(runtime.marker_path)
                self._runtime = runtime
        finally:
            self._note(runtime.coordinator)
            if self._runtime is not runtime:
                runtime.close()
        return self._runtime

    def _check_keys(self, runtime: Runtime, seen: SeenKeys | None, *, reads_runs: bool) -> None:
        """Refuse to go on without the keys of the rows so far, before there is a takeover.

        Raises:
            CheckpointMismatch: This run deduplicates by others, or not at all.
            SnapshotCorrupt: A run is missing or damaged.
        """
        settings = self._settings
        check_same_keys(settings, runtime.job, seen, settings.deduplicate, settings.restore_from)
        if reads_runs:
            ttl_ms = None if settings.deduplicate is None else settings.deduplicate.ttl_ms
            check_runs(settings, ttl_ms, runtime.storage, seen)

    def _note(self, coordinator: SinkCoordinator) -> None:
        """Take in which epoch a coordinator has begun, or the takeovers by which it may have begun one."""
        if coordinator.held_epoch is None:
            self._takeovers |= coordinator.attempted_takeovers
        else:
            self._last_epoch, self._takeovers = coordinator.held_epoch, frozenset()

    def _tick(self, run: QueryRun) -> int | None:
        """Close what is due between two batches, because an idle stream makes no calls; skipped while a batch runs.

        Args:
            run: Of the query that the parts are of.

        Returns:
            When the next tick is due, in milliseconds since 1970; None if there is none before the next batch.
        """
        if not self._mutex.acquire(blocking=False):
            return self._after(self._check_interval_ms)
        uid = self._settings.uid
        try:
            goes_on = self._close_due(run)
        except Fenced as error:
            logger.error("%s: fenced, the idle timer ends, and this query with its next batch: %s", uid, error)  # noqa: TRY400 - no trace needed
            self._fenced = (run, error)
            self._end_epoch()
        except StoreError as error:
            # It is unknown what was applied, and an idle stream has no next batch that would restore.
            self._lose_epoch()
            self._failed_ticks += 1
            left_ms = wait_ms(self._failed_ticks, self._check_interval_ms)
            logger.warning("%s: the idle timer failed, and tries again in %.1f s: %s", uid, left_ms / 1000, error)
            return self._after(left_ms)
        except Exception:
            logger.exception("%s: the idle timer failed; the next batch restores", uid)
            self.release()
        else:
            self._failed_ticks = 0
            if goes_on:
                return self._after(self._check_interval_ms)
            logger.info("%s: the idle timer ends: nothing is left, or the query has ended", uid)
        finally:
            self._mutex.release()
        return None

    def _close_due(self, run: QueryRun) -> bool:
        """Close idle and aged parts, in a new epoch if a failure has ended the last one.

        Returns:
            False if there is nothing to come again for before the next batch.

        Raises:
            Fenced: Another driver has taken the sink over.
            StoreError: Storage failed; what was decided may or may not have happened.
        """
        runtime = self._runtime or self._go_on_with(run, lambda left: has_pending_output(left, run.query_id))
        if runtime is None:
            return False
        done = runtime.coordinator.close_due(self._settings.now_ms())
        if done is not None:
            self._tell(progress_of(self._settings.uid, runtime.coordinator, done))
        return True

    @property
    def _check_interval_ms(self) -> int:
        return round(self._settings.rolling.check_interval_s * 1000)

    def _after(self, left_ms: int) -> int:
        return self._settings.now_ms() + left_ms

    def _lose_epoch(self) -> None:
        """Let go of the epoch: it is unknown what was applied. The timer comes again."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            self._note(runtime.coordinator)
            runtime.close()

    def _end_epoch(self) -> None:
        timer, self._timer, self._run = self._timer, None, None
        if timer is not None:
            timer.stop()
        self._lose_epoch()

    def _tell(self, progress: BatchProgress) -> None:
        report(progress, self._settings.on_progress)

    def _live(self) -> Runtime:
        if self._runtime is None:
            raise PartfileError("the sink has no epoch; it restores with the next batch")
        return self._runtime


def _triggered(writer: DataStreamWriter, trigger: Mapping[str, Any]) -> DataStreamWriter:
    """The writer with a trigger that Spark takes."""
    if "continuous" in trigger:
        raise ConfigError(
            "a query with the trigger 'continuous' has no micro-batches, which foreachBatch needs",
            hint='Pass processingTime="1 second" or availableNow=True.',
        )
    try:
        return writer.trigger(**trigger)
    except (TypeError, ValueError, PySparkException) as error:
        told = ", ".join(f"{name}={value!r}" for name, value in trigger.items())
        raise ConfigError(
            f"Spark takes no such trigger: {told} ({str(error).splitlines()[0]})",
            hint='Pass processingTime="10 seconds" or availableNow=True.',
        ) from error


def _is_served(url: str) -> bool:
    """Whether a store of ours serves a URL of Spark's, so that it can be compared with the base."""
    try:
        check_url(url)
    except ConfigError:
        return False
    return True
