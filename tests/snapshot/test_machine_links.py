"""The state machine of the coordinator: completions in the order of ids, subsumption, tombstones, the end."""

from __future__ import annotations

import pytest
from coordinator_steps import FENCE_ID, SAVEPOINT, Machine, only, rules

from partfile.snapshot.events import (
    CloseFailed,
    CloseId,
    CreateLink,
    DiscardState,
    FailureReason,
    FulfilRequest,
    GivenUp,
    IdClosed,
    LinkCreated,
    LinkFailed,
    LinkFenced,
    LinkUnknown,
    NotifyAborted,
    NotifyComplete,
    RefuseRequest,
    Requested,
    RequestKind,
    Shutdown,
    Stop,
    Subsume,
    Tick,
    TriggerTasks,
)
from partfile.snapshot.machine import CLOSE_RETRY_MS


@pytest.mark.item("CC-02", "CC-15")
def test_a_checkpoint_is_told_when_its_link_is_there_and_only_then_older_ones_go() -> None:
    """First whoever asked, then the tasks, then the deletion; and nothing of it before."""
    machine = Machine()
    machine.request()
    assert [type(one) for one in machine.fill(2)] == [CreateLink]
    fulfil, *rest = machine.tell(LinkCreated(2))
    assert isinstance(fulfil, FulfilRequest)
    assert rest == [NotifyComplete(2), Subsume()]
    assert (machine.state.newest_link, machine.state.completed_id, machine.state.pending) == (2, 2, ())


@pytest.mark.item("CC-10")
@pytest.mark.fault("D15")
def test_a_completion_aborts_smaller_checkpoints_and_closes_them_first_in_order() -> None:
    """The row has no holes: 2 and 3 are closed, then 4 is linked; 5 is untouched."""
    machine = Machine()
    for _ in range(4):
        machine.request()
    actions = machine.fill(4)
    aborted = [(one.checkpoint_id, one.reason) for one in only(NotifyAborted, actions)]
    assert aborted == [(2, FailureReason.SUBSUMED), (3, FailureReason.SUBSUMED)]
    assert only(CloseId, actions) == [CloseId(2)]
    assert machine.tell(IdClosed(2)) == [CloseId(3)]
    (link,) = machine.tell(IdClosed(3))
    assert isinstance(link, CreateLink)
    machine.tell(LinkCreated(4))
    assert [one.checkpoint_id for one in machine.state.pending] == [5]


@pytest.mark.item("CC-10")
@pytest.mark.parametrize("completes", [True, False])
def test_a_smaller_savepoint_is_waited_for(completes: bool) -> None:
    """Savepoints are not subsumed: the checkpoint after one is linked when the savepoint is, or has failed."""
    machine = Machine()
    machine.request(SAVEPOINT)
    machine.request()
    assert machine.fill(3) == []
    if completes:
        machine.fill(2)
        actions = machine.tell(LinkCreated(2))
    else:
        assert CloseId(2) in machine.tell(GivenUp(2, FailureReason.EXPIRED))
        actions = machine.tell(IdClosed(2))
    assert [one.pending.checkpoint_id for one in only(CreateLink, actions)] == [3]


@pytest.mark.item("CC-10")
def test_a_savepoint_subsumes_nothing_and_waits() -> None:
    """Beside the running job it notifies nobody and deletes nothing; whoever asked for it is told."""
    machine = Machine()
    machine.request()
    machine.request(SAVEPOINT)
    assert machine.fill(3) == []
    machine.fill(2)
    machine.tell(LinkCreated(2))
    actions = machine.tell(LinkCreated(3))
    assert [type(one) for one in actions] == [FulfilRequest]


@pytest.mark.item("CC-10")
def test_the_last_savepoint_commits_like_a_checkpoint() -> None:
    """It subsumes what is under way, and the tasks are told."""
    machine = Machine()
    machine.request()
    machine.request(SAVEPOINT, stops_job=True)
    assert [one.reason for one in only(NotifyAborted, machine.fill(3))] == [FailureReason.SUBSUMED]
    machine.tell(IdClosed(2))
    assert only(NotifyComplete, machine.tell(LinkCreated(3))) == [NotifyComplete(3)]


@pytest.mark.item("CC-06")
@pytest.mark.fault("D16")
def test_an_aborted_id_is_closed_in_its_turn() -> None:
    """Not while a smaller one is pending."""
    machine = Machine()
    machine.request(SAVEPOINT)
    machine.request()
    assert only(CloseId, machine.tell(GivenUp(3, FailureReason.TRIGGER))) == []
    machine.fill(2)
    assert CloseId(3) in machine.tell(LinkCreated(2))


def test_links_are_created_one_at_a_time() -> None:
    """What becomes ready meanwhile waits for the answer, and answers for other ids change nothing."""
    machine = Machine()
    machine.request()
    machine.request()
    machine.fill(2)
    assert machine.fill(3) == []
    before = machine.state
    for other in (LinkCreated(3), LinkFailed(3), LinkFenced(3), LinkUnknown(3), IdClosed(3), CloseFailed(3)):
        assert machine.tell(other) == []
    assert machine.state == before
    assert only(CreateLink, machine.tell(LinkCreated(2)))[0].pending.checkpoint_id == 3


def test_a_tombstone_that_cannot_be_created_is_tried_again() -> None:
    """After a second; until then no other link is created."""
    machine = Machine()
    machine.request()
    machine.request()
    machine.fill(3)
    assert machine.tell(CloseFailed(2)) == []
    machine.now_ms += CLOSE_RETRY_MS - 1
    assert machine.tell(Tick("s")) == []
    machine.now_ms += 1
    assert machine.tell(Tick("s")) == [CloseId(2)]
    machine.tell(IdClosed(2))
    assert machine.state.linking == 3


@pytest.mark.item("CC-11", "CC-15")
@pytest.mark.parametrize(
    ("event", "reason"),
    [(LinkFenced(2), FailureReason.FENCED), (LinkUnknown(2), FailureReason.OUTCOME_UNKNOWN)],
)
@pytest.mark.parametrize("is_tombstone", [False, True])
def test_a_lost_chain_ends_everything_and_deletes_nothing(
    event: LinkFenced | LinkUnknown, reason: FailureReason, is_tombstone: bool
) -> None:
    """All that is queued or pending fails with the reason; no state is deleted, for a link may name it."""
    machine = Machine(rules(2))
    machine.request()
    machine.request()
    machine.tell(Requested(RequestKind.USER, "waits"))
    machine.acknowledge(3, 1)
    if is_tombstone:
        machine.tell(GivenUp(2, FailureReason.TRIGGER))
    else:
        machine.fill(2)
    *refused, stop = machine.tell(event)
    assert {type(one) for one in refused} == {RefuseRequest}
    assert {one.reason for one in only(RefuseRequest, refused)} == {reason}
    assert stop == Stop(reason)
    assert machine.state.pending == ()
    assert only(RefuseRequest, machine.tell(Requested(RequestKind.USER, "late")))[0].reason is reason
    assert machine.tell(LinkCreated(2)) == []
    assert machine.acknowledge(3, 0) == []


@pytest.mark.item("CC-11", "CC-15")
def test_a_link_under_way_at_the_shutdown_still_counts() -> None:
    """If it comes to be there its checkpoint is complete and told; until then its states are not deleted."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    assert machine.tell(Shutdown()) == []
    assert NotifyComplete(2) in machine.tell(LinkCreated(2))
    assert machine.state.completed_id == 2
    assert machine.tell(LinkCreated(2)) == []


@pytest.mark.item("CC-11")
def test_a_link_that_fails_at_the_shutdown_is_dropped() -> None:
    """Its states are deleted and whoever asked is told; no job is failed and no id closed any more."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    machine.tell(Shutdown())
    actions = machine.tell(LinkFailed(2))
    assert [type(one) for one in actions] == [RefuseRequest, NotifyAborted, DiscardState]


@pytest.mark.item("CC-09")
def test_an_aborted_checkpoint_makes_room_for_the_next() -> None:
    """Its tombstone need not be there yet."""
    machine = Machine(rules(1))
    machine.request()
    machine.tell(Requested(RequestKind.USER, "waits"))
    (going,) = only(TriggerTasks, machine.tell(GivenUp(2, FailureReason.TRIGGER)))
    assert going.pending.checkpoint_id == FENCE_ID + 2
