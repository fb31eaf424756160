"""What a subtask does with barriers, as two state machines. Pure; no clock, thread, queue or chance.

The first aligns, and lets barriers overtake batches where the rules allow it. The second counts barriers and no more.
Source: Flink's ``SingleCheckpointBarrierHandler`` with its states, and ``CheckpointBarrierTracker``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.errors import PartfileError
from partfile.pipeline.barriers import (
    AbortCheckpoint,
    AbortReason,
    Alignment,
    AlignmentMetrics,
    AlignmentState,
    AllBarriersReceived,
    BarrierAnnounced,
    BarrierReceived,
    Block,
    BytesProcessed,
    CancelReceived,
    ChannelEnded,
    Handler,
    PersistInputs,
    Prioritize,
    Resume,
    SetTimer,
    TakeSnapshot,
    Tick,
    TrackedCheckpoint,
    TrackerState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.pipeline.barriers import Action, Barrier, BarrierRules, Event

MAX_TRACKED = 50
"""Checkpoints whose barriers a tracker counts at one time; with one more it forgets the oldest."""

State = AlignmentState | TrackerState
Actions = tuple["Action", ...]
Step = tuple[State, Actions]


def begin(rules: BarrierRules, gates: Sequence[int]) -> State:
    """The handler of a subtask.

    Args:
        rules: The job's.
        gates: The number of channels of each gate. One handler serves all of them, so that an operator with two inputs
            takes one snapshot for both.
    """
    channels = frozenset(range(sum(gates)))
    return (TrackerState if rules.handler is Handler.TRACKER else AlignmentState)(rules, channels)


def step(state: State, event: Event, now_ms: int) -> Step:
    """The next state and the actions that an event leads to.

    Args:
        state: The state after the event before.
        event: What has happened.
        now_ms: The time, in milliseconds since 1970.

    Raises:
        PartfileError: A channel has sent one barrier twice, or one behind its end.
    """
    if isinstance(state, TrackerState):
        return _tracked(state, event, now_ms)
    return _aligned(state, event, now_ms)


def _aligned(state: AlignmentState, event: Event, now_ms: int) -> Step:
    match event:
        case BarrierReceived():
            return _received(state, event, now_ms)
        case BytesProcessed():
            return _processed(state, event.nbytes)
        case BarrierAnnounced():
            return _announced(state, event, now_ms)
        case CancelReceived():
            return _cancelled(state, event.checkpoint_id)
        case ChannelEnded():
            return _ended(state, event.channel, now_ms)
        case Tick():
            return _ticked(state, now_ms)


def _received(state: AlignmentState, event: BarrierReceived, now_ms: int) -> Step:
    """Count a barrier; one of a checkpoint that is over is dropped, and its channel is read on."""
    barrier = event.barrier
    if state.is_late(barrier.checkpoint_id):
        return state, ()
    alignment, begun = _begun(state, barrier, now_ms)
    if event.channel in alignment.received or event.channel not in state.open_channels:
        raise _out_of_place(event)
    counted, actions = _counted(state.rules, alignment, event.channel, barrier, now_ms)
    return _at(state, barrier.checkpoint_id, counted), (*begun, *actions)


def _announced(state: AlignmentState, event: BarrierAnnounced, now_ms: int) -> Step:
    """A barrier waits behind batches: its checkpoint begins, and with it the time until it overtakes them."""
    barrier = event.barrier
    if not _may_overtake(state.rules) or barrier.timeout_ms is None or state.is_late(barrier.checkpoint_id):
        return state, ()
    alignment, actions = _begun(state, barrier, now_ms)
    if alignment.has_overtaken:
        return state, (*actions, Prioritize((event.channel,)))
    alignment = replace(alignment, announced=alignment.announced | {event.channel})
    if barrier.is_timed_out(now_ms):
        alignment, overtaking = _overtaking(alignment)
        actions = (*actions, *overtaking)
    return _at(state, barrier.checkpoint_id, alignment), actions


def _cancelled(state: AlignmentState, checkpoint_id: int) -> Step:
    """Give a checkpoint up, and take note of its id, so that its barriers never begin an alignment."""
    if state.is_late(checkpoint_id):
        return state, ()
    if checkpoint_id == state.newest_id:
        return _at(state, checkpoint_id, None), _aborting(state, AbortReason.CANCELLED)
    cancelled = AbortCheckpoint(checkpoint_id, AbortReason.CANCELLED)
    return _at(state, checkpoint_id, None), (*_aborting(state, AbortReason.SUBSUMED), cancelled)


def _ended(state: AlignmentState, channel: int, now_ms: int) -> Step:
    """A channel without anything more: its end counts as its barrier, unless the rules say that it aborts."""
    if channel not in state.open_channels:
        return state, ()
    alignment = state.alignment
    state = replace(state, open_channels=state.open_channels - {channel})
    if alignment is None or channel in alignment.received:
        return state, ()
    if state.rules.end_aborts:
        return _at(state, state.newest_id, None), _aborting(state, AbortReason.INPUT_ENDED)
    counted, actions = _counted(state.rules, alignment, channel, None, now_ms)
    return _at(state, state.newest_id, counted), actions


def _processed(state: AlignmentState, nbytes: int) -> Step:
    alignment = state.alignment
    if alignment is None or not alignment.received:
        return state, ()
    alignment = replace(alignment, processed_bytes=alignment.processed_bytes + nbytes)
    return _at(state, state.newest_id, alignment), ()


def _ticked(state: AlignmentState, now_ms: int) -> Step:
    alignment = state.alignment
    if alignment is None or alignment.has_overtaken:
        return state, ()
    barrier = alignment.barrier
    if barrier.is_timed_out(now_ms):
        alignment, actions = _overtaking(alignment)
        return _at(state, state.newest_id, alignment), actions
    # The tick is another's, or the clock was set back and the timer is gone.
    return state, () if barrier.due_ms is None else (SetTimer(barrier.due_ms),)


def _begun(state: AlignmentState, barrier: Barrier, now_ms: int) -> tuple[Alignment, Actions]:
    """The alignment of a barrier's checkpoint. If it is new, the one before it is given up."""
    if state.alignment is not None and barrier.checkpoint_id == state.newest_id:
        return state.alignment, ()
    actions = _aborting(state, AbortReason.SUBSUMED)
    if not _may_overtake(state.rules):
        barrier = barrier.aligned()
    if barrier.due_ms is not None and not barrier.is_timed_out(now_ms):
        actions = (*actions, SetTimer(barrier.due_ms))
    return Alignment(barrier, len(state.open_channels)), actions


def _counted(
    rules: BarrierRules, alignment: Alignment, channel: int, barrier: Barrier | None, now_ms: int
) -> tuple[Alignment | None, Actions]:
    """Count a channel's barrier, or its end (None). No alignment is left when it was the last."""
    received = (*alignment.received, channel)
    first_ms = alignment.first_ms if alignment.received else now_ms
    announced = alignment.announced - {channel}
    is_last = len(received) == alignment.target
    alignment = replace(alignment, received=received, announced=announced, first_ms=first_ms)
    actions: Actions = ()
    if alignment.has_overtaken:
        pass
    elif _is_to_overtake(rules, alignment, barrier, now_ms):
        alignment, actions = _overtaking(alignment)
    elif barrier is not None and not is_last:
        # What is behind the barrier must not reach the operator before its snapshot.
        alignment, actions = replace(alignment, blocked=(*alignment.blocked, channel)), (Block(channel),)
    return (None, (*actions, *_completing(alignment, now_ms))) if is_last else (alignment, actions)


def _may_overtake(rules: BarrierRules) -> bool:
    return rules.handler is Handler.ALTERNATING


def _is_to_overtake(rules: BarrierRules, alignment: Alignment, barrier: Barrier | None, now_ms: int) -> bool:
    """Whether the snapshot is taken now, although barriers may be missing.

    One that overtakes comes also of a subtask whose own timeout was over first.
    """
    if not _may_overtake(rules):
        return False
    is_last = len(alignment.received) == alignment.target
    is_ahead = barrier is not None and barrier.is_unaligned
    return is_ahead or (not is_last and alignment.barrier.is_timed_out(now_ms))


def _overtaking(alignment: Alignment) -> tuple[Alignment, Actions]:
    """Take the snapshot now. What barriers have not reached yet is persisted, and from now on no channel waits."""
    barrier = alignment.barrier.unaligned()
    actions: Actions = (PersistInputs(barrier), TakeSnapshot(barrier), *_resuming(alignment))
    if alignment.announced:
        actions = (Prioritize(tuple(sorted(alignment.announced))), *actions)
    return replace(alignment, has_overtaken=True, blocked=(), announced=frozenset()), actions


def _completing(alignment: Alignment, now_ms: int) -> Actions:
    """Every channel's barrier is there. If none has overtaken, the snapshot is taken only now."""
    barrier = alignment.barrier
    metrics = _metrics(barrier, alignment.first_ms, now_ms, alignment.processed_bytes)
    complete = AllBarriersReceived(barrier.checkpoint_id, metrics)
    if alignment.has_overtaken:
        return (complete,)
    return (TakeSnapshot(barrier), complete, *_resuming(alignment))


def _aborting(state: AlignmentState, reason: AbortReason) -> Actions:
    """Give up the newest checkpoint, unless it is over."""
    if state.alignment is None:
        return ()
    return (AbortCheckpoint(state.newest_id, reason), *_resuming(state.alignment))


def _resuming(alignment: Alignment) -> Actions:
    return (Resume(alignment.blocked),) if alignment.blocked else ()


def _at(state: AlignmentState, newest_id: int, alignment: Alignment | None) -> AlignmentState:
    return AlignmentState(state.rules, state.open_channels, newest_id, alignment)


def _metrics(barrier: Barrier, first_ms: int, now_ms: int, processed_bytes: int) -> AlignmentMetrics:
    return AlignmentMetrics(
        start_delay_ms=max(0, first_ms - barrier.time_ms),
        alignment_ms=max(0, now_ms - first_ms),
        processed_bytes=processed_bytes,
    )


def _out_of_place(event: BarrierReceived) -> PartfileError:
    message = f"channel {event.channel} has sent one barrier twice, or one behind its end"
    return PartfileError(message, checkpoint_id=event.barrier.checkpoint_id)


def _tracked(state: TrackerState, event: Event, now_ms: int) -> Step:
    match event:
        case BarrierReceived():
            return _barrier_tracked(state, event, now_ms)
        case CancelReceived():
            return _cancel_tracked(state, event.checkpoint_id)
        case ChannelEnded():
            return _end_tracked(state, event.channel, now_ms)
        case BytesProcessed():
            counted = tuple(replace(one, processed_bytes=one.processed_bytes + event.nbytes) for one in state.pending)
            return replace(state, pending=counted), ()
        case BarrierAnnounced() | Tick():
            return state, ()


def _barrier_tracked(state: TrackerState, event: BarrierReceived, now_ms: int) -> Step:
    """Count a barrier. One of a checkpoint that is neither new nor counted is late, and is dropped."""
    barrier, channel = event.barrier, event.channel
    found = next((one for one in state.pending if one.barrier.checkpoint_id == barrier.checkpoint_id), None)
    if found is None:
        if barrier.checkpoint_id <= state.newest_id:
            return state, ()
        if channel not in state.open_channels:
            raise _out_of_place(event)
        first = TrackedCheckpoint(barrier, len(state.open_channels), (channel,), now_ms)
        pending = (*state.pending, first)[-MAX_TRACKED:]
        return _complete_tracked(replace(state, pending=pending, newest_id=barrier.checkpoint_id), now_ms)
    if channel in found.received:
        raise _out_of_place(event)
    return _complete_tracked(_with_channel(state, channel, found), now_ms)


def _cancel_tracked(state: TrackerState, checkpoint_id: int) -> Step:
    """Forget a checkpoint and all before it; told once, however many channels tell of it."""
    is_pending = any(one.barrier.checkpoint_id == checkpoint_id for one in state.pending)
    if not is_pending and checkpoint_id <= state.newest_id:
        return state, ()
    later = tuple(one for one in state.pending if one.barrier.checkpoint_id > checkpoint_id)
    state = replace(state, pending=later, newest_id=max(state.newest_id, checkpoint_id))
    return state, (AbortCheckpoint(checkpoint_id, AbortReason.CANCELLED),)


def _end_tracked(state: TrackerState, channel: int, now_ms: int) -> Step:
    if channel not in state.open_channels:
        return state, ()
    state = replace(state, open_channels=state.open_channels - {channel})
    if state.rules.end_aborts:
        ids = [one.barrier.checkpoint_id for one in state.pending]
        aborted = tuple(AbortCheckpoint(checkpoint_id, AbortReason.INPUT_ENDED) for checkpoint_id in ids)
        return replace(state, pending=()), aborted
    waiting = [one for one in state.pending if channel not in one.received]
    return _complete_tracked(_with_channel(state, channel, *waiting), now_ms)


def _with_channel(state: TrackerState, channel: int, *counted: TrackedCheckpoint) -> TrackerState:
    pending = tuple(replace(one, received=(*one.received, channel)) if one in counted else one for one in state.pending)
    return replace(state, pending=pending)


def _complete_tracked(state: TrackerState, now_ms: int) -> Step:
    """Take the snapshot of the newest checkpoint that is complete; those before it can be complete no more."""
    done = next((one for one in reversed(state.pending) if one.is_complete), None)
    if done is None:
        return state, ()
    checkpoint_id = done.barrier.checkpoint_id
    later = tuple(one for one in state.pending if one.barrier.checkpoint_id > checkpoint_id)
    metrics = _metrics(done.barrier, done.first_ms, now_ms, done.processed_bytes)
    actions = (TakeSnapshot(done.barrier), AllBarriersReceived(checkpoint_id, metrics))
    return replace(state, pending=later), actions
