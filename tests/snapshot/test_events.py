"""Values of the coordinator: requests, pending checkpoints, and failures that are borne."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import OutcomeUnknown
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.events import (
    CheckpointRequest,
    FailureReason,
    FailureTally,
    PendingCheckpoint,
    Refusal,
    RequestKind,
    RequestLimits,
    RequestQueue,
    Situation,
)

# How many failed checkpoints a job bears.

COUNTED = {"STORAGE", "ASYNC_PART", "DECLINED", "EXPIRED", "FINALIZE"}


@pytest.mark.item("CC-05")
@pytest.mark.parametrize("reason", FailureReason)
def test_only_failures_of_checkpointing_itself_count(reason: FailureReason) -> None:
    """Being in the way of something else is no failure of the job."""
    _, fails = FailureTally().failed(1, reason)
    assert fails is (reason.name in COUNTED)


@pytest.mark.item("CC-05")
@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_so_many_failures_in_a_row_are_borne_and_one_more_is_not(tolerable: int) -> None:
    """And then counting begins anew."""
    tally = FailureTally(tolerable=tolerable)
    for checkpoint_id in range(1, tolerable + 1):
        tally, fails = tally.failed(checkpoint_id, FailureReason.EXPIRED)
        assert not fails
    tally, fails = tally.failed(tolerable + 1, FailureReason.DECLINED)
    assert fails
    assert tally.counted == frozenset()


@pytest.mark.item("CC-05")
def test_an_id_counts_once_and_a_completion_begins_anew() -> None:
    """However many tasks report one checkpoint."""
    tally = FailureTally(tolerable=1)
    tally, _ = tally.failed(1, FailureReason.DECLINED)
    tally, fails = tally.failed(1, FailureReason.DECLINED)
    assert not fails
    tally, fails = tally.completed(2).failed(3, FailureReason.STORAGE)
    assert not fails
    assert tally.counted == {3}


@pytest.mark.item("CC-05")
def test_a_failure_older_than_the_last_completion_says_nothing() -> None:
    """Completions may be told in any order."""
    tally = FailureTally().completed(5).completed(4)
    assert tally.failed(4, FailureReason.EXPIRED) == (tally, False)
    assert tally.failed(6, FailureReason.EXPIRED)[1]


# A checkpoint between its trigger and its completion.

PENDING = PendingCheckpoint(4, CheckpointRequest(1, RequestKind.USER, 0, submission="this"), time_ms=0, deadline_ms=9)
HANDLE = InlineHandle(data=b"")


def acknowledged_by(*subtasks: int) -> PendingCheckpoint:
    pending = PENDING
    for subtask in subtasks:
        pending = pending.with_acknowledgement(subtask, HANDLE)
    return pending


@pytest.mark.item("CC-01")
def test_it_is_acknowledged_when_all_have_and_their_number_is_known() -> None:
    """Without the number it never is, not even with none expected for certain."""
    assert not acknowledged_by(0, 1).is_acknowledged
    assert not acknowledged_by(0).expecting(2).is_acknowledged
    assert acknowledged_by(0, 1).expecting(2).is_acknowledged
    assert PENDING.expecting(0).is_acknowledged


@pytest.mark.item("CC-13")
def test_who_takes_no_part_is_left_out_when_the_number_becomes_known() -> None:
    """A third subtask of two cannot stand in for a missing one."""
    pending = acknowledged_by(0, 2).expecting(2)
    assert sorted(pending.acknowledged) == [0]
    assert not pending.is_acknowledged
    assert (pending.waits_for(0), pending.waits_for(1), pending.waits_for(2)) == (False, True, False)
    assert not pending.has_place_for(-1)


@pytest.mark.parametrize("ran", [[0, 2], [1], [0, 1, 3]])
def test_a_missing_partition_is_never_taken_for_an_empty_one(ran: list[int]) -> None:
    """The subtasks must be 0 to n-1; a gap is a subtask's rows missing."""
    with pytest.raises(OutcomeUnknown, match="without a gap"):
        acknowledged_by(*ran).subtasks()


@pytest.mark.fault("D15")
def test_acknowledgements_come_in_any_order() -> None:
    """Sorted by subtask, and none at all is a checkpoint without partitions."""
    assert PENDING.subtasks() == ()
    assert [one.subtask for one in acknowledged_by(2, 0, 1).subtasks()] == [0, 1, 2]


# Which request for a checkpoint goes next: the table of Flink's request decider.

PERIODIC, USER, SAVEPOINT = RequestKind.PERIODIC, RequestKind.USER, RequestKind.SAVEPOINT
QUIET = Situation(now_ms=1000)
REQUESTS = st.builds(
    CheckpointRequest,
    number=st.integers(0, 10**6),
    kind=st.sampled_from(RequestKind),
    time_ms=st.integers(0, 5),
    is_forced=st.booleans(),
)


def request(
    number: int, kind: RequestKind = PERIODIC, time_ms: int = 0, *, is_forced: bool = False
) -> CheckpointRequest:
    return CheckpointRequest(number, kind, time_ms, is_forced=is_forced)


def queue_of(*requests: CheckpointRequest, capacity: int = 1000) -> RequestQueue:
    queue = RequestQueue(capacity=capacity)
    for one in requests:
        queue = queue.submit(one).queue
    return queue


@pytest.mark.item("CC-07")
def test_savepoints_go_first_then_the_forced_then_users_then_the_oldest() -> None:
    """The order of the queue, whatever the order of the requests."""
    wanted = [
        request(1, SAVEPOINT, 9, is_forced=True),
        request(2, SAVEPOINT, 8),
        request(3, PERIODIC, 9, is_forced=True),
        request(4, USER, 3),
        request(5, USER, 7),
        request(6, PERIODIC, 1),
        request(7, PERIODIC, 1),
    ]
    assert list(queue_of(*reversed(wanted)).waiting) == wanted


@pytest.mark.item("CC-07")
def test_a_full_queue_sheds_the_last_periodic_request_and_else_the_new_one() -> None:
    """The task that is refused is named, with the reason."""
    full = queue_of(request(1, USER), request(2, PERIODIC), capacity=2)
    choice = full.submit(request(3, USER))
    assert [one.number for one in choice.queue.waiting] == [1, 3]
    assert choice.refused is not None
    assert (choice.refused.number, choice.reason) == (2, Refusal.TOO_MANY_REQUESTS)
    again = choice.queue.submit(request(4, SAVEPOINT))
    assert (again.queue, again.refused, again.reason) == (
        choice.queue,
        request(4, SAVEPOINT),
        Refusal.TOO_MANY_REQUESTS,
    )


@pytest.mark.item("CC-07")
def test_a_thousand_requests_may_wait() -> None:
    """The capacity where none is set."""
    queue = queue_of(*(request(number, USER) for number in range(1000)))
    assert queue.submit(request(1000, USER)).refused == request(1000, USER)
    assert queue_of(*(request(number, USER) for number in range(999))).submit(request(999, USER)).refused is None


@pytest.mark.item("CC-07")
@pytest.mark.parametrize("kind", RequestKind)
def test_nothing_goes_while_another_request_is_being_triggered(kind: RequestKind) -> None:
    """Not even a forced savepoint."""
    queue = queue_of(request(1, kind, is_forced=True))
    assert queue.choose(replace(QUIET, is_triggering=True), RequestLimits()).request is None
    assert queue.choose(QUIET, RequestLimits()).request == queue.waiting[0]


@pytest.mark.item("CC-09")
@pytest.mark.parametrize(("pending", "is_forced", "goes"), [(1, False, True), (2, False, False), (2, True, True)])
def test_only_a_forced_request_exceeds_the_concurrent_checkpoints(pending: int, is_forced: bool, goes: bool) -> None:
    """At the limit the others stay in the queue."""
    queue = queue_of(request(1, SAVEPOINT, is_forced=is_forced))
    choice = queue.choose(replace(QUIET, pending=pending), RequestLimits(max_concurrent=2))
    assert (choice.request is not None) is goes
    assert choice.queue == (RequestQueue() if goes else queue)


@pytest.mark.item("CC-08", "LT-04")
@pytest.mark.parametrize(("now_ms", "left_ms"), [(1000, 500), (1499, 1), (1500, 0)])
def test_the_pause_since_the_last_completion_holds_back_periodic_requests(now_ms: int, left_ms: int) -> None:
    """It is refused, with the time after which the next one may come."""
    situation = Situation(now_ms=now_ms, last_completion_ms=1000)
    choice = queue_of(request(1)).choose(situation, RequestLimits(min_pause_ms=500))
    if left_ms:
        assert (choice.refused, choice.reason, choice.periodic_in_ms) == (request(1), Refusal.MINIMUM_PAUSE, left_ms)
        assert choice.queue == RequestQueue()
    assert choice.request == (None if left_ms else request(1))


@pytest.mark.item("CC-08")
@pytest.mark.parametrize("one", [request(1, USER), request(1, SAVEPOINT), request(1, PERIODIC, is_forced=True)])
def test_the_pause_holds_no_other_request_back(one: CheckpointRequest) -> None:
    """Users, savepoints and forced requests go at once."""
    situation = Situation(now_ms=1000, last_completion_ms=1000)
    assert queue_of(one).choose(situation, RequestLimits(min_pause_ms=500)).request == one


@pytest.mark.item("CC-16")
@pytest.mark.parametrize(("cleaning", "goes"), [(0, True), (1, True), (2, False)])
def test_slow_deletes_hold_new_checkpoints_back(cleaning: int, goes: bool) -> None:
    """More deletions owed than checkpoints allowed at once: nothing goes."""
    queue = queue_of(request(1, SAVEPOINT, is_forced=True))
    choice = queue.choose(replace(QUIET, cleaning=cleaning), RequestLimits(max_concurrent=1))
    assert (choice.request is not None) is goes


@pytest.mark.item("CC-07")
@given(requests=st.lists(REQUESTS, unique_by=lambda one: one.number, max_size=12), capacity=st.integers(1, 6))
def test_no_request_is_forgotten(requests: list[CheckpointRequest], capacity: int) -> None:
    """Each is waiting or was refused, and what waits is in the order of the ranks."""
    queue, refused = RequestQueue(capacity=capacity), []
    for one in requests:
        choice = queue.submit(one)
        queue = choice.queue
        refused += [choice.refused] if choice.refused else []
    assert sorted([*queue.waiting, *refused], key=lambda one: one.number) == sorted(
        requests, key=lambda one: one.number
    )
    assert list(queue.waiting) == sorted(queue.waiting, key=lambda one: one.rank)
    assert len(queue.waiting) == min(len(requests), capacity)
