"""The Spark job that writes one micro-batch: from the driver's rows to one acknowledgement a partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.bucketers.port import BucketContext
from partfile.filesystems.errors import PartfileError
from partfile.filesystems.opening import options_of_tasks
from partfile.sink.spark.distribution import by_bucket
from partfile.sink.spark.task import ACKNOWLEDGEMENT, WriteTask, read_acknowledgement
from partfile.sink.states import SubtaskSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from partfile.sink.runtime import Runtime
    from partfile.sink.settings import SinkSettings
    from partfile.sink.spark.task import Acknowledgement
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.pending import PendingCheckpoint

logger = logging.getLogger("partfile")


def run_write_job(
    df: DataFrame, settings: SinkSettings, runtime: Runtime, pending: PendingCheckpoint, hashed: int | None
) -> list[Acknowledgement]:
    """Write the rows of a batch as one task a partition, and collect what the tasks answer.

    Args:
        df: The batch.
        settings: The sink's options.
        runtime: The driver's side of this generation.
        pending: The checkpoint that the batch is.
        hashed: Number of partitions that buckets are hashed over; None keeps the batch's own.
    """
    if not runtime.storage.store.hold_marker(runtime.marker_path):
        logger.warning("%s: another process holds the marker, perhaps an older driver", settings.uid)
    coordinator = runtime.coordinator
    task = WriteTask(
        base=settings.base,
        checkpoints=settings.checkpoints,
        job=runtime.job,
        marker_path=runtime.marker_path,
        open_store=settings.open_store_in_tasks,
        description=settings.description,
        shares=coordinator.assignment(),
        max_count=coordinator.state.max_count,
        checkpoint_id=pending.checkpoint_id,
        submission=pending.submission,
        generation=coordinator.generation,
        chain=coordinator.state.position.chain,
        batch_time_ms=pending.time_ms,
        may_keep=runtime.tasks_may_keep,
        may_stage=runtime.may_stage,
        encoded_ratio=coordinator.state.position.encoded_ratio,
        base_options=options_of_tasks(settings.base, settings.storage_options),
        checkpoint_options=options_of_tasks(settings.checkpoint_url, settings.checkpoint_options),
    )
    if hashed is not None:
        context = BucketContext(batch_time_ms=pending.time_ms, on_bad_bucket=settings.on_bad_bucket)
        df = by_bucket(df, settings.bucketer, context, hashed)
    return [read_acknowledgement(row) for row in df.mapInArrow(task.run, ACKNOWLEDGEMENT).collect()]


def acknowledged_snapshots(runtime: Runtime, rows: int) -> list[SubtaskSnapshot]:
    """The snapshots of the pending checkpoint's subtasks, exactly one for each of the partitions 0 to n-1.

    Args:
        runtime: The driver's side of this generation.
        rows: How many acknowledgements came.

    Raises:
        PartfileError: Some subtask answered twice or not at all: rows would be missing.
    """
    pending = runtime.coordinator.pending
    subtasks = pending.subtasks()
    if len(subtasks) != rows:
        raise PartfileError(
            f"{rows} acknowledgements for {len(subtasks)} partitions: one was counted twice or belongs elsewhere",
            checkpoint_id=pending.checkpoint_id,
        )
    read = runtime.storage.read_state
    return [SubtaskSnapshot.from_states(state.subtask, read(state.handle)) for state in subtasks]


def hash_partitions(df: DataFrame, settings: SinkSettings, stands: StreamPosition) -> int | None:
    """Number of partitions that buckets are hashed over: as set, as it was, else the engine's; None for no shuffle."""
    if settings.distribution == "none":
        return None
    return settings.hash_partitions or stands.hash_partitions or int(df.sparkSession.sparkContext.defaultParallelism)
