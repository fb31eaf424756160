"""What a subtask does for a checkpoint, in which order, and when it takes no part."""

from __future__ import annotations

import pytest

from partfile.pipeline.barriers import AbortReason, Barrier
from partfile.pipeline.subtask_checkpoint import (
    MAX_ABORTED,
    AbortChannelState,
    AsynchronousPart,
    CancelAsynchronousPart,
    Decline,
    PersistOutputs,
    PrepareBarrier,
    SendBarrier,
    SendCancellation,
    SubtaskState,
    SynchronousPart,
    aborted_by_barriers,
    aborted_by_coordinator,
    synchronous_part_failed,
    take,
)
from partfile.snapshot.events import FailureReason

BARRIER = Barrier(5, 1000)


@pytest.mark.item("UC-24")
def test_the_order_of_a_checkpoint() -> None:
    """The barrier goes on first, so that the next subtasks begin; state is frozen before it is written."""
    state, actions = take(SubtaskState(), BARRIER)
    assert state.newest_id == 5
    assert actions == (
        PrepareBarrier(5),
        SendBarrier(BARRIER),
        PersistOutputs(BARRIER),
        SynchronousPart(BARRIER),
        AsynchronousPart(BARRIER),
    )


@pytest.mark.item("UC-22")
@pytest.mark.parametrize("checkpoint_id", [4, 5])
def test_a_checkpoint_out_of_order_is_dropped(checkpoint_id: int) -> None:
    """Its channel state is given up, and what was remembered of it goes."""
    state = SubtaskState(newest_id=5, aborted=frozenset({4, 5, 6}))
    state, actions = take(state, Barrier(checkpoint_id, 1000))
    assert actions == (AbortChannelState(checkpoint_id),)
    assert state.newest_id == 5
    assert checkpoint_id not in state.aborted
    assert 6 in state.aborted


@pytest.mark.item("UC-23")
def test_a_checkpoint_that_was_aborted_before_is_cancelled_for_those_behind() -> None:
    """They may be aligning for it; here nothing is begun, now or later."""
    state, actions = aborted_by_coordinator(SubtaskState(), 5)
    assert actions == ()
    state, actions = take(state, BARRIER)
    assert actions == (SendCancellation(5), AbortChannelState(5))
    assert state == SubtaskState(newest_id=5)


@pytest.mark.item("UC-23")
def test_what_runs_is_cancelled_when_the_coordinator_aborts() -> None:
    """The barrier has been sent on; no cancellation follows it."""
    state, _ = take(SubtaskState(), BARRIER)
    assert aborted_by_coordinator(state, 5) == (state, (CancelAsynchronousPart(5), AbortChannelState(5)))


@pytest.mark.item("UC-23")
def test_a_limited_number_of_aborted_checkpoints_is_remembered() -> None:
    """The newest ones."""
    state = SubtaskState()
    for checkpoint_id in range(1, MAX_ABORTED + 3):
        state, _ = aborted_by_coordinator(state, checkpoint_id)
    assert state.aborted == set(range(3, MAX_ABORTED + 3))


@pytest.mark.item("UC-25")
def test_a_closed_operator_declines() -> None:
    """Those behind it are told that no barrier will come."""
    _, actions = take(SubtaskState(is_closed=True), BARRIER)
    assert actions == (SendCancellation(5), AbortChannelState(5), Decline(5, FailureReason.TASK_CLOSING))


@pytest.mark.item("UC-26")
def test_a_synchronous_part_that_fails_leaves_nothing() -> None:
    """What was begun is cancelled, and the coordinator hears of it."""
    state, _ = take(SubtaskState(), BARRIER)
    state, actions = synchronous_part_failed(state, 5)
    assert actions == (CancelAsynchronousPart(5), AbortChannelState(5), Decline(5, FailureReason.DECLINED))
    assert take(state, BARRIER)[1] == (AbortChannelState(5),)


@pytest.mark.item("UC-19")
@pytest.mark.parametrize("reason", AbortReason)
def test_what_the_barriers_give_up_is_declined_and_cancelled(reason: AbortReason) -> None:
    """The coordinator hears why, and does not count it as a failure; its barrier is late from then on."""
    state, actions = aborted_by_barriers(SubtaskState(), 5, reason)
    assert actions[:3] == (CancelAsynchronousPart(5), AbortChannelState(5), SendCancellation(5))
    (declined,) = [action for action in actions if isinstance(action, Decline)]
    assert declined.reason.name == reason.name
    assert not declined.reason.is_counted
    assert take(state, BARRIER)[1] == (AbortChannelState(5),)


@pytest.mark.item("UC-22")
def test_an_older_abort_by_barriers_takes_nothing_back() -> None:
    """The newest checkpoint stays the newest."""
    state, _ = aborted_by_barriers(SubtaskState(newest_id=7), 5, AbortReason.SUBSUMED)
    assert state.newest_id == 7
