"""A micro-batch is a checkpoint: restore once a run, recognise replays, write, complete, publish (DESIGN section 5)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError, Fenced, PartfileError
from partfile.sink.admission import Admission, admit, has_left_parts, is_no_others, position_after
from partfile.sink.clock import stopwatch_ms
from partfile.sink.progress import report
from partfile.sink.runtime import Runtime
from partfile.sink.savepoints import reserved_savepoint
from partfile.sink.spark import reporting
from partfile.sink.spark.encode_job import stage_encoder
from partfile.sink.spark.identity import OffsetsLog, current_run, is_active
from partfile.sink.spark.idle_timer import IdleTimer
from partfile.sink.spark.query import start_query
from partfile.sink.spark.succession import Succession
from partfile.sink.spark.write_job import acknowledged_snapshots, hash_partitions, run_write_job
from partfile.sink.states import QueryPosition

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from partfile.sink.encoding import StageEncoder
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.progress import BatchProgress
    from partfile.sink.savepoints import ReservedSavepoint
    from partfile.sink.settings import SinkSettings
    from partfile.sink.spark.identity import QueryRun
    from partfile.sink.spark.query import StartedQuery
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.storage import CheckpointStorage


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
        self._run: QueryRun | None = None
        self._runtime: Runtime | None = None
        self._timer: IdleTimer | None = None
        self._encoder: Callable[[CheckpointStorage], StageEncoder] | None = None
        """Made in the thread of the query's batches, for all generations of its run: it knows which jobs failed."""
        self._encoder_run: QueryRun | None = None
        self._succession = Succession()
        self._fenced: tuple[QueryRun, Fenced] | None = None
        """The run that was fenced between two batches: it must stop, and not begin a new generation."""
        self._offsets = OffsetsLog()

    def foreach_batch(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; see FileSink.foreach_batch."""
        if not df.columns:
            raise ConfigError(
                f"{self._settings.uid}: the stream has no columns, and Spark hands no rows of it over",
                hint="Select at least one column.",
            )
        run = current_run(df.sparkSession)
        self._session = df.sparkSession
        batch = QueryPosition(
            query_id=run.query_id,
            batch_id=batch_id,
            offsets_digest=self._offsets.digest(df.sparkSession, run, batch_id),
        )
        with self._mutex:
            self._check_fence(run)
            try:
                self._batch(df, run, batch)
            except BaseException:
                # Whatever was decided may or may not have happened; only a restore can tell.
                self._end_generation()
                raise

    def start(
        self,
        df: DataFrame,
        *,
        checkpoint_location: str,
        trigger: Mapping[str, Any] | None,
        query_name: str | None,
        options: Mapping[str, str] | None,
    ) -> StartedQuery:
        """Start a query with a clean end bound to it; see FileSink.start."""
        self._session, self._encoder = df.sparkSession, None
        writer = df.writeStream.foreachBatch(self.foreach_batch).option("checkpointLocation", checkpoint_location)
        return start_query(writer, self, trigger=trigger, query_name=query_name, options=options)

    def wait_for_batch(self) -> None:
        """Wait until no batch is being written."""
        with self._mutex:
            return

    def finish(self, query_id: str) -> None:
        """End cleanly: publish every open part, or keep them all (``on_stop``), and release the sink.

        If no batch came, or the stop interrupted one, a restore first settles what the last completed checkpoint holds.

        Args:
            query_id: The query that has ended.

        Raises:
            Fenced: Another driver has taken the sink over; it publishes what is left.
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        with self._mutex:
            try:
                self._check_fence()
                runtime = self._runtime or self._begun(lambda left: has_left_parts(left, query_id))
                if runtime is not None:
                    self._runtime = runtime
                    keep = self._settings.on_stop == "keep"
                    done = runtime.coordinator.close_all(self._settings.clock(), keep=keep)
                    if done is not None:
                        self._tell(reporting.of_commit(self._settings.uid, runtime.coordinator, done))
                    if not keep:
                        runtime.coordinator.check_all_is_visible()
            finally:
                self.release()

    def savepoint(self, directory: str | os.PathLike[str] | None) -> str:
        """Take a savepoint between two batches; see FileSink.savepoint."""
        with self._mutex:
            self._check_fence()
            if self._runtime is None and self._timer is not None:
                # Storage failed in a turn of the timer, and the next one may be minutes away or never come.
                self._begin_again(self._timer.run, lambda _left: True)
                self._timer.begin()
            if self._runtime is None:
                raise PartfileError(
                    f"sink {self._settings.uid!r} has no query that runs and has written a batch: nothing to save",
                    hint="Ask after the query's first batch and before its end, or use stop_with_savepoint; in plain "
                    "Python ask the LocalSink.",
                )
            with reserved_savepoint(self._settings, self._settings.uid, directory) as reserved:
                return self._savepoint(self._runtime, reserved, ends_the_job=False)

    def stop_with_savepoint(self, query: StreamingQuery, directory: str | os.PathLike[str] | None) -> str:
        """Stop a query and end with a savepoint; see StartedQuery.stop_with_savepoint."""
        with reserved_savepoint(self._settings, self._settings.uid, directory) as reserved:
            self.wait_for_batch()
            query.stop()
            with self._mutex:
                try:
                    self._check_fence()
                    self._runtime = self._runtime or self._begun_for(query)
                    return self._savepoint(self._runtime, reserved, ends_the_job=True)
                finally:
                    self.release()

    def _begun_for(self, query: StreamingQuery) -> Runtime:
        """A new generation for the end of a query that no batch came to in this run, or whose last batch was lost."""
        has_failed = query.exception() is not None
        runtime = None if has_failed else self._begun(lambda left: is_no_others(left, str(query.id)))
        if runtime is None:
            raise PartfileError(
                f"query {query.id} has failed, or sink {self._settings.uid!r} holds the rows of another query",
                hint="Start the query again and let it write a batch; then ask for the savepoint.",
            )
        return runtime

    def _savepoint(self, runtime: Runtime, reserved: ReservedSavepoint, *, ends_the_job: bool) -> str:
        try:
            runtime.coordinator.close_all(self._settings.clock())
        except BaseException:
            # The timer stays: an idle stream has no next batch that would restore.
            self.lose_generation()
            raise
        return reserved.complete(runtime.coordinator, self._settings.clock(), ends_the_job=ends_the_job)

    def release(self) -> None:
        """Let go of everything without a clean end; the next run restores, maybe in another session."""
        with self._mutex:
            self._end_generation()
            self._encoder = None

    def _begun(self, is_wanted: Callable[[SinkSnapshot | None], bool]) -> Runtime | None:
        """A new generation after the last one of this driver, if the newest checkpoint is as wanted."""
        runtime = self._new_runtime()
        try:
            if self._succession.begin(runtime.coordinator, self._settings.clock(), is_wanted):
                return runtime
        except BaseException:
            runtime.close()
            raise
        runtime.close()
        return None

    def _check_fence(self, run: QueryRun | None = None) -> None:
        """Refuse to go on in a run that was fenced; a query that was started again is another run."""
        if self._fenced is not None and run in {None, self._fenced[0]}:
            raise self._fenced[1]

    def _batch(self, df: DataFrame, run: QueryRun, batch: QueryPosition) -> None:
        restore_ms = self._restore(run, batch) if run != self._run else 0.0
        runtime = self._live()
        stands = runtime.coordinator.state.position
        if admit(self._settings.uid, stands, batch, self._settings.rules) is Admission.REPLAY:
            done = runtime.coordinator.publish_owed()
            told = reporting.of_replay(self._settings.uid, batch, runtime.coordinator, done)
            self._tell(told.model_copy(update={"restore_ms": restore_ms}))
            return
        now_ms = self._settings.clock()
        began = stopwatch_ms()
        pending = runtime.coordinator.trigger(now_ms)
        hashed = hash_partitions(df, self._settings, stands)
        acknowledged = run_write_job(df, self._settings, runtime, pending, hashed)
        write_ms = stopwatch_ms() - began
        for one in acknowledged:
            runtime.coordinator.acknowledge(one.state, one.submission)
        snapshots = acknowledged_snapshots(runtime, len(acknowledged))
        position = position_after(stands, batch).model_copy(update={"hash_partitions": hashed})
        done = runtime.coordinator.complete(pending, snapshots, position)
        told = reporting.of_commit(self._settings.uid, runtime.coordinator, done)
        told = reporting.of_batch(told, batch, acknowledged, snapshots)
        self._tell(told.model_copy(update={"restore_ms": restore_ms, "write_ms": write_ms}))

    def _restore(self, run: QueryRun, batch: QueryPosition) -> float:
        """Begin a generation for this run; raises before anything is changed if the run may not go on."""

        def check(stands: StreamPosition) -> None:
            admit(self._settings.uid, stands, batch, self._settings.rules)

        began = stopwatch_ms()
        self._end_generation()
        if self._encoder is None or run != self._encoder_run:
            self._encoder, self._encoder_run = stage_encoder(self._settings, self._session), run
        runtime = self._new_runtime()
        try:
            runtime.coordinator.start(check, self._settings.clock())
        except BaseException:
            runtime.close()
            raise
        finally:
            self._succession.note(runtime.coordinator)
        self._runtime, self._run, self._fenced = runtime, run, None
        self._timer = IdleTimer(self, run, self._mutex, self._settings)
        return stopwatch_ms() - began

    def _new_runtime(self) -> Runtime:
        encoder = self._encoder or stage_encoder(self._settings, self._session)
        return Runtime(self._settings, self._settings.uid, encoder=encoder)

    def close_due(self, run: QueryRun) -> bool:
        """Close idle and aged parts, because an idle stream calls nobody; see ``idle_timer.Between``."""
        if self._runtime is None and not self._begin_again(run, lambda left: has_left_parts(left, run.query_id)):
            return False
        runtime = self._live()
        done = runtime.coordinator.close_due(self._settings.clock())
        if done is not None:
            self._tell(reporting.of_commit(self._settings.uid, runtime.coordinator, done))
        return True

    def _begin_again(self, run: QueryRun, is_wanted: Callable[[SinkSnapshot | None], bool]) -> bool:
        """Begin a generation for a run that lost its last one between two batches; not if the query has ended."""
        runtime = self._begun(is_wanted) if is_active(self._session, run) else None
        if runtime is None:
            return False
        self._runtime, self._run = runtime, run
        # As a write job does: who sees it held knows that the sink runs.
        runtime.storage.store.hold_marker(runtime.marker_path)
        return True

    def stop_for_good(self, run: QueryRun, error: Fenced) -> None:
        """Let go of everything; the run may begin no other generation."""
        self._fenced = (run, error)
        self._end_generation()

    def lose_generation(self) -> None:
        """Let go of the generation: nobody knows what was applied. The timer comes again."""
        runtime, self._runtime, self._run = self._runtime, None, None
        if runtime is not None:
            self._succession.note(runtime.coordinator)
            runtime.close()

    def _end_generation(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
        self.lose_generation()

    def _tell(self, progress: BatchProgress) -> None:
        report(progress, self._settings.on_progress)

    def _live(self) -> Runtime:
        if self._runtime is None:
            raise PartfileError("the sink has no generation; it restores with the next batch")
        return self._runtime
