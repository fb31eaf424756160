"""A test kit for sinks, bucketers and formats: runs a sink's subtasks in one process, step by step, without Spark.

Time stands still unless it is told to pass. What is run is the sink itself: its operators, its coordinator, real files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

from partfile.filesystems.errors import PartfileError
from partfile.sink.description import SubtaskContext
from partfile.sink.local_input import batches_of
from partfile.sink.operator import SinkOperator
from partfile.sink.runtime import Runtime
from partfile.sink.states import assigned_to
from partfile.snapshot.harness import check_parallelism, subtask_of

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from partfile.sink.commits import CommitReport
    from partfile.sink.file_sink import FileSink
    from partfile.sink.states import SubtaskSnapshot
    from partfile.snapshot.pending import PendingCheckpoint


class FileCounts(NamedTuple):
    """How many files there are of each kind."""

    in_progress: int
    pending: int
    finished: int
    sidecars: int


class SinkHarness:
    """A job of so many subtasks that writes into one sink.

    Args:
        sink: The sink; its clock is not read, for the harness has its own.
        parallelism: Number of subtasks, at least 1.
    """

    def __init__(self, sink: FileSink, parallelism: int = 1) -> None:
        self.sink = sink
        self.now_ms = 0
        """The time, in milliseconds since the epoch; set it to let time pass."""
        self.operators: list[SinkOperator] = []
        """The operators by subtask; empty while nothing is open."""
        self._parallelism = check_parallelism(parallelism)
        self._runtime: Runtime | None = None
        self._taken: tuple[PendingCheckpoint, list[SubtaskSnapshot]] | None = None

    @property
    def runtime(self) -> Runtime:
        """The stores and the coordinator."""
        if self._runtime is None:
            raise PartfileError("the harness is not open", hint="Call open(), or use it in a with block.")
        return self._runtime

    def open(self) -> Self:
        """Begin a run: restore what the last one left, if there was one."""
        self.crash()
        settings = self.sink.settings
        self._runtime = Runtime(settings, settings.uid)
        self._runtime.coordinator.start(lambda _position: None, self.now_ms)
        coordinator = self._runtime.coordinator
        for subtask in range(self._parallelism):
            operator = SinkOperator(self._runtime.store, settings.description)
            self.operators.append(operator)
            share = assigned_to(coordinator.assignment(), subtask)
            operator.open(self._context(subtask), share.model_copy(update={"max_count": coordinator.state.max_count}))
        return self

    def process(self, rows: pa.RecordBatch | pa.Table, subtask: int = 0) -> None:
        """Hand rows to one subtask."""
        operator = subtask_of(self.operators, subtask)
        operator.advance(self._context(subtask))
        for batch in batches_of(rows):
            operator.write(batch)

    def snapshot(self) -> int:
        """Trigger a checkpoint in which every subtask takes part; return its id. ``notify_complete`` completes it."""
        pending = self.runtime.coordinator.trigger(self.now_ms)
        snapshots = []
        for subtask, operator in enumerate(self.operators):
            operator.advance(self._context(subtask))
            snapshots.append(operator.snapshot(pending.checkpoint_id))
        self._taken = pending, snapshots
        return pending.checkpoint_id

    def notify_complete(self) -> CommitReport:
        """Complete the checkpoint that was taken: link it, publish its parts, tell the subtasks."""
        if self._taken is None:
            raise PartfileError("no checkpoint was taken", hint="Call snapshot() first.")
        (pending, snapshots), self._taken = self._taken, None
        coordinator = self.runtime.coordinator
        done = coordinator.complete(pending, snapshots, coordinator.state.position)
        for operator in self.operators:
            operator.notify_checkpoint_complete(done.checkpoint_id)
        return done

    def notify_aborted(self) -> None:
        """Give the checkpoint that was taken up."""
        self._taken = None
        self.runtime.coordinator.abort()

    def checkpoint(self) -> CommitReport:
        """Take a checkpoint that completes."""
        self.snapshot()
        return self.notify_complete()

    def crash(self) -> None:
        """The process dies: locks go, nothing else happens."""
        while self.operators:
            self.operators.pop().close()
        self._taken = None
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def restore(self, parallelism: int | None = None) -> Self:
        """Crash, and begin another run with ``parallelism`` subtasks (None: as before)."""
        self._parallelism = self._parallelism if parallelism is None else check_parallelism(parallelism)
        return self.open()

    def rescale(self, parallelism: int) -> Self:
        """Take a checkpoint that completes, and go on from it with another number of subtasks."""
        check_parallelism(parallelism)
        self.checkpoint()
        return self.restore(parallelism)

    def files(self) -> FileCounts:
        """Count the files below the base by kind, also after a crash."""
        settings, naming = self.sink.settings, self.sink.settings.naming
        with settings.open_store(settings.base, settings.storage_options) as store:
            names = [file.path.rpartition("/")[2] for file in store.list()]
        ends = (naming.in_progress_suffix, naming.pending_suffix, naming.valid_length_suffix)
        in_progress, pending, sidecars = (
            sum(name.startswith(("_", ".")) and name.endswith(end) for name in names) for end in ends
        )
        return FileCounts(in_progress, pending, len(names) - in_progress - pending - sidecars, sidecars)

    def __enter__(self) -> Self:
        return self if self._runtime is not None else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.crash()

    def _context(self, subtask: int) -> SubtaskContext:
        coordinator = self.runtime.coordinator
        return SubtaskContext(
            subtask,
            attempt=0,
            generation=coordinator.generation,
            chain=coordinator.state.position.chain,
            batch_time_ms=self.now_ms,
            may_keep=self.runtime.may_append,
            may_stage=self.runtime.may_stage,
            encoded_ratio=coordinator.state.position.encoded_ratio,
        )
