"""What barriers overtake: which batches of a channel are persisted, and the life of a subtask's channel state.

Pure rules; the batches themselves are handed through. The file that they are written to is its owner's.
Source: Flink's ``ChannelStatePersister`` and ``ChannelStateWriterImpl``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from partfile.errors import PartfileError
from partfile.pipeline.barriers import NO_CHECKPOINT

if TYPE_CHECKING:
    from collections.abc import Sequence

Batch = TypeVar("Batch")


class ChannelStatus(Enum):
    """What a channel does with the batches that arrive in it."""

    COMPLETED = "no checkpoint waits for its barrier"
    BARRIER_PENDING = "each batch is ahead of the barrier that is to come, and is persisted"
    BARRIER_RECEIVED = "the barrier has arrived: what comes now belongs to the next checkpoint"


@dataclass(frozen=True, slots=True)
class ChannelPersister:
    """What of one input channel is persisted.

    It is told of everything in the order of arrival, which is the order in which it was sent, also where a barrier is
    taken ahead of its turn. So the batches ahead of a barrier are known by their number alone.
    """

    status: ChannelStatus = ChannelStatus.COMPLETED
    newest_id: int = NO_CHECKPOINT
    """The newest checkpoint whose barrier has arrived here or that was started."""
    behind: int = 0
    """The number of batches that have arrived behind the barrier of the newest one."""

    def start(self, checkpoint_id: int, queued: Sequence[Batch]) -> tuple[ChannelPersister, Sequence[Batch] | None]:
        """A checkpoint's snapshot is taken while its barrier has not been reached here.

        Args:
            checkpoint_id: The checkpoint's.
            queued: The batches that wait in the channel, in the order of arrival.

        Returns:
            The next state, and those of the batches that are ahead of the barrier. None of them if a newer barrier has
            arrived: the channel cannot tell any more, so the writer of the older checkpoint's channel state is aborted.
        """
        if checkpoint_id > self.newest_id:
            return ChannelPersister(ChannelStatus.BARRIER_PENDING, checkpoint_id), queued
        if checkpoint_id < self.newest_id or self.status is ChannelStatus.COMPLETED:
            return self, None
        return self, queued[: max(0, len(queued) - self.behind)]

    def batch_arrived(self) -> tuple[ChannelPersister, bool]:
        """A batch arrives. Returns the next state, and whether the batch is persisted for the newest checkpoint."""
        if self.status is ChannelStatus.BARRIER_RECEIVED:
            return ChannelPersister(self.status, self.newest_id, self.behind + 1), False
        return self, self.status is ChannelStatus.BARRIER_PENDING

    def barrier_arrived(self, checkpoint_id: int) -> ChannelPersister:
        """A barrier arrives: nothing behind it is persisted for its checkpoint. One of an older checkpoint is late."""
        is_waited_for = checkpoint_id == self.newest_id and self.status is ChannelStatus.BARRIER_PENDING
        if checkpoint_id > self.newest_id or is_waited_for:
            return ChannelPersister(ChannelStatus.BARRIER_RECEIVED, checkpoint_id)
        return self

    def stop(self, checkpoint_id: int) -> ChannelPersister:
        """A checkpoint is whole or given up: nothing more is persisted for it; what a newer one needs is kept."""
        if checkpoint_id < self.newest_id:
            return self
        return ChannelPersister(ChannelStatus.COMPLETED, checkpoint_id)


MAX_RESULTS = 1000
"""Checkpoints of one subtask whose channel state is written, and not taken yet by the subtask's checkpoint."""


class Side(Enum):
    """Whose batches they are: taken from an input channel, or waiting to be sent into an output channel."""

    INPUT = "input"
    OUTPUT = "output"


class LossReason(Enum):
    """Why there is no channel state of a checkpoint."""

    SUBSUMED = "a newer checkpoint was started"
    ABORTED = "the checkpoint was aborted"


@dataclass(frozen=True, slots=True)
class Start:
    """A snapshot with channel state begins."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AddBatches:
    """Batches that the barrier has overtaken, in their order."""

    checkpoint_id: int
    side: Side
    channel: int
    batches: Sequence[Any]
    nbytes: int


@dataclass(frozen=True, slots=True)
class FinishSide:
    """No more batches come of one side."""

    checkpoint_id: int
    side: Side


@dataclass(frozen=True, slots=True)
class Abort:
    """This checkpoint will never be complete, nor will one before it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TakeResult:
    """The subtask's checkpoint has taken over what was written."""

    checkpoint_id: int


WriterEvent = Start | AddBatches | FinishSide | Abort | TakeResult


@dataclass(frozen=True, slots=True)
class WriteBatches:
    """Append batches to the file of a checkpoint; make the file if these are its first."""

    added: AddBatches


@dataclass(frozen=True, slots=True)
class CompleteResult:
    """Close the file, if there is one, and tell the subtask's checkpoint; no batch means no file and no handle."""

    checkpoint_id: int
    batches: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class FailResult:
    """Tell the subtask's checkpoint that there will be no channel state."""

    checkpoint_id: int
    reason: LossReason


@dataclass(frozen=True, slots=True)
class DropFile:
    """Delete what was written for a checkpoint that will never be complete."""

    checkpoint_id: int


WriterAction = WriteBatches | CompleteResult | FailResult | DropFile


@dataclass(frozen=True, slots=True)
class OngoingState:
    """The channel state that is being written."""

    checkpoint_id: int
    open_sides: frozenset[Side] = frozenset(Side)
    batches: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class WriterState:
    """What the writer of a subtask's channel state knows. It writes for one checkpoint at a time."""

    ongoing: OngoingState | None = None
    newest_id: int = NO_CHECKPOINT
    """The newest checkpoint that was started."""
    aborted_id: int = NO_CHECKPOINT
    """The newest checkpoint that was aborted."""
    results: frozenset[int] = frozenset()
    """Whole, and not taken yet."""


WriterStep = tuple[WriterState, tuple[WriterAction, ...]]


def step(state: WriterState, event: WriterEvent) -> WriterStep:
    """The next state of a writer and the actions that an event leads to.

    Raises:
        PartfileError: The event cannot come now: a start again, a batch before the start or after the end of its side,
            or too many results that no checkpoint has taken.
    """
    match event:
        case Start():
            return _start(state, event.checkpoint_id)
        case AddBatches():
            return _add(state, event)
        case FinishSide():
            return _finish(state, event)
        case Abort():
            return _abort(state, event.checkpoint_id)
        case TakeResult():
            return replace(state, results=state.results - {event.checkpoint_id}), ()


def _start(state: WriterState, checkpoint_id: int) -> WriterStep:
    """Begin to write for a checkpoint. The one before it can only have been given up."""
    if checkpoint_id <= state.newest_id:
        message = f"channel state was started for checkpoint {state.newest_id} already"
        raise PartfileError(message, checkpoint_id=checkpoint_id)
    if len(state.results) >= MAX_RESULTS:
        message = f"the channel state of {len(state.results)} checkpoints was written and not taken"
        raise PartfileError(message, checkpoint_id=checkpoint_id)
    state, actions = _dropped(replace(state, newest_id=checkpoint_id), LossReason.SUBSUMED)
    if checkpoint_id <= state.aborted_id:
        return state, (*actions, FailResult(checkpoint_id, LossReason.ABORTED))
    return replace(state, ongoing=OngoingState(checkpoint_id)), actions


def _add(state: WriterState, event: AddBatches) -> WriterStep:
    """Write batches; those of a checkpoint that was given up come too late."""
    ongoing = _expected(state, event)
    if ongoing is None:
        return state, ()
    written = replace(ongoing, batches=ongoing.batches + len(event.batches), nbytes=ongoing.nbytes + event.nbytes)
    return replace(state, ongoing=written), (WriteBatches(event),) if event.batches else ()


def _finish(state: WriterState, event: FinishSide) -> WriterStep:
    """The result is whole when both sides are."""
    ongoing = _expected(state, event)
    if ongoing is None:
        return state, ()
    still_open = ongoing.open_sides - {event.side}
    if still_open:
        return replace(state, ongoing=replace(ongoing, open_sides=still_open)), ()
    results = state.results | {event.checkpoint_id}
    complete = CompleteResult(event.checkpoint_id, ongoing.batches, ongoing.nbytes)
    return replace(state, ongoing=None, results=results), (complete,)


def _expected(state: WriterState, event: AddBatches | FinishSide) -> OngoingState | None:
    """What an event is about; None if its checkpoint was given up."""
    ongoing, checkpoint_id = state.ongoing, event.checkpoint_id
    if ongoing is not None and ongoing.checkpoint_id == checkpoint_id:
        if event.side not in ongoing.open_sides:
            raise PartfileError(f"the {event.side.value} side has been finished", checkpoint_id=checkpoint_id)
        return ongoing
    if checkpoint_id > max(state.newest_id, state.aborted_id) or checkpoint_id in state.results:
        raise PartfileError("no channel state is being written for this checkpoint", checkpoint_id=checkpoint_id)
    return None


def _abort(state: WriterState, checkpoint_id: int) -> WriterStep:
    """Drop what was written up to a checkpoint; a start of it that is still to come fails."""
    given_up = sorted(one for one in state.results if one <= checkpoint_id)
    dropped = tuple(DropFile(one) for one in given_up)
    aborted_id = max(state.aborted_id, checkpoint_id)
    state = WriterState(state.ongoing, state.newest_id, aborted_id, state.results.difference(given_up))
    if state.ongoing is None or state.ongoing.checkpoint_id > checkpoint_id:
        return state, dropped
    state, actions = _dropped(state, LossReason.ABORTED)
    return state, (*dropped, *actions)


def _dropped(state: WriterState, reason: LossReason) -> WriterStep:
    if state.ongoing is None:
        return state, ()
    checkpoint_id = state.ongoing.checkpoint_id
    return replace(state, ongoing=None), (DropFile(checkpoint_id), FailResult(checkpoint_id, reason))
