"""What a subtask does for a checkpoint, in which order, and when it takes no part. Pure.

Source: Flink's ``SubtaskCheckpointCoordinatorImpl``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.pipeline.barriers import NO_CHECKPOINT
from partfile.snapshot.events import FailureReason

if TYPE_CHECKING:
    from partfile.pipeline.barriers import AbortReason, Barrier

MAX_ABORTED = 10
"""Aborted checkpoints that a subtask remembers until their barriers come."""


@dataclass(frozen=True, slots=True)
class PrepareBarrier:
    """Let the operators send what has to be ahead of the barrier."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SendBarrier:
    """Send the barrier into every output channel; ahead of what waits there, if it overtakes."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class PersistOutputs:
    """Persist the batches that the barrier has overtaken in the output channels, and finish that side.

    A barrier with a timeout may overtake them later: then that side is finished when the barrier has left.
    """

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class SynchronousPart:
    """Freeze the state of the operators."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class AsynchronousPart:
    """Write what was frozen, and acknowledge when it is durable and the channel state is whole."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class SendCancellation:
    """Tell every output channel, behind what waits there, that the barrier will not come."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AbortChannelState:
    """Give up the channel state of a checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CancelAsynchronousPart:
    """Cancel what is being written for a checkpoint, and leave no file of it."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class Decline:
    """Tell the coordinator that this subtask takes no part."""

    checkpoint_id: int
    reason: FailureReason


Action = (
    PrepareBarrier
    | SendBarrier
    | PersistOutputs
    | SynchronousPart
    | AsynchronousPart
    | SendCancellation
    | AbortChannelState
    | CancelAsynchronousPart
    | Decline
)
Step = tuple["SubtaskState", tuple[Action, ...]]


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """What a subtask remembers of checkpoints."""

    newest_id: int = NO_CHECKPOINT
    """The newest checkpoint that it took, or gave up."""
    aborted: frozenset[int] = frozenset()
    """Checkpoints that the coordinator has aborted, and that the subtask has not come to yet."""
    is_closed: bool = False
    """Whether its operators are closed."""


def take(state: SubtaskState, barrier: Barrier) -> Step:
    """The snapshot's turn has come: by the handler of the barriers, or in a source by the coordinator's trigger."""
    checkpoint_id = barrier.checkpoint_id
    if checkpoint_id <= state.newest_id:
        return _forgotten(state, checkpoint_id), (AbortChannelState(checkpoint_id),)
    is_aborted = checkpoint_id in state.aborted
    state = _forgotten(SubtaskState(checkpoint_id, state.aborted, state.is_closed), checkpoint_id)
    if is_aborted:
        # The subtasks behind this one may be aligning for it already.
        return state, (SendCancellation(checkpoint_id), AbortChannelState(checkpoint_id))
    if state.is_closed:
        closing = Decline(checkpoint_id, FailureReason.TASK_CLOSING)
        return state, (SendCancellation(checkpoint_id), AbortChannelState(checkpoint_id), closing)
    return state, (
        PrepareBarrier(checkpoint_id),
        # First of all, so that the subtasks behind this one begin while it persists and copies.
        SendBarrier(barrier),
        PersistOutputs(barrier),
        SynchronousPart(barrier),
        AsynchronousPart(barrier),
    )


def aborted_by_coordinator(state: SubtaskState, checkpoint_id: int) -> Step:
    """The coordinator tells of an aborted checkpoint: end what runs, or remember it until its barriers come."""
    if checkpoint_id <= state.newest_id:
        return state, (CancelAsynchronousPart(checkpoint_id), AbortChannelState(checkpoint_id))
    newest = sorted(state.aborted | {checkpoint_id})[-MAX_ABORTED:]
    return replace(state, aborted=frozenset(newest)), ()


def aborted_by_barriers(state: SubtaskState, checkpoint_id: int, reason: AbortReason) -> Step:
    """The handler of the barriers gives a checkpoint up: decline it, and tell the subtasks behind this one."""
    state = _forgotten(replace(state, newest_id=max(state.newest_id, checkpoint_id)), checkpoint_id)
    return state, (
        CancelAsynchronousPart(checkpoint_id),
        AbortChannelState(checkpoint_id),
        SendCancellation(checkpoint_id),
        Decline(checkpoint_id, FailureReason[reason.name]),
    )


def synchronous_part_failed(state: SubtaskState, checkpoint_id: int) -> Step:
    """The operators could not be frozen: nothing of the checkpoint is left here. The error is raised afterwards."""
    return state, (
        CancelAsynchronousPart(checkpoint_id),
        AbortChannelState(checkpoint_id),
        Decline(checkpoint_id, FailureReason.DECLINED),
    )


def _forgotten(state: SubtaskState, checkpoint_id: int) -> SubtaskState:
    later = frozenset(one for one in state.aborted if one > checkpoint_id)
    return state if later == state.aborted else replace(state, aborted=later)
