"""The state machine of the coordinator: acknowledgements, declines, failures, and how many of them are borne."""

from __future__ import annotations

import pytest
from coordinator_steps import FENCE_ID, SAVEPOINT, Machine, handle, only, rules

from partfile.snapshot.events import (
    Acknowledged,
    CloseId,
    CreateLink,
    Declined,
    DiscardState,
    FailJob,
    FailureReason,
    GivenUp,
    IdClosed,
    LinkCreated,
    LinkFailed,
    NotifyAborted,
    RefuseRequest,
    Requested,
    Stray,
    TaskFailed,
    Tick,
    TriggerFailed,
)


@pytest.mark.item("CC-01")
def test_a_checkpoint_is_linked_when_all_have_acknowledged_and_not_before() -> None:
    """In whatever order the acknowledgements and their number come."""
    machine = Machine()
    machine.request()
    assert machine.acknowledge(2, 1) == []
    assert machine.expect(2, 2) == []
    (link,) = machine.acknowledge(2, 0)
    assert isinstance(link, CreateLink)
    assert sorted(link.pending.acknowledged) == [0, 1]
    machine.request()
    assert machine.acknowledge(3) == []
    machine.tell(LinkCreated(2))
    assert [one.pending.checkpoint_id for one in only(CreateLink, machine.expect(3))] == [3]


@pytest.mark.item("CC-01")
def test_a_checkpoint_is_not_linked_while_its_tasks_are_being_told() -> None:
    """They may acknowledge before the trigger is reported; a trigger that fails then still aborts it."""
    machine = Machine()
    machine.tell(Requested(SAVEPOINT, "s2"))
    assert machine.fill(2) == []
    actions = machine.tell(TriggerFailed(2))
    assert [one.reason for one in only(RefuseRequest, actions)] == [FailureReason.TRIGGER]
    assert only(CreateLink, actions) == []


@pytest.mark.item("CC-13")
@pytest.mark.fault("D15")
def test_a_duplicate_is_ignored_and_not_deleted() -> None:
    """The first one's state stands, and both may name the same file."""
    machine = Machine()
    machine.request()
    machine.acknowledge(2, 0)
    before = machine.state
    assert machine.tell(Acknowledged(2, 0, "s2", handle(2, 7))) == []
    assert machine.state == before


@pytest.mark.item("CC-13")
@pytest.mark.parametrize("is_known_first", [True, False])
def test_the_state_of_an_unknown_subtask_is_deleted(is_known_first: bool) -> None:
    """Whether its number of subtasks becomes known before or after."""
    machine = Machine()
    machine.request()
    actions = machine.expect(2, 1) if is_known_first else []
    actions += machine.acknowledge(2, 1)
    actions += [] if is_known_first else machine.expect(2, 1)
    assert actions == [DiscardState(2, handle(2, 1), Stray.UNKNOWN_SUBTASK)]


@pytest.mark.item("CC-04", "CC-13")
@pytest.mark.fault("D15")
def test_a_late_acknowledgement_is_deleted() -> None:
    """Of a checkpoint that was given up, before and after its id is closed."""
    machine = Machine(rules(9, tolerable_failures=99, timeout_ms=10))
    machine.request(SAVEPOINT)
    machine.request()
    machine.now_ms += 10
    machine.tell(Tick("s"))
    assert machine.acknowledge(3) == [DiscardState(3, handle(3, 0), Stray.LATE)]
    machine.tell(IdClosed(2))
    machine.tell(IdClosed(3))
    assert machine.acknowledge(3) == [DiscardState(3, handle(3, 0), Stray.LATE)]


@pytest.mark.item("CC-13")
def test_the_last_sixteen_aborted_ids_are_remembered() -> None:
    """An older one is unknown, which comes to the same."""
    machine = Machine(rules(99, tolerable_failures=99))
    ids = [machine.request() for _ in range(17)]
    for one in ids:
        machine.tell(GivenUp(one, FailureReason.EXPIRED))
        machine.tell(IdClosed(one))
    strays = [action.stray for one in ids for action in only(DiscardState, machine.acknowledge(one))]
    assert strays == [Stray.UNKNOWN_CHECKPOINT] + [Stray.LATE] * 16


@pytest.mark.item("CC-13")
def test_an_unknown_checkpoint_is_deleted_unless_a_rival_may_come_to_name_it() -> None:
    """At or before the newest link all is decided; the next ids may become another coordinator's (S6)."""
    machine = Machine()
    machine.request()
    assert machine.acknowledge(FENCE_ID) == [DiscardState(1, handle(1, 0), Stray.UNKNOWN_CHECKPOINT)]
    assert machine.acknowledge(2, submission="another try") == []
    assert machine.acknowledge(3) == []
    assert machine.state.pending[0].acknowledged == {}
    machine.tell(GivenUp(2, FailureReason.TRIGGER))
    assert machine.acknowledge(2, submission="another try") == []


@pytest.mark.item("CC-03", "CC-05")
def test_a_decline_aborts_its_checkpoint_and_no_other() -> None:
    """Everybody is told, the acknowledged states are deleted, the id is closed and the failure counted."""
    machine = Machine(rules(9))
    machine.request()
    machine.request()
    machine.acknowledge(2, 1)
    assert machine.tell(Declined(2, 0, "another try")) == []
    assert machine.tell(Declined(9, 0, "s9")) == []
    refuse, notify, discard, fail, close = machine.tell(Declined(2, 0, "s2"))
    assert isinstance(refuse, RefuseRequest)
    assert (refuse.request.submission, refuse.reason, refuse.checkpoint_id) == ("s2", FailureReason.DECLINED, 2)
    assert notify == NotifyAborted(2, FailureReason.DECLINED, completed_id=FENCE_ID)
    assert discard == DiscardState(2, handle(2, 1), Stray.ABORTED)
    assert fail == FailJob(2, FailureReason.DECLINED)
    assert close == CloseId(2)
    assert [one.checkpoint_id for one in machine.state.pending] == [3]


@pytest.mark.item("CC-03")
def test_a_failed_task_aborts_only_what_it_has_not_acknowledged() -> None:
    """What it has is safe without it; a task that takes no part aborts nothing."""
    machine = Machine()
    for _ in range(3):
        machine.request()
    machine.expect(2, 2)
    machine.acknowledge(2, 0)
    machine.acknowledge(4, 0)
    actions = machine.tell(TaskFailed(0))
    assert [one.checkpoint_id for one in only(NotifyAborted, actions)] == [3]
    assert only(FailJob, actions) == []
    machine.expect(4, 2)
    assert machine.tell(TaskFailed(2)) == []


COUNTED = {"STORAGE", "ASYNC_PART", "DECLINED", "EXPIRED", "FINALIZE"}


@pytest.mark.item("CC-05")
@pytest.mark.parametrize("reason", FailureReason)
@pytest.mark.parametrize("tolerable", [0, 2])
def test_so_many_failures_in_a_row_are_borne(reason: FailureReason, tolerable: int) -> None:
    """Those that count; one more fails the job, and counting begins anew."""
    machine = Machine(rules(9, tolerable_failures=tolerable))
    failed = []
    for _ in range(2 * (tolerable + 1)):
        one = machine.request()
        failed.append(bool(only(FailJob, machine.tell(GivenUp(one, reason)))))
        machine.tell(IdClosed(one))
    assert failed == ([False] * tolerable + [reason.name in COUNTED]) * 2


@pytest.mark.item("CC-05")
def test_a_completion_forgives_earlier_failures() -> None:
    """Only failures in a row count."""
    machine = Machine(rules(9, tolerable_failures=1))
    for _ in range(3):
        one = machine.request()
        assert only(FailJob, machine.tell(GivenUp(one, FailureReason.EXPIRED))) == []
        machine.tell(IdClosed(one))
        machine.complete(machine.request())


@pytest.mark.item("CC-05")
@pytest.mark.parametrize(("by_task", "fails"), [(True, True), (False, False)])
def test_a_savepoint_that_the_coordinator_failed_is_not_counted(by_task: bool, fails: bool) -> None:
    """A task's failure says something about checkpoints; a coordinator's about this savepoint only."""
    machine = Machine()
    machine.request(SAVEPOINT)
    event = Declined(2, 0, "s2") if by_task else GivenUp(2, FailureReason.EXPIRED)
    assert bool(only(FailJob, machine.tell(event))) is fails


@pytest.mark.parametrize(
    "event", [GivenUp(2, FailureReason.EXPIRED), Declined(2, 0, "s2", FailureReason.TASK_NOT_READY), TaskFailed(0)]
)
def test_a_last_savepoint_that_fails_fails_the_job(event: GivenUp | Declined | TaskFailed) -> None:
    """However many failures are borne: its tasks may have stopped."""
    machine = Machine(rules(9, tolerable_failures=99))
    machine.request(SAVEPOINT, stops_job=True)
    assert len(only(FailJob, machine.tell(event))) == 1


@pytest.mark.item("CC-05", "CC-15")
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_link_that_failed_for_certain_aborts_its_checkpoint(is_closed: bool) -> None:
    """Its states are deleted and its failure counts; the id is closed, unless a tombstone has taken it."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    actions = machine.tell(LinkFailed(2, is_closed=is_closed))
    assert [one.reason for one in only(NotifyAborted, actions)] == [FailureReason.FINALIZE]
    assert [one.handle for one in only(DiscardState, actions)] == [handle(2, 0)]
    assert len(only(FailJob, actions)) == 1
    assert only(CloseId, actions) == ([] if is_closed else [CloseId(2)])
    assert machine.state.newest_link == (2 if is_closed else 1)


def test_nothing_aborts_a_checkpoint_whose_link_is_being_created() -> None:
    """Neither time nor a task nor the owner: only the chain decides."""
    machine = Machine(rules(9, timeout_ms=10))
    machine.request()
    machine.fill(2)
    machine.now_ms += 10
    for event in (Tick("s"), Declined(2, 0, "s2"), GivenUp(2, FailureReason.EXPIRED), TaskFailed(0)):
        assert machine.tell(event) == []
    machine.tell(LinkCreated(2))
    assert machine.state.completed_id == 2
