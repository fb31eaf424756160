"""A test kit for operators with state: runs their subtasks in one process, step by step.

Snapshots go through the same encoding, and restores through the same redistribution, as in production.
Source: Flink's ``AbstractStreamOperatorTestHarness``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from partfile.filesystems.errors import ConfigError, PartfileError
from partfile.snapshot.model import InlineHandle
from partfile.snapshot.operator_snapshot import write_operator_state
from partfile.snapshot.operator_state import OperatorStateStore
from partfile.snapshot.redistribution import redistribute
from partfile.snapshot.state_file import decode_states
from partfile.snapshot.stream_factory import MemoryStreamFactory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from partfile.snapshot.state_info import States

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
            handle = write_operator_state(states, MemoryStreamFactory(), self._newest_id, 0)
            encoded.append(handle.data if isinstance(handle, InlineHandle) else b"")
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
        """Whatever runs is gone; begin with a snapshot, dealt out over ``parallelism`` subtasks (None: as before)."""
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
