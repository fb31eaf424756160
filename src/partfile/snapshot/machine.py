"""The checkpoint coordinator as a state machine: what to do when something happens. Pure; no clock, store or chance.

Source: Flink's ``CheckpointCoordinator``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.snapshot.events import (
    REMEMBERED,
    Acknowledged,
    CheckpointCreated,
    CheckpointRequest,
    CloseFailed,
    CloseId,
    CoordinatorRules,
    CoordinatorState,
    CreateCheckpoint,
    CreationFailed,
    CreationFenced,
    CreationUnknown,
    Decision,
    Declined,
    DeletionFinished,
    DiscardState,
    FailJob,
    FailureReason,
    FailureTally,
    FulfilRequest,
    GivenUp,
    IdClosed,
    NotifyAborted,
    NotifyComplete,
    PendingCheckpoint,
    PeriodicStarted,
    PeriodicStopped,
    RefuseRequest,
    Requested,
    RequestKind,
    SetTimer,
    Shutdown,
    Stop,
    Stray,
    Subsume,
    SubtasksKnown,
    TaskFailed,
    Tick,
    Triggered,
    TriggerFailed,
    TriggerTasks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.events import Action, Choice, Event


_JOB_ENDS = {FailureReason.SUSPENDED, FailureReason.SHUTDOWN}


def acknowledged(state: CoordinatorState, event: Acknowledged) -> Decision:
    """Take one subtask's state: the first counts, the same again changes nothing, what is not needed is deleted."""
    pending = state.find(event.checkpoint_id)
    if pending is None or pending.submission != event.submission:
        return _stray(state, event)
    if event.subtask in pending.acknowledged:
        return Decision(state)
    if not pending.has_place_for(event.subtask):
        return Decision(state).doing(DiscardState(event.checkpoint_id, event.handle, Stray.UNKNOWN_SUBTASK))
    return Decision(state).with_pending(pending.with_acknowledgement(event.subtask, event.handle))


def subtasks_known(state: CoordinatorState, event: SubtasksKnown) -> Decision:
    """Learn how many subtasks there are; what others acknowledged is deleted."""
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
    """Give a checkpoint up: notify owner and tasks, delete its states, leave its id to a tombstone, count the failure.

    Not while its ``_metadata`` is being created: then only the log decides.

    Args:
        decision: What has been decided so far.
        pending: The checkpoint.
        reason: Why.
        by_task: Whether a task reported it.
    """
    checkpoint_id = pending.checkpoint_id
    if checkpoint_id == decision.state.creating:
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
    if event.checkpoint_id <= state.newest_checkpoint:
        return Decision(state).doing(DiscardState(event.checkpoint_id, event.handle, Stray.UNKNOWN_CHECKPOINT))
    # A rival's `_metadata` of this id may come to name it; it goes with the directory of the checkpoint (R6).
    return Decision(state)


CLOSE_RETRY_MS = 1000


def advance(decision: Decision, now_ms: int) -> Decision:
    """Create the next checkpoint if its turn has come.

    A tombstone for an aborted id, or the checkpoint that is complete.
    """
    decision = _subsume_smaller(decision)
    state = decision.state
    if state.creating is not None or (state.retry_ms is not None and now_ms < state.retry_ms):
        return decision
    following = state.newest_checkpoint + 1
    if following in state.unclosed:
        return decision.having(creating=following, retry_ms=None).doing(CloseId(following))
    pending = state.find(following)
    if pending is not None and _is_ready(state, pending):
        return decision.having(creating=following).doing(CreateCheckpoint(pending))
    return decision


def checkpoint_created(state: CoordinatorState, event: CheckpointCreated, now_ms: int) -> Decision:
    """The checkpoint is complete: tell it, and only then delete older ones."""
    pending = state.find(event.checkpoint_id)
    if state.creating != event.checkpoint_id or pending is None:
        return Decision(state)
    completed = Decision(state).without_pending(event.checkpoint_id)
    completed = completed.having(
        creating=None,
        newest_checkpoint=event.checkpoint_id,
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


def creation_failed(state: CoordinatorState, event: CreationFailed) -> Decision:
    """``_metadata`` was certainly not created: abort the checkpoint; close its id unless a tombstone has."""
    pending = state.find(event.checkpoint_id)
    if state.creating != event.checkpoint_id or pending is None:
        return Decision(state)
    decision = abort(Decision(state).having(creating=None), pending, FailureReason.FINALIZE)
    return closed(decision, event.checkpoint_id) if event.is_closed else decision


def closed(decision: Decision, checkpoint_id: int) -> Decision:
    """The tombstone of an aborted id is the newest checkpoint."""
    unclosed = decision.state.unclosed - {checkpoint_id}
    return decision.having(creating=None, newest_checkpoint=checkpoint_id, unclosed=unclosed)


def close_failed(state: CoordinatorState, now_ms: int) -> Decision:
    """Try again later: until the id is closed no other checkpoint can be created."""
    return Decision(state).having(creating=None, retry_ms=now_ms + CLOSE_RETRY_MS)


def stop(state: CoordinatorState, reason: FailureReason) -> Decision:
    """Another coordinator may hold the checkpoint log.

    Begin and delete nothing any more, for its checkpoints may name our states.
    """
    decision = _refuse_queued(Decision(state), reason)
    for one in state.pending:
        decision = decision.doing(RefuseRequest(one.request, reason, one.checkpoint_id))
    return _at_rest(decision.having(pending=(), creating=None), reason).doing(Stop(reason))


def shut_down(state: CoordinatorState, reason: FailureReason) -> Decision:
    """Give everything up but the checkpoint that is being created: it may come to be there.

    The ids stay without tombstones: the next start creates them.
    """
    decision = _refuse_queued(Decision(state), reason)
    for one in state.pending:
        if one.checkpoint_id != state.creating:
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


Step = tuple[CoordinatorState, tuple["Action", ...]]


def begin(takeover_id: int, rules: CoordinatorRules) -> Step:
    """A coordinator that has just created its takeover.

    Notifications are best effort, so the last coordinator's may be lost: what the restored state holds is told again.
    """
    state = CoordinatorState(
        rules=rules,
        newest_checkpoint=takeover_id,
        completed_id=takeover_id,
        next_id=takeover_id + 1,
        tally=FailureTally(tolerable=rules.tolerable_failures, last_completed=takeover_id),
    )
    decision = told_and_subsumed(Decision(state), takeover_id)
    return decision.state, decision.actions


def step(state: CoordinatorState, event: Event, now_ms: int) -> Step:
    """The next state and the actions that an event leads to.

    Args:
        state: The state after the event before.
        event: What has happened.
        now_ms: The coordinator's time, in milliseconds since 1970.
    """
    if state.stopped is not None:
        decision = _after_the_end(state, event, now_ms)
        return decision.state, decision.actions
    decision = _happened(state, event, now_ms)
    if decision.state.stopped is None:
        decision = advance(decision, now_ms)
        decision = _choose(decision, now_ms)
        decision = _with_timer(decision)
    return decision.state, decision.actions


def _happened(state: CoordinatorState, event: Event, now_ms: int) -> Decision:
    match event:
        case Requested() | PeriodicStarted() | PeriodicStopped() | Tick() | Triggered() | TriggerFailed():
            return _triggering(state, event, now_ms)
        case Acknowledged() | SubtasksKnown() | Declined() | TaskFailed() | GivenUp():
            return _answered(state, event)
        case DeletionFinished():
            return Decision(state).having(cleaning=max(0, state.cleaning - 1))
        case Shutdown():
            return shut_down(state, event.reason)
        case _:
            return _created(state, event, now_ms)


def _answered(
    state: CoordinatorState, event: Acknowledged | SubtasksKnown | Declined | TaskFailed | GivenUp
) -> Decision:
    match event:
        case Acknowledged():
            return acknowledged(state, event)
        case SubtasksKnown():
            return subtasks_known(state, event)
        case Declined():
            return declined(state, event)
        case TaskFailed():
            return task_failed(state, event)
        case GivenUp():
            return _given_up(state, event.checkpoint_id, event.reason)


def _triggering(
    state: CoordinatorState,
    event: Requested | PeriodicStarted | PeriodicStopped | Tick | Triggered | TriggerFailed,
    now_ms: int,
) -> Decision:
    match event:
        case Requested():
            # A caller waits, and a tombstone that could not be created may hold the next id back: try it at once.
            return _requested(Decision(state).having(retry_ms=None), event, now_ms)
        case PeriodicStarted():
            return Decision(state).having(next_periodic_ms=now_ms + event.first_delay_ms)
        case PeriodicStopped():
            return suspend(state)
        case Tick():
            return _ticked(state, event, now_ms)
        case Triggered():
            return _no_longer_triggering(state, event.checkpoint_id)
        case TriggerFailed():
            decision = _no_longer_triggering(state, event.checkpoint_id)
            return _given_up(decision.state, event.checkpoint_id, event.reason)


def _created(
    state: CoordinatorState,
    event: CheckpointCreated | CreationFailed | CreationUnknown | CreationFenced | IdClosed | CloseFailed,
    now_ms: int,
) -> Decision:
    decision = Decision(state)
    if state.creating != event.checkpoint_id:
        return decision
    match event:
        case CheckpointCreated():
            decision = checkpoint_created(state, event, now_ms)
        case CreationFailed():
            decision = creation_failed(state, event)
        case IdClosed():
            decision = closed(decision, event.checkpoint_id)
        case CloseFailed():
            decision = close_failed(state, now_ms)
        case CreationFenced():
            decision = stop(state, FailureReason.FENCED)
        case CreationUnknown():
            decision = stop(state, FailureReason.OUTCOME_UNKNOWN)
    return decision


def _after_the_end(state: CoordinatorState, event: Event, now_ms: int) -> Decision:
    """Only the creation under way at the shutdown still matters, for it may make its checkpoint complete."""
    match event:
        case Requested() if state.stopped is not None:
            return Decision(state).doing(RefuseRequest(_request(state, event, now_ms), state.stopped))
        case CreationFailed(checkpoint_id) if state.stopped is not None and state.creating == checkpoint_id:
            pending = state.find(checkpoint_id)
            rest = Decision(state).having(creating=None)
            return rest if pending is None else dropped(rest, pending, state.stopped)
        case CheckpointCreated() | CreationUnknown() | CreationFenced():
            return _created(state, event, now_ms).having(stopped=state.stopped)
        case _:
            return Decision(state)


def _requested(decision: Decision, event: Requested, now_ms: int) -> Decision:
    state = decision.state
    choice = state.queue.submit(_request(state, event, now_ms))
    return _refused(decision.having(queue=choice.queue, next_request=state.next_request + 1), choice)


def _request(state: CoordinatorState, event: Requested, now_ms: int) -> CheckpointRequest:
    is_savepoint = event.kind is RequestKind.SAVEPOINT
    return CheckpointRequest(
        number=state.next_request,
        kind=event.kind,
        time_ms=now_ms,
        is_forced=event.is_forced or (is_savepoint and not state.rules.is_unaligned),
        submission=event.submission,
        stops_job=event.stops_job,
    )


def _ticked(state: CoordinatorState, event: Tick, now_ms: int) -> Decision:
    decision = Decision(state)
    if state.timer_ms is not None and state.timer_ms <= now_ms:
        decision = decision.having(timer_ms=None)
    decision = _by_the_clock(expired(decision, now_ms), now_ms)
    due_ms = decision.state.next_periodic_ms
    if due_ms is None or now_ms < due_ms:
        return decision
    decision = decision.having(next_periodic_ms=now_ms + state.rules.period_ms)
    return _requested(decision, Requested(RequestKind.PERIODIC, event.submission), now_ms)


def _by_the_clock(decision: Decision, now_ms: int) -> Decision:
    """After the clock was set back, what it said before must not put anything off for longer than ever."""
    state = decision.state
    latest_ms = now_ms + state.rules.period_ms
    if state.next_periodic_ms is not None and state.next_periodic_ms > latest_ms:
        decision = decision.having(next_periodic_ms=latest_ms)
    if state.last_completion_ms is not None and state.last_completion_ms > now_ms:
        decision = decision.having(last_completion_ms=now_ms)
    return decision


def _no_longer_triggering(state: CoordinatorState, checkpoint_id: int) -> Decision:
    decision = Decision(state)
    return decision.having(triggering=None) if state.triggering == checkpoint_id else decision


def _given_up(state: CoordinatorState, checkpoint_id: int, reason: FailureReason) -> Decision:
    pending = state.find(checkpoint_id)
    return Decision(state) if pending is None else abort(Decision(state), pending, reason)


def _choose(decision: Decision, now_ms: int) -> Decision:
    """Trigger what may be triggered; one refused by the minimum pause makes way for the next in the queue."""
    rules = decision.state.rules
    limits = replace(rules.limits, min_pause_ms=rules.min_pause_ms)
    while decision.state.has_id:
        choice = decision.state.queue.choose(decision.state.situation(now_ms), limits)
        decision = _refused(decision.having(queue=choice.queue), choice)
        if choice.periodic_in_ms is not None and decision.state.next_periodic_ms is not None:
            decision = decision.having(next_periodic_ms=now_ms + choice.periodic_in_ms)
        if choice.request is not None:
            return _pending(decision, choice.request, now_ms)
        if choice.refused is None:
            break
    return decision


def _refused(decision: Decision, choice: Choice) -> Decision:
    if choice.refused is None or choice.reason is None:
        return decision
    return decision.doing(RefuseRequest(choice.refused, choice.reason))


def _pending(decision: Decision, request: CheckpointRequest, now_ms: int) -> Decision:
    state = decision.state
    pending = PendingCheckpoint(
        checkpoint_id=state.next_id,
        request=request,
        time_ms=now_ms,
        deadline_ms=now_ms + state.rules.timeout_ms,
    )
    return decision.having(
        next_id=state.next_id + 1, triggering=state.next_id, pending=(*state.pending, pending)
    ).doing(TriggerTasks(pending))


def _with_timer(decision: Decision) -> Decision:
    due_ms = decision.state.due_ms()
    if due_ms is None or due_ms == decision.state.timer_ms:
        return decision
    return decision.having(timer_ms=due_ms).doing(SetTimer(due_ms))
