"""What acknowledgements, declines, failures and time do to pending checkpoints. Pure.

Source: Flink's ``CheckpointCoordinator`` and ``PendingCheckpoint``, as of 1.20.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.snapshot.actions import DiscardState, FailJob, NotifyAborted, RefuseRequest, Stray
from partfile.snapshot.failures import FailureReason
from partfile.snapshot.machine_state import REMEMBERED, Decision
from partfile.snapshot.requests import RequestKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.events import Acknowledged, Declined, SubtasksKnown, TaskFailed
    from partfile.snapshot.machine_state import CoordinatorState
    from partfile.snapshot.pending import PendingCheckpoint

_JOB_ENDS = {FailureReason.SUSPENDED, FailureReason.SHUTDOWN}


def acknowledged(state: CoordinatorState, event: Acknowledged) -> Decision:
    """Take one subtask's state: the first counts, the same again changes nothing, what nobody needs is deleted."""
    pending = state.find(event.checkpoint_id)
    if pending is None or pending.submission != event.submission:
        return _stray(state, event)
    if event.subtask in pending.acknowledged:
        return Decision(state)
    if not pending.has_place_for(event.subtask):
        return Decision(state).doing(DiscardState(event.checkpoint_id, event.handle, Stray.UNKNOWN_SUBTASK))
    return Decision(state).with_pending(pending.with_acknowledgement(event.subtask, event.handle))


def subtasks_known(state: CoordinatorState, event: SubtasksKnown) -> Decision:
    """Learn how many subtasks there are; what others acknowledged belongs to nobody."""
    pending = state.find(event.checkpoint_id)
    if pending is None or pending.expected is not None:
        return Decision(state)
    strays = [handle for subtask, handle in pending.acknowledged.items() if subtask >= event.subtasks]
    discards = [DiscardState(event.checkpoint_id, handle, Stray.UNKNOWN_SUBTASK) for handle in strays]
    return Decision(state).with_pending(pending.expecting(event.subtasks)).doing(*discards)


def declined(state: CoordinatorState, event: Declined) -> Decision:
    """One subtask's refusal is the end of its checkpoint."""
    pending = state.find(event.checkpoint_id)
    if pending is None or pending.submission != event.submission:
        return Decision(state)
    return abort(Decision(state), pending, event.reason, by_task=True)


def task_failed(state: CoordinatorState, event: TaskFailed) -> Decision:
    """Abort what the task has not acknowledged; what it has is safe without it."""
    return abort_where(Decision(state), FailureReason.TASK_FAILED, lambda one: one.waits_for(event.subtask))


def expired(decision: Decision, now_ms: int) -> Decision:
    """Abort what has taken too long."""
    return abort_where(decision, FailureReason.EXPIRED, lambda one: one.deadline_ms <= now_ms)


def abort_where(decision: Decision, reason: FailureReason, is_hit: Callable[[PendingCheckpoint], bool]) -> Decision:
    """Abort every pending checkpoint that is hit, the oldest first."""
    for one in decision.state.pending:
        if is_hit(one):
            decision = abort(decision, one, reason)
    return decision


def abort(decision: Decision, pending: PendingCheckpoint, reason: FailureReason, *, by_task: bool = False) -> Decision:
    """Give a checkpoint up: tell everybody, delete its states, leave its id to a tombstone, count the failure.

    Not while its link is being created: then only the chain decides.

    Args:
        decision: What has been decided so far.
        pending: The checkpoint.
        reason: Why.
        by_task: Whether a task reported it.
    """
    checkpoint_id = pending.checkpoint_id
    if checkpoint_id == decision.state.linking:
        return decision
    handles = [handle for _, handle in sorted(pending.acknowledged.items(), key=lambda one: one[0])]
    given_up = (*decision.state.given_up, pending.submission)[-REMEMBERED:]
    aborted = (
        decision.without_pending(checkpoint_id)
        .having(unclosed=decision.state.unclosed | {checkpoint_id}, given_up=given_up)
        .doing(RefuseRequest(pending.request, reason, checkpoint_id))
        .doing(NotifyAborted(checkpoint_id, reason, decision.state.completed_id))
        .doing(*(DiscardState(checkpoint_id, handle, Stray.ABORTED) for handle in handles))
    )
    return _counted(aborted, pending, reason, by_task=by_task)


def _counted(decision: Decision, pending: PendingCheckpoint, reason: FailureReason, *, by_task: bool) -> Decision:
    request = pending.request
    if request.stops_job:
        # Its tasks may have stopped already; only a restart brings them back.
        return decision if reason in _JOB_ENDS else decision.doing(FailJob(pending.checkpoint_id, reason))
    if request.kind is RequestKind.SAVEPOINT and not by_task:
        return decision
    tally, fails = decision.state.tally.failed(pending.checkpoint_id, reason)
    counted = decision.having(tally=tally)
    return counted.doing(FailJob(pending.checkpoint_id, reason)) if fails else counted


def _stray(state: CoordinatorState, event: Acknowledged) -> Decision:
    if event.submission in state.given_up:
        return Decision(state).doing(DiscardState(event.checkpoint_id, event.handle, Stray.LATE))
    if event.checkpoint_id <= state.newest_link:
        return Decision(state).doing(DiscardState(event.checkpoint_id, event.handle, Stray.UNKNOWN_CHECKPOINT))
    # A rival's link with this id may come to name it; it goes with the directory of its checkpoint (S6).
    return Decision(state)
