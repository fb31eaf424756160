"""Which link is created next, and what follows from its outcome: completions in the order of ids (S7). Pure.

Source: Flink's ``CheckpointCoordinator`` and ``DefaultCompletedCheckpointStore``, as of 1.20. Unlike there, the row of
completed checkpoints has no holes, so what a completion subsumes is closed before it, and a savepoint is waited for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.snapshot.actions import (
    CloseId,
    CreateLink,
    DiscardState,
    FulfilRequest,
    NotifyAborted,
    NotifyComplete,
    RefuseRequest,
    Stop,
    Stray,
    Subsume,
)
from partfile.snapshot.failures import FailureReason
from partfile.snapshot.machine_pending import abort, abort_where
from partfile.snapshot.machine_state import Decision
from partfile.snapshot.requests import RequestKind

if TYPE_CHECKING:
    from partfile.snapshot.events import LinkCreated, LinkFailed
    from partfile.snapshot.machine_state import CoordinatorState
    from partfile.snapshot.pending import PendingCheckpoint

CLOSE_RETRY_MS = 1000


def advance(decision: Decision, now_ms: int) -> Decision:
    """Create the next link if its turn has come: a tombstone for an aborted id, or the checkpoint that is complete."""
    decision = _subsume_smaller(decision)
    state = decision.state
    if state.linking is not None or (state.retry_ms is not None and now_ms < state.retry_ms):
        return decision
    following = state.newest_link + 1
    if following in state.unclosed:
        return decision.having(linking=following, retry_ms=None).doing(CloseId(following))
    pending = state.find(following)
    if pending is not None and _is_ready(state, pending):
        return decision.having(linking=following).doing(CreateLink(pending))
    return decision


def link_created(state: CoordinatorState, event: LinkCreated, now_ms: int) -> Decision:
    """The checkpoint is complete: tell it, and only then delete older ones (CC-02, CC-15)."""
    pending = state.find(event.checkpoint_id)
    if state.linking != event.checkpoint_id or pending is None:
        return Decision(state)
    completed = Decision(state).without_pending(event.checkpoint_id)
    completed = completed.having(
        linking=None,
        newest_link=event.checkpoint_id,
        completed_id=event.checkpoint_id,
        tally=state.tally.completed(event.checkpoint_id),
        last_completion_ms=now_ms,
    ).doing(FulfilRequest(pending))
    if not pending.request.commits:
        return completed
    return told_and_subsumed(completed, event.checkpoint_id)


def told_and_subsumed(decision: Decision, checkpoint_id: int) -> Decision:
    """Tell that all up to ``checkpoint_id`` is complete, and begin a round of deletion."""
    return decision.having(cleaning=decision.state.cleaning + 1).doing(NotifyComplete(checkpoint_id), Subsume())


def link_failed(state: CoordinatorState, event: LinkFailed) -> Decision:
    """The link is certainly not there: the checkpoint is aborted, and its id closed unless that has happened."""
    pending = state.find(event.checkpoint_id)
    if state.linking != event.checkpoint_id or pending is None:
        return Decision(state)
    decision = abort(Decision(state).having(linking=None), pending, FailureReason.FINALIZE)
    return closed(decision, event.checkpoint_id) if event.is_closed else decision


def closed(decision: Decision, checkpoint_id: int) -> Decision:
    """The tombstone of an aborted id is the newest link."""
    unclosed = decision.state.unclosed - {checkpoint_id}
    return decision.having(linking=None, newest_link=checkpoint_id, unclosed=unclosed)


def close_failed(state: CoordinatorState, now_ms: int) -> Decision:
    """Try again later: until the id is closed no other link can be created."""
    return Decision(state).having(linking=None, retry_ms=now_ms + CLOSE_RETRY_MS)


def stop(state: CoordinatorState, reason: FailureReason) -> Decision:
    """Another coordinator may hold the chain: begin and delete nothing any more, for its links may name our states."""
    decision = _refuse_queued(Decision(state), reason)
    for one in state.pending:
        decision = decision.doing(RefuseRequest(one.request, reason, one.checkpoint_id))
    return _at_rest(decision.having(pending=(), linking=None), reason).doing(Stop(reason))


def shut_down(state: CoordinatorState, reason: FailureReason) -> Decision:
    """Give everything up but the link that is being created: it may come to be there.

    The ids stay without tombstones: the next start creates them.
    """
    decision = _refuse_queued(Decision(state), reason)
    for one in state.pending:
        if one.checkpoint_id != state.linking:
            decision = dropped(decision, one, reason)
    return _at_rest(decision, reason)


def suspend(state: CoordinatorState) -> Decision:
    """Stop periodic checkpoints and give up those under way and those that wait."""
    decision = _refuse_queued(Decision(state), FailureReason.SUSPENDED).having(next_periodic_ms=None)
    return abort_where(decision, FailureReason.SUSPENDED, lambda _one: True)


def _subsume_smaller(decision: Decision) -> Decision:
    state = decision.state
    ready = [one.checkpoint_id for one in state.pending if _is_ready(state, one) and one.request.commits]
    newest = max(ready, default=0)
    return abort_where(
        decision,
        FailureReason.SUBSUMED,
        lambda one: one.checkpoint_id < newest and one.request.kind is not RequestKind.SAVEPOINT,
    )


def _is_ready(state: CoordinatorState, pending: PendingCheckpoint) -> bool:
    return pending.is_acknowledged and pending.checkpoint_id != state.triggering


def _refuse_queued(decision: Decision, reason: FailureReason) -> Decision:
    refused = [RefuseRequest(request, reason) for request in decision.state.queue.waiting]
    return decision.having(queue=replace(decision.state.queue, waiting=())).doing(*refused)


def dropped(decision: Decision, pending: PendingCheckpoint, reason: FailureReason) -> Decision:
    """Give a checkpoint up at the end of all: nothing is counted, and its id stays open."""
    checkpoint_id = pending.checkpoint_id
    return (
        decision.without_pending(checkpoint_id)
        .doing(RefuseRequest(pending.request, reason, checkpoint_id))
        .doing(NotifyAborted(checkpoint_id, reason, decision.state.completed_id))
        .doing(*(DiscardState(checkpoint_id, handle, Stray.ABORTED) for handle in pending.acknowledged.values()))
    )


def _at_rest(decision: Decision, reason: FailureReason) -> Decision:
    return decision.having(stopped=reason, next_periodic_ms=None, retry_ms=None, timer_ms=None, triggering=None)
