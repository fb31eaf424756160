"""A test kit for operators with keyed state: runs their subtasks in one process, step by step.

Snapshots are the canonical file, and restores take key groups from it, as in production.
Source: Flink's ``KeyedOneInputStreamOperatorTestHarness``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, Self, TypeVar

from partfile.snapshot.documents import MAX_DOCUMENT_BYTES
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import (
    DEFAULT_MAX_PARALLELISM,
    check_max_parallelism,
    group_of_hash,
    group_range,
    subtask_of_group,
)
from partfile.snapshot.keyed.pieces import read_canonical
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.operator_state import OperatorStateStore, redistribute, write_operator_state
from partfile.snapshot.state_file import decode_states
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import MemoryStreamFactory
from partfile.testing.harness import inline_bytes, subtask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import RestoredRows
    from partfile.snapshot.keyed.keys import Key, KeyCodec, KeyGroupRange
    from partfile.snapshot.state_file import States


Element_contra = TypeVar("Element_contra", contravariant=True)
Element = TypeVar("Element")


class KeyedContext(NamedTuple):
    """What a subtask of a keyed operator is opened with."""

    keyed: KeyedStateBackend
    """Its keyed state."""
    states: OperatorStateStore
    """Its operator state."""
    subtask: int
    parallelism: int


class KeyedOperator(Protocol[Element_contra]):
    """One subtask of an operator with keyed state, as the harness drives it."""

    def open(self, context: KeyedContext) -> None:
        """Register the states, keyed ones and others, and begin with what they hold."""

    def process(self, element: Element_contra) -> None:
        """Take one element of the input, whose key is the current one."""

    def close(self) -> None:
        """Release everything."""


@dataclass(frozen=True, slots=True)
class KeyedHarnessSnapshot:
    """The encoded state of all subtasks at one checkpoint."""

    checkpoint_id: int
    keyed: tuple[bytes, ...]
    """The canonical file of each subtask, or a list of several; empty if it has no keyed state."""
    operator: tuple[bytes, ...]
    """The operator state of each; empty if it has none."""


class KeyedOperatorHarness(Generic[Element]):
    """Drives the subtasks of an operator with keyed state; each element goes to the subtask of its key.

    Args:
        make_operator: Makes the operator of one subtask; called anew for each and at every restore.
        key_codec: Of the keys.
        key_of: Finds the key of an element.
        parallelism: Number of subtasks, at least 1.
        max_parallelism: Number of key groups.
        backend: Makes the keyed state of one subtask: the class of a backend, or a function with its arguments.
    """

    def __init__(
        self,
        make_operator: Callable[[], KeyedOperator[Element]],
        key_codec: KeyCodec,
        key_of: Callable[[Element], Key],
        *,
        parallelism: int = 1,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        backend: Callable[[KeyCodec, KeyGroupRange, int, Sequence[RestoredRows]], KeyedStateBackend] = HeapBackend,
    ) -> None:
        check_max_parallelism(max_parallelism, parallelism)
        self._make_operator = make_operator
        self._key_codec = key_codec
        self._key_of = key_of
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._make_backend = backend
        self._newest_id = 0
        self.now_ms = 0
        """The time, in milliseconds since 1970; set it to let time pass."""
        self.operators: list[KeyedOperator[Element]] = []
        """The operators by subtask; empty while nothing is open."""
        self.contexts: list[KeyedContext] = []
        """What they were opened with."""

    def open(self) -> Self:
        """Begin without any state."""
        return self._begin((), [{} for _ in range(self._parallelism)])

    def process(self, *elements: Element) -> None:
        """Hand elements to the subtasks of their keys."""
        for element in elements:
            key = self._key_of(element)
            group = group_of_hash(self._key_codec.locate(key)[1], self._max_parallelism)
            subtask = subtask_of_group(group, self._parallelism, self._max_parallelism)
            operator = subtask_of(self.operators, subtask)
            keyed = self.contexts[subtask].keyed
            keyed.advance_time(self.now_ms)
            keyed.set_current_key(key)
            operator.process(element)

    def snapshot(self) -> KeyedHarnessSnapshot:
        """Take the next checkpoint of every subtask."""
        subtask_of(self.operators, 0)
        self._newest_id += 1
        keyed, operator = [], []
        for context in self.contexts:
            context.keyed.advance_time(self.now_ms)
            runner, streams = StrategyRunner(KeyedStateStrategy(context.keyed)), _streams()
            running = runner.snapshot(self._newest_id, self.now_ms, streams, SnapshotOptions())
            keyed.append(inline_bytes(running.result().primary))
            operator.append(inline_bytes(write_operator_state(context.states, streams)))
        return KeyedHarnessSnapshot(self._newest_id, tuple(keyed), tuple(operator))

    def restore(self, snapshot: KeyedHarnessSnapshot, parallelism: int | None = None) -> Self:
        """Drop the running subtasks; begin with a snapshot, distributed over ``parallelism`` ones (None: as before)."""
        if parallelism is not None:
            check_max_parallelism(self._max_parallelism, parallelism)
            self._parallelism = parallelism
        self.close()
        files = [
            read_canonical(data, f"subtask {at} of a snapshot", _piece)
            for at, data in enumerate(snapshot.keyed)
            if data
        ]
        old = [decode_states(data, "a snapshot of the harness") if data else {} for data in snapshot.operator]
        return self._begin(files, redistribute(old, self._parallelism))

    def rescale(self, parallelism: int) -> Self:
        """Take a checkpoint, and go on from it with another number of subtasks."""
        return self.restore(self.snapshot(), parallelism)

    def close(self) -> None:
        """Close every operator; may be called twice."""
        while self.operators:
            self.operators.pop().close()
        while self.contexts:
            self.contexts.pop().keyed.close()

    def __enter__(self) -> Self:
        return self if self.operators else self.open()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, files: Sequence[RestoredRows], shares: list[States]) -> Self:
        self.close()
        for subtask, share in enumerate(shares):
            groups = group_range(subtask, self._parallelism, self._max_parallelism)
            keyed = self._make_backend(self._key_codec, groups, self._max_parallelism, files)
            keyed.advance_time(self.now_ms)
            context = KeyedContext(keyed, OperatorStateStore(share), subtask, len(shares))
            operator = self._make_operator()
            self.contexts.append(context)
            self.operators.append(operator)
            operator.open(context)
        return self


def _piece(handle: StateHandle) -> KeyedFile:
    return KeyedFile(inline_bytes(handle), "a piece of a snapshot")


def _streams() -> MemoryStreamFactory:
    return MemoryStreamFactory(max_state_bytes=MAX_DOCUMENT_BYTES, max_acknowledgement_bytes=2 * MAX_DOCUMENT_BYTES)
