"""The checkpoint coordinator as a state machine: what to do when something happens. Pure; no clock, store or chance.

Source: Flink's ``CheckpointCoordinator``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.snapshot import machine_links as links
from partfile.snapshot import machine_pending as pendings
from partfile.snapshot.actions import RefuseRequest, SetTimer, TriggerTasks
from partfile.snapshot.events import (
    Acknowledged,
    CloseFailed,
    Declined,
    DeletionFinished,
    GivenUp,
    IdClosed,
    LinkCreated,
    LinkFailed,
    LinkFenced,
    LinkUnknown,
    PeriodicStarted,
    PeriodicStopped,
    Requested,
    Shutdown,
    SubtasksKnown,
    TaskFailed,
    Tick,
    Triggered,
    TriggerFailed,
)
from partfile.snapshot.failures import FailureReason, FailureTally
from partfile.snapshot.machine_state import CoordinatorRules, CoordinatorState, Decision
from partfile.snapshot.pending import PendingCheckpoint
from partfile.snapshot.requests import CheckpointRequest, RequestKind

if TYPE_CHECKING:
    from partfile.snapshot.actions import Action
    from partfile.snapshot.events import Event
    from partfile.snapshot.requests import Choice

Step = tuple[CoordinatorState, tuple["Action", ...]]


def begin(fence_id: int, rules: CoordinatorRules) -> Step:
    """A coordinator that has just created its fence link.

    Notifications are best effort, so the last coordinator's may be lost: what the restored state holds is told again.
    """
    state = CoordinatorState(
        rules=rules,
        newest_link=fence_id,
        completed_id=fence_id,
        next_id=fence_id + 1,
        tally=FailureTally(tolerable=rules.tolerable_failures, last_completed=fence_id),
    )
    decision = links.told_and_subsumed(Decision(state), fence_id)
    return decision.state, decision.actions


def step(state: CoordinatorState, event: Event, now_ms: int) -> Step:
    """What an event changes and what is to be done about it.

    Args:
        state: The state after the event before.
        event: What has happened.
        now_ms: The coordinator's time, in milliseconds since the epoch.
    """
    if state.stopped is not None:
        decision = _after_the_end(state, event, now_ms)
        return decision.state, decision.actions
    decision = _happened(state, event, now_ms)
    if decision.state.stopped is None:
        decision = links.advance(decision, now_ms)
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
            return links.shut_down(state, event.reason)
        case _:
            return _linked(state, event, now_ms)


def _answered(
    state: CoordinatorState, event: Acknowledged | SubtasksKnown | Declined | TaskFailed | GivenUp
) -> Decision:
    match event:
        case Acknowledged():
            return pendings.acknowledged(state, event)
        case SubtasksKnown():
            return pendings.subtasks_known(state, event)
        case Declined():
            return pendings.declined(state, event)
        case TaskFailed():
            return pendings.task_failed(state, event)
        case GivenUp():
            return _given_up(state, event.checkpoint_id, event.reason)


def _triggering(
    state: CoordinatorState,
    event: Requested | PeriodicStarted | PeriodicStopped | Tick | Triggered | TriggerFailed,
    now_ms: int,
) -> Decision:
    match event:
        case Requested():
            # Somebody waits: a tombstone that could not be created is tried at once, for it may hold the next id back.
            return _requested(Decision(state).having(retry_ms=None), event, now_ms)
        case PeriodicStarted():
            return Decision(state).having(next_periodic_ms=now_ms + event.first_delay_ms)
        case PeriodicStopped():
            return links.suspend(state)
        case Tick():
            return _ticked(state, event, now_ms)
        case Triggered():
            return _no_longer_triggering(state, event.checkpoint_id)
        case TriggerFailed():
            decision = _no_longer_triggering(state, event.checkpoint_id)
            return _given_up(decision.state, event.checkpoint_id, event.reason)


def _linked(
    state: CoordinatorState,
    event: LinkCreated | LinkFailed | LinkUnknown | LinkFenced | IdClosed | CloseFailed,
    now_ms: int,
) -> Decision:
    decision = Decision(state)
    if state.linking != event.checkpoint_id:
        return decision
    match event:
        case LinkCreated():
            decision = links.link_created(state, event, now_ms)
        case LinkFailed():
            decision = links.link_failed(state, event)
        case IdClosed():
            decision = links.closed(decision, event.checkpoint_id)
        case CloseFailed():
            decision = links.close_failed(state, now_ms)
        case LinkFenced():
            decision = links.stop(state, FailureReason.FENCED)
        case LinkUnknown():
            decision = links.stop(state, FailureReason.OUTCOME_UNKNOWN)
    return decision


def _after_the_end(state: CoordinatorState, event: Event, now_ms: int) -> Decision:
    """Only the link that was being created at the shutdown still matters, for it may make its checkpoint complete."""
    match event:
        case Requested() if state.stopped is not None:
            return Decision(state).doing(RefuseRequest(_request(state, event, now_ms), state.stopped))
        case LinkFailed(checkpoint_id) if state.stopped is not None and state.linking == checkpoint_id:
            pending = state.find(checkpoint_id)
            rest = Decision(state).having(linking=None)
            return rest if pending is None else links.dropped(rest, pending, state.stopped)
        case LinkCreated() | LinkUnknown() | LinkFenced():
            return _linked(state, event, now_ms).having(stopped=state.stopped)
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
    decision = _by_the_clock(pendings.expired(decision, now_ms), now_ms)
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
    return Decision(state) if pending is None else pendings.abort(Decision(state), pending, reason)


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
