"""A test kit for operators with state: runs their subtasks in one process, step by step.

Snapshots go through the same encoding, and restores through the same redistribution, as in production.
Source: Flink's ``AbstractStreamOperatorTestHarness``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar

from partfile.errors import ConfigError, PartfileError
from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.rows import batches_of
from partfile.sink.states import assigned_to
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.operator_state import OperatorStateStore, redistribute, write_operator_state
from partfile.snapshot.state_file import decode_states
from partfile.snapshot.streams import MemoryStreamFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from partfile.sink.coordinator import CommitReport, TriggeredCheckpoint
    from partfile.sink.file_sink import FileSink
    from partfile.sink.rows import Rows
    from partfile.sink.states import SubtaskSnapshot
    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.state_file import States


Element_contra = TypeVar("Element_contra", contravariant=True)
Element = TypeVar("Element")
Operator = TypeVar("Operator")


class StatefulOperator(Protocol[Element_contra]):
    """One subtask of an operator, as the harness drives it."""

    def open(self, states: OperatorStateStore, subtask: int, parallelism: int) -> None:
        """Register the states and begin with what they hold: nothing at first, else the restored share."""

    def process(self, element: Element_contra) -> None:
        """Take one element of the input."""

    def snapshot(self, checkpoint_id: int) -> None:
        """Bring the states up to date; they are copied when this returns."""

    def notify_complete(self, checkpoint_id: int) -> None:
        """Every checkpoint up to this one is complete."""

    def notify_aborted(self, checkpoint_id: int) -> None:
        """This checkpoint will never be complete."""

    def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """The encoded state of all subtasks at one checkpoint."""

    checkpoint_id: int
    subtasks: tuple[bytes, ...]


def inline_bytes(handle: StateHandle | None) -> bytes:
    """The bytes of a handle that memory storage has given; none if there is no state."""
    return handle.data if isinstance(handle, InlineHandle) else b""


def check_parallelism(parallelism: int) -> int:
    """Return a number of subtasks that there can be.

    Raises:
        ConfigError: It is less than one.
    """
    if parallelism < 1:
        raise ConfigError(f"parallelism is {parallelism}; at least one subtask must run")
    return parallelism


def subtask_of(operators: Sequence[Operator], subtask: int) -> Operator:
    """Return the operator of a subtask.

    Raises:
        ConfigError: There is no such subtask.
        PartfileError: Nothing is open.
    """
    if not operators:
        raise PartfileError("the harness is not open", hint="Call open() or restore(), or use it in a with block.")
    if not 0 <= subtask < len(operators):
        raise ConfigError(f"there is no subtask {subtask}; there are 0 to {len(operators) - 1}")
    return operators[subtask]


class OperatorHarness(Generic[Element]):
    """Drives the subtasks of an operator through checkpoints, failures and changes of parallelism.

    Args:
        make_operator: Makes the operator of one subtask; called anew for each and at every restore.
        parallelism: Number of subtasks, at least 1.
    """

    def __init__(self, make_operator: Callable[[], StatefulOperator[Element]], parallelism: int = 1) -> None:
        self._make_operator = make_operator
        self._parallelism = check_parallelism(parallelism)
        self._states: list[OperatorStateStore] = []
        self._newest_id = 0
        self.operators: list[StatefulOperator[Element]] = []
        """The operators by subtask; empty while nothing is open."""

    def open(self) -> Self:
        """Begin without any state."""
        return self._begin([{} for _ in range(self._parallelism)])

    def process(self, *elements: Element, subtask: int = 0) -> None:
        """Hand elements to one subtask."""
        operator = subtask_of(self.operators, subtask)
        for element in elements:
            operator.process(element)

    def snapshot(self) -> HarnessSnapshot:
        """Take the next checkpoint of every subtask; whether it is complete is told by a notification."""
        self._check_open()
        self._newest_id += 1
        encoded = []
        for operator, states in zip(self.operators, self._states, strict=True):
            operator.snapshot(self._newest_id)
            encoded.append(inline_bytes(write_operator_state(states, MemoryStreamFactory())))
        return HarnessSnapshot(self._newest_id, tuple(encoded))

    def notify_complete(self, checkpoint_id: int | None = None) -> None:
        """Tell every subtask that a checkpoint is complete; None is the newest."""
        for operator in self.operators:
            operator.notify_complete(self._newest_id if checkpoint_id is None else checkpoint_id)

    def notify_aborted(self, checkpoint_id: int | None = None) -> None:
        """Tell every subtask that a checkpoint was given up; None is the newest."""
        for operator in self.operators:
            operator.notify_aborted(self._newest_id if checkpoint_id is None else checkpoint_id)

    def restore(self, snapshot: HarnessSnapshot, parallelism: int | None = None) -> Self:
        """Drop the running subtasks; begin with a snapshot, distributed over ``parallelism`` ones (None: as before)."""
        self.close()
        self._parallelism = self._parallelism if parallelism is None else check_parallelism(parallelism)
        old = [decode_states(data, "a snapshot of the harness") if data else {} for data in snapshot.subtasks]
        return self._begin(redistribute(old, self._parallelism))

    def rescale(self, parallelism: int) -> Self:
        """Take a checkpoint that completes, and go on from it with another number of subtasks."""
        check_parallelism(parallelism)
        snapshot = self.snapshot()
        self.notify_complete()
        return self.restore(snapshot, parallelism)

    def close(self) -> None:
        """Close every operator; may be called twice."""
        while self.operators:
            self.operators.pop().close()
        self._states = []

    def __enter__(self) -> Self:
        return self if self.operators else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, shares: list[States]) -> Self:
        self.close()
        for subtask, share in enumerate(shares):
            states, operator = OperatorStateStore(share), self._make_operator()
            self._states.append(states)
            self.operators.append(operator)
            operator.open(states, subtask, len(shares))
        return self

    def _check_open(self) -> None:
        if not self.operators:
            raise PartfileError("the harness is not open", hint="Call open() or restore(), or use it in a with block.")


class FileCounts(NamedTuple):
    """The number of files of each kind."""

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
        """The time, in milliseconds since 1970; set it to let time pass."""
        self.operators: list[SinkOperator] = []
        """The operators by subtask; empty while nothing is open."""
        self._parallelism = check_parallelism(parallelism)
        self._runtime: Runtime | None = None
        self._taken: tuple[TriggeredCheckpoint, list[SubtaskSnapshot]] | None = None

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

    def process(self, rows: Rows, subtask: int = 0) -> None:
        """Hand rows to one subtask."""
        operator = subtask_of(self.operators, subtask)
        operator.advance(self._context(subtask))
        for batch in batches_of(rows):
            operator.write(batch)

    def snapshot(self) -> int:
        """Trigger a checkpoint in which every subtask takes part; return its id. ``notify_complete`` completes it."""
        triggered = self.runtime.coordinator.trigger(self.now_ms)
        snapshots = []
        for subtask, operator in enumerate(self.operators):
            operator.advance(self._context(subtask))
            snapshots.append(operator.snapshot(triggered.checkpoint_id))
        self._taken = triggered, snapshots
        return triggered.checkpoint_id

    def notify_complete(self) -> CommitReport:
        """Complete the checkpoint that was taken: create it, publish its parts, tell the subtasks."""
        if self._taken is None:
            raise PartfileError("no checkpoint was taken", hint="Call snapshot() first.")
        (triggered, snapshots), self._taken = self._taken, None
        coordinator = self.runtime.coordinator
        done = coordinator.complete(triggered, snapshots, coordinator.state.position)
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
            epoch=coordinator.epoch,
            chain=coordinator.state.position.chain,
            batch_time_ms=self.now_ms,
            may_keep=self.runtime.may_append,
            may_stage=self.runtime.may_stage,
            encoded_ratio=coordinator.state.position.encoded_ratio,
        )
