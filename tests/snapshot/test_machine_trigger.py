"""The state machine of the coordinator: which requests are triggered, when, and what time does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from coordinator_steps import FENCE_ID, PERIODIC, SAVEPOINT, USER, Machine, only, rules

from partfile.errors import ConfigError
from partfile.snapshot.documents import MAX_IDS_AHEAD
from partfile.snapshot.events import (
    MAX_PAUSE_MS,
    CoordinatorRules,
    DeletionFinished,
    FailureReason,
    GivenUp,
    IdClosed,
    LinkCreated,
    NotifyAborted,
    NotifyComplete,
    PeriodicStarted,
    PeriodicStopped,
    Refusal,
    RefuseRequest,
    Requested,
    RequestLimits,
    SetTimer,
    Shutdown,
    Subsume,
    Tick,
    Triggered,
    TriggerFailed,
    TriggerTasks,
)
from partfile.snapshot.machine import begin, step

TEN_MINUTES_MS = 600_000


def tick(machine: Machine, after_ms: int) -> list[TriggerTasks]:
    machine.now_ms += after_ms
    return only(TriggerTasks, machine.tell(Tick(f"s{machine.state.next_id}")))


@pytest.mark.item("CC-14")
def test_a_start_tells_what_the_restored_state_holds_and_then_tidies_up() -> None:
    """The last coordinator's notification may be lost."""
    assert Machine().first_actions == (NotifyComplete(FENCE_ID), Subsume())


@pytest.mark.item("CC-06")
def test_ids_rise_by_one_with_each_trigger_and_are_never_used_again() -> None:
    """An aborted checkpoint's id is gone for good, also if its tasks were never told."""
    machine = Machine()
    assert [machine.request() for _ in range(3)] == [2, 3, 4]
    machine.tell(GivenUp(4, FailureReason.TRIGGER))
    machine.tell(Requested(USER, "s5"))
    machine.tell(TriggerFailed(5))
    assert machine.request() == 6


@pytest.mark.item("CC-06", "CC-08")
@pytest.mark.parametrize("spare_ids", range(3))
def test_no_id_is_triggered_that_the_newest_link_does_not_reserve(spare_ids: int) -> None:
    """Forced requests go beyond the concurrency as far as ids are spare; each link that is created frees one more."""
    machine = Machine(rules(max_concurrent=1, spare_ids=spare_ids))
    ids = [machine.request(SAVEPOINT) for _ in range(1 + spare_ids)]
    assert machine.tell(Requested(SAVEPOINT, "waits")) == []
    machine.fill(ids[0])
    created = machine.tell(LinkCreated(ids[0]))
    assert [one.pending.checkpoint_id for one in only(TriggerTasks, created)] == [ids[-1] + 1]


@pytest.mark.item("CC-07")
@pytest.mark.parametrize("answer", [Triggered(2), TriggerFailed(2)])
def test_one_request_is_triggered_at_a_time(answer: Triggered | TriggerFailed) -> None:
    """The next goes when the tasks have been told or could not be, whatever the concurrency and the rank."""
    machine = Machine(rules(max_concurrent=9))
    first = machine.tell(Requested(USER, "a"))
    assert [one.pending.checkpoint_id for one in only(TriggerTasks, first)] == [2]
    assert machine.tell(Requested(SAVEPOINT, "b")) == []
    assert machine.tell(Triggered(99)) == []
    (going,) = only(TriggerTasks, machine.tell(answer))
    assert (going.pending.checkpoint_id, going.pending.submission) == (3, "b")


@pytest.mark.item("CC-07")
def test_waiting_requests_go_by_rank_and_a_full_queue_refuses() -> None:
    """Savepoint, then user, then periodic; the thousand-and-first is refused."""
    machine = Machine(rules(is_unaligned=True))
    machine.request()
    for kind in (PERIODIC, USER, SAVEPOINT):
        machine.tell(Requested(kind, kind.value))
    waiting = [one.submission for one in machine.state.queue.waiting]
    assert waiting == ["savepoint", "user", "periodic"]
    for number in range(998):
        machine.tell(Requested(USER, str(number)))
    assert len(machine.state.queue.waiting) == 1000
    (refused,) = only(RefuseRequest, machine.tell(Requested(USER, "one too many")))
    assert (refused.request.submission, refused.reason) == ("one too many", Refusal.TOO_MANY_REQUESTS)


@pytest.mark.item("CC-09", "LT-03")
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_so_many_are_pending(limit: int) -> None:
    """The next one goes when one is complete."""
    machine = Machine(rules(limit))
    ids = [machine.request() for _ in range(limit)]
    assert machine.tell(Requested(USER, "waits")) == []
    assert len(only(TriggerTasks, machine.complete(ids[0]))) == 1


@pytest.mark.item("CC-12", "LT-05")
@pytest.mark.parametrize("is_unaligned", [False, True])
def test_a_savepoint_overlaps_unless_barriers_overtake_data(is_unaligned: bool) -> None:
    """Forced if unaligned checkpoints are off; else it waits for those under way."""
    machine = Machine(rules(1, is_unaligned=is_unaligned))
    machine.request()
    goes = bool(only(TriggerTasks, machine.tell(Requested(SAVEPOINT, "s"))))
    assert goes is not is_unaligned


@pytest.mark.item("CC-08", "LT-03", "LT-04")
def test_the_minimum_pause_is_counted_from_completion_and_moves_the_timer() -> None:
    """A periodic request that comes too early is refused, and the next one comes when the pause is over."""
    machine = Machine(rules(min_pause_ms=500, interval_ms=600))
    machine.tell(PeriodicStarted(100))
    (first,) = tick(machine, 100)
    machine.tell(Triggered(first.pending.checkpoint_id))
    machine.now_ms += 300
    machine.complete(first.pending.checkpoint_id)
    assert tick(machine, 300) == []
    (refused,) = only(RefuseRequest, list(machine.actions))
    assert (refused.request.kind, refused.reason) == (PERIODIC, Refusal.MINIMUM_PAUSE)
    assert machine.state.next_periodic_ms == machine.now_ms + 200
    assert tick(machine, 199) == []
    assert len(tick(machine, 1)) == 1


@pytest.mark.item("CC-08")
@pytest.mark.parametrize("kind", [USER, SAVEPOINT])
def test_nobody_else_waits_for_the_pause(kind: object) -> None:
    """A user's request right after a completion goes at once."""
    machine = Machine(rules(min_pause_ms=500))
    machine.complete(machine.request())
    assert only(TriggerTasks, machine.tell(Requested(kind, "s3")))  # type: ignore[arg-type]


@pytest.mark.item("CC-08")
def test_every_waiting_periodic_request_is_refused_by_the_pause() -> None:
    """None stays in the queue to go without a pause between."""
    machine = Machine(rules(min_pause_ms=500, interval_ms=500))
    machine.tell(PeriodicStarted(0))
    (first,) = tick(machine, 0)
    machine.tell(Triggered(first.pending.checkpoint_id))
    assert tick(machine, 500) == []
    assert tick(machine, 500) == []
    assert len(machine.state.queue.waiting) == 2
    refused = only(RefuseRequest, machine.complete(first.pending.checkpoint_id))
    assert [one.reason for one in refused] == [Refusal.MINIMUM_PAUSE] * 2
    assert not machine.state.queue.waiting


@pytest.mark.item("LT-03")
def test_periodic_requests_come_once_an_interval_and_stop() -> None:
    """The first after the delay that was drawn, each at its time and no earlier; none after the end."""
    machine = Machine(rules(interval_ms=1000))
    machine.tell(PeriodicStarted(300))
    assert tick(machine, 299) == []
    (one,) = tick(machine, 1)
    assert one.pending.request.kind is PERIODIC
    machine.tell(Triggered(one.pending.checkpoint_id))
    machine.complete(one.pending.checkpoint_id)
    assert tick(machine, 999) == []
    (another,) = tick(machine, 1)
    machine.tell(DeletionFinished())
    assert another.pending.checkpoint_id == 3
    stopped = machine.tell(PeriodicStopped())
    assert [one.reason for one in only(NotifyAborted, stopped)] == [FailureReason.SUSPENDED]
    assert tick(machine, 10_000) == []


def test_the_interval_is_at_least_the_pause_and_the_pause_at_most_a_year() -> None:
    """Whatever is configured."""
    chosen = CoordinatorRules(limits=RequestLimits(min_pause_ms=900), interval_ms=100)
    assert (chosen.min_pause_ms, chosen.period_ms) == (900, 900)
    chosen = replace(chosen, limits=RequestLimits(min_pause_ms=10**15))
    assert (chosen.min_pause_ms, chosen.period_ms) == (MAX_PAUSE_MS, MAX_PAUSE_MS)


@pytest.mark.item("CC-04")
def test_a_checkpoint_is_given_up_after_ten_minutes() -> None:
    """Not a millisecond before; its request is told, and its id closed."""
    assert CoordinatorRules().timeout_ms == TEN_MINUTES_MS
    machine = Machine()
    machine.request()
    (timer,) = [one for one in begin_and_request() if isinstance(one, SetTimer)]
    assert timer.at_ms == 1_000_000 + TEN_MINUTES_MS
    machine.now_ms += TEN_MINUTES_MS - 1
    assert machine.tell(Tick("s")) == []
    machine.now_ms += 1
    actions = machine.tell(Tick("s"))
    assert [one.reason for one in only(RefuseRequest, actions)] == [FailureReason.EXPIRED]
    assert [one.checkpoint_id for one in only(NotifyAborted, actions)] == [2]
    assert machine.state.linking == 2


def begin_and_request() -> tuple[object, ...]:
    state, _ = begin(FENCE_ID, rules(max_concurrent=9))
    return step(state, Requested(USER, "s"), 1_000_000)[1]


def test_the_timer_is_set_for_whatever_comes_first() -> None:
    """Set again when something comes earlier, and after it has gone off for the next."""
    machine = Machine(rules(interval_ms=5000, timeout_ms=1000))
    machine.tell(PeriodicStarted(3000))
    assert machine.actions == (SetTimer(machine.now_ms + 3000),)
    machine.tell(Requested(USER, "s"))
    assert SetTimer(machine.now_ms + 1000) in machine.actions
    machine.tell(Triggered(2))
    assert SetTimer not in map(type, machine.actions)
    machine.now_ms += 1000
    machine.tell(Tick("s"))
    assert SetTimer(machine.now_ms + 2000) in machine.actions


@pytest.mark.item("CC-16")
def test_slow_deletions_hold_new_checkpoints_back() -> None:
    """More rounds of deletion under way than checkpoints allowed: the request waits for one to finish."""
    machine = Machine(rules(1))
    machine.complete(machine.request())
    machine.complete(machine.request())
    assert machine.state.cleaning == 2
    assert machine.tell(Requested(USER, "s4")) == []
    assert len(only(TriggerTasks, machine.tell(DeletionFinished()))) == 1
    machine.tell(Triggered(4))
    machine.complete(4)
    assert machine.state.cleaning == 2


@pytest.mark.item("CC-11")
def test_a_shutdown_fails_everything_that_is_queued_or_pending() -> None:
    """With its reason; what is asked for or comes afterwards is refused or ignored."""
    machine = Machine(rules(1))
    machine.request()
    machine.acknowledge(2)
    machine.tell(Requested(USER, "waits"))
    actions = machine.tell(Shutdown())
    told = [(one.request.submission, one.reason) for one in only(RefuseRequest, actions)]
    assert told == [("waits", FailureReason.SHUTDOWN), ("s2", FailureReason.SHUTDOWN)]
    assert [one.checkpoint_id for one in only(NotifyAborted, actions)] == [2]
    (refused,) = machine.tell(Requested(USER, "late"))
    assert isinstance(refused, RefuseRequest)
    assert refused.reason is FailureReason.SHUTDOWN
    for late in (Triggered(2), Tick("s"), PeriodicStarted(0), IdClosed(2)):
        assert machine.tell(late) == []
    assert machine.expect(2) == []
    assert machine.acknowledge(2) == []


@pytest.mark.item("CC-06")
@pytest.mark.parametrize(("max_concurrent", "spare_ids"), [(0, 0), (MAX_IDS_AHEAD, 1), (10**9, 1)])
def test_rules_that_reserve_too_few_or_too_many_ids_are_refused(max_concurrent: int, spare_ids: int) -> None:
    """The next start would have nothing to trigger, or tombstones without end to create."""
    with pytest.raises(ConfigError, match=f"max_concurrent {max_concurrent}"):
        rules(max_concurrent=max_concurrent, spare_ids=spare_ids)
