"""What runs in a Spark task: one subtask of one micro-batch, from record batches to one row of acknowledgement."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from partfile.filesystems.errors import PartfileError
from partfile.sink.description import SinkDescription, SubtaskContext
from partfile.sink.larger_batches import larger_batches
from partfile.sink.operator import SinkOperator
from partfile.sink.spark.worker import begin_task, check_version
from partfile.sink.states import assigned_to
from partfile.sink.writing_ahead import write_ahead
from partfile.snapshot.model import SubtaskState
from partfile.snapshot.operator_snapshot import write_operator_state
from partfile.snapshot.storage import open_storage
from partfile.version import __version__
from partfile.writers.port import RowFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from partfile.filesystems.port import Store
    from partfile.sink.restore_settings import StoreOpener
    from partfile.sink.states import SubtaskSnapshot
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.snapshot.storage_settings import StorageSettings

ACKNOWLEDGEMENT = StructType(
    [
        StructField("submission", StringType()),
        StructField("version", StringType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("state", BinaryType()),
    ]
)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One row of the write job, as the driver reads it."""

    submission: str
    version: str
    rows: int
    bytes: int
    state: SubtaskState


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Everything a task needs; travels in the closure. Holds no open resource."""

    base: str
    checkpoints: StorageSettings
    job: str
    marker_path: str
    open_store: StoreOpener
    description: SinkDescription
    shares: tuple[SubtaskSnapshot, ...]
    max_count: int
    checkpoint_id: int
    submission: str
    generation: int
    chain: str
    batch_time_ms: int
    may_keep: bool
    """Whether parts may stay open as far as the driver knows, which has asked the stores what they can do."""
    may_stage: bool
    """Whether columnar parts may be staged, as far as the driver knows."""
    encoded_ratio: float | None
    """Bytes of encoded files for each byte of their stages; None as long as nobody knows."""
    base_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """What the store of the parts is opened with."""
    checkpoint_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """What the store of the checkpoints is opened with."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write every row, make it durable, release everything, then acknowledge with one row."""
        task = TaskContext.get()
        if task is None:
            raise PartfileError("a write task runs inside a Spark task only")
        begin_task()
        with self.open_store(self.base, self.base_options) as store:
            storage = open_storage(self.checkpoints, self.job, self.checkpoint_options, opener=self.open_store)
            with closing(storage.store):
                yield self._acknowledge(self._write(store, storage, task, batches))

    def _write(
        self, store: Store, storage: CheckpointStorage, task: TaskContext, batches: Iterator[pa.RecordBatch]
    ) -> Acknowledgement:
        # Where this host does not see the driver's lock, nothing would fence a zombie: keep nothing open (S13).
        may_keep = storage.store.marker_is_held(self.marker_path) and self.may_keep
        context = SubtaskContext(
            subtask=task.partitionId(),
            attempt=task.attemptNumber(),
            generation=self.generation,
            chain=self.chain,
            batch_time_ms=self.batch_time_ms,
            may_keep=may_keep,
            may_stage=may_keep and self.may_stage,
            encoded_ratio=self.encoded_ratio,
        )
        share = assigned_to(self.shares, context.subtask).model_copy(update={"max_count": self.max_count})
        operator = SinkOperator(store, self.description)
        try:
            operator.open(context, share)
            write_ahead(self._worth_splitting(batches), operator.write)
            snapshot = operator.snapshot(self.checkpoint_id)
            rows, size = operator.rows_written, operator.bytes_written
        finally:
            operator.close()
        streams = storage.stream_factory(self.checkpoint_id)
        handle = write_operator_state(snapshot.to_states(), streams, self.checkpoint_id, self.batch_time_ms)
        return Acknowledgement(
            self.submission,
            __version__,
            rows,
            size,
            SubtaskState(subtask=context.subtask, handle=handle),
        )

    def _worth_splitting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Lines are made in one pass and cut by offsets, best as long as a batch stays in the processor's cache.
        return batches if isinstance(self.description.format, RowFormat) else larger_batches(batches)

    @staticmethod
    def _acknowledge(done: Acknowledgement) -> pa.RecordBatch:
        row: dict[str, Any] = {
            "submission": [done.submission],
            "version": [done.version],
            "rows": pa.array([done.rows], pa.int64()),
            "bytes": pa.array([done.bytes], pa.int64()),
            "state": pa.array([done.state.model_dump_json().encode()], pa.binary()),
        }
        return pa.RecordBatch.from_pydict(row)


def read_acknowledgement(row: Any) -> Acknowledgement:
    """A collected row as an acknowledgement.

    Raises:
        PartfileError: The worker runs another version of partfile than the driver.
    """
    check_version(row.version)
    state = SubtaskState.model_validate_json(bytes(row.state))
    return Acknowledgement(row.submission, row.version, row.rows, row.bytes, state)
