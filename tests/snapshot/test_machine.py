"""The state machine of the coordinator: triggers, acknowledgements, completions, subsumption, the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from partfile.errors import ConfigError
from partfile.snapshot.documents import MAX_IDS_AHEAD, FileHandle
from partfile.snapshot.events import (
    MAX_PAUSE_MS,
    Acknowledged,
    CheckpointCreated,
    CloseFailed,
    CloseId,
    CoordinatorRules,
    CreateCheckpoint,
    CreationFailed,
    CreationFenced,
    CreationUnknown,
    Declined,
    DeletionFinished,
    DiscardState,
    FailJob,
    FailureReason,
    FulfilRequest,
    GivenUp,
    IdClosed,
    NotifyAborted,
    NotifyComplete,
    PeriodicStarted,
    PeriodicStopped,
    Refusal,
    RefuseRequest,
    Requested,
    RequestKind,
    RequestLimits,
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
from partfile.snapshot.machine import CLOSE_RETRY_MS, begin, step

if TYPE_CHECKING:
    from partfile.snapshot.events import Action, Event


# What the tests of the checkpoint coordinator's state machine share: a machine that is told events one by one.

USER, PERIODIC, SAVEPOINT = RequestKind.USER, RequestKind.PERIODIC, RequestKind.SAVEPOINT
TAKEOVER_ID = 1
_Kind = TypeVar("_Kind")


def handle(checkpoint_id: int, subtask: int) -> FileHandle:
    """The state of one subtask, told apart by its path."""
    return FileHandle(path=f"chk-{checkpoint_id}/{subtask}.state", size_bytes=1, crc32=0)


def rules(max_concurrent: int = 1, min_pause_ms: int = 0, **others: Any) -> CoordinatorRules:
    """Rules with two limits by name."""
    return CoordinatorRules(limits=RequestLimits(max_concurrent, min_pause_ms), **others)


class Machine:
    """A state machine after its start, with a clock that stands still until it is moved. Timers are left aside."""

    def __init__(self, chosen: CoordinatorRules | None = None) -> None:
        self.state, self.first_actions = begin(TAKEOVER_ID, chosen or rules(max_concurrent=9))
        self.now_ms = 1_000_000
        self.state = step(self.state, DeletionFinished(), self.now_ms)[0]
        self.actions: tuple[Action, ...] = ()

    def tell(self, event: Event) -> list[Action]:
        """What is to be done about one event."""
        self.state, self.actions = step(self.state, event, self.now_ms)
        return [action for action in self.actions if not isinstance(action, SetTimer)]

    def request(self, kind: RequestKind = USER, **others: Any) -> int:
        """Ask for a checkpoint that is triggered at once; return its id."""
        checkpoint_id = self.state.next_id
        self.tell(Requested(kind, f"s{checkpoint_id}", **others))
        assert self.state.triggering == checkpoint_id
        self.tell(Triggered(checkpoint_id))
        return checkpoint_id

    def expect(self, checkpoint_id: int, subtasks: int = 1) -> list[Action]:
        """Tell the number of subtasks."""
        return self.tell(SubtasksKnown(checkpoint_id, subtasks))

    def acknowledge(self, checkpoint_id: int, subtask: int = 0, submission: str | None = None) -> list[Action]:
        """One subtask acknowledges."""
        told = submission or f"s{checkpoint_id}"
        return self.tell(Acknowledged(checkpoint_id, subtask, told, handle(checkpoint_id, subtask)))

    def fill(self, checkpoint_id: int) -> list[Action]:
        """The only subtask acknowledges."""
        self.expect(checkpoint_id)
        return self.acknowledge(checkpoint_id)

    def complete(self, checkpoint_id: int) -> list[Action]:
        """The only subtask acknowledges and the checkpoint is created."""
        self.fill(checkpoint_id)
        while self.state.creating not in {None, checkpoint_id}:
            assert self.state.creating is not None
            self.tell(IdClosed(self.state.creating))
        return self.tell(CheckpointCreated(checkpoint_id))


def only(kind: type[_Kind], actions: list[Action]) -> list[_Kind]:
    """The actions of one kind, in order."""
    return [action for action in actions if isinstance(action, kind)]


# The state machine of the coordinator: completions in the order of ids, subsumption, tombstones, the end.


@pytest.mark.item("CC-02", "CC-15")
def test_a_checkpoint_is_told_when_its_metadata_is_there_and_only_then_older_ones_go() -> None:
    """First the caller that asked, then the tasks, then the deletion; and nothing of it before."""
    machine = Machine()
    machine.request()
    assert [type(one) for one in machine.fill(2)] == [CreateCheckpoint]
    fulfil, *rest = machine.tell(CheckpointCreated(2))
    assert isinstance(fulfil, FulfilRequest)
    assert rest == [NotifyComplete(2), Subsume()]
    assert (machine.state.newest_checkpoint, machine.state.completed_id, machine.state.pending) == (2, 2, ())


@pytest.mark.item("CC-10")
@pytest.mark.fault("D15")
def test_a_completion_aborts_smaller_checkpoints_and_closes_them_first_in_order() -> None:
    """The row has no holes: 2 and 3 are closed, then 4 is created; 5 is untouched."""
    machine = Machine()
    for _ in range(4):
        machine.request()
    actions = machine.fill(4)
    aborted = [(one.checkpoint_id, one.reason) for one in only(NotifyAborted, actions)]
    assert aborted == [(2, FailureReason.SUBSUMED), (3, FailureReason.SUBSUMED)]
    assert only(CloseId, actions) == [CloseId(2)]
    assert machine.tell(IdClosed(2)) == [CloseId(3)]
    (checkpoint,) = machine.tell(IdClosed(3))
    assert isinstance(checkpoint, CreateCheckpoint)
    machine.tell(CheckpointCreated(4))
    assert [one.checkpoint_id for one in machine.state.pending] == [5]


@pytest.mark.item("CC-10")
@pytest.mark.parametrize("completes", [True, False])
def test_a_smaller_savepoint_is_waited_for(completes: bool) -> None:
    """Savepoints are not subsumed: the checkpoint after one is created when the savepoint is, or has failed."""
    machine = Machine()
    machine.request(SAVEPOINT)
    machine.request()
    assert machine.fill(3) == []
    if completes:
        machine.fill(2)
        actions = machine.tell(CheckpointCreated(2))
    else:
        assert CloseId(2) in machine.tell(GivenUp(2, FailureReason.EXPIRED))
        actions = machine.tell(IdClosed(2))
    assert [one.pending.checkpoint_id for one in only(CreateCheckpoint, actions)] == [3]


@pytest.mark.item("CC-10")
def test_a_savepoint_subsumes_nothing_and_waits() -> None:
    """Beside the running job it notifies no task and deletes nothing; the caller that asked for it is told."""
    machine = Machine()
    machine.request()
    machine.request(SAVEPOINT)
    assert machine.fill(3) == []
    machine.fill(2)
    machine.tell(CheckpointCreated(2))
    actions = machine.tell(CheckpointCreated(3))
    assert [type(one) for one in actions] == [FulfilRequest]


@pytest.mark.item("CC-10")
def test_the_last_savepoint_commits_like_a_checkpoint() -> None:
    """It subsumes what is under way, and the tasks are told."""
    machine = Machine()
    machine.request()
    machine.request(SAVEPOINT, stops_job=True)
    assert [one.reason for one in only(NotifyAborted, machine.fill(3))] == [FailureReason.SUBSUMED]
    machine.tell(IdClosed(2))
    assert only(NotifyComplete, machine.tell(CheckpointCreated(3))) == [NotifyComplete(3)]


@pytest.mark.item("CC-06")
@pytest.mark.fault("D16")
def test_an_aborted_id_is_closed_in_its_turn() -> None:
    """Not while a smaller one is pending."""
    machine = Machine()
    machine.request(SAVEPOINT)
    machine.request()
    assert only(CloseId, machine.tell(GivenUp(3, FailureReason.TRIGGER))) == []
    machine.fill(2)
    assert CloseId(3) in machine.tell(CheckpointCreated(2))


def test_checkpoints_are_created_one_at_a_time() -> None:
    """What becomes ready meanwhile waits for the answer, and answers for other ids change nothing."""
    machine = Machine()
    machine.request()
    machine.request()
    machine.fill(2)
    assert machine.fill(3) == []
    before = machine.state
    for other in (
        CheckpointCreated(3),
        CreationFailed(3),
        CreationFenced(3),
        CreationUnknown(3),
        IdClosed(3),
        CloseFailed(3),
    ):
        assert machine.tell(other) == []
    assert machine.state == before
    assert only(CreateCheckpoint, machine.tell(CheckpointCreated(2)))[0].pending.checkpoint_id == 3


def test_a_tombstone_that_cannot_be_created_is_tried_again() -> None:
    """After a second; until then no other checkpoint is created."""
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
    assert machine.state.creating == 3


@pytest.mark.item("CC-11", "CC-15")
@pytest.mark.parametrize(
    ("event", "reason"),
    [(CreationFenced(2), FailureReason.FENCED), (CreationUnknown(2), FailureReason.OUTCOME_UNKNOWN)],
)
@pytest.mark.parametrize("is_tombstone", [False, True])
def test_a_lost_log_ends_everything_and_deletes_nothing(
    event: CreationFenced | CreationUnknown, reason: FailureReason, is_tombstone: bool
) -> None:
    """All that is queued or pending fails with the reason; no state is deleted, for a checkpoint may name it."""
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
    assert machine.tell(CheckpointCreated(2)) == []
    assert machine.acknowledge(3, 0) == []


@pytest.mark.item("CC-11", "CC-15")
def test_a_creation_under_way_at_the_shutdown_still_counts() -> None:
    """If it comes to be there its checkpoint is complete and told; until then its states are not deleted."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    assert machine.tell(Shutdown()) == []
    assert NotifyComplete(2) in machine.tell(CheckpointCreated(2))
    assert machine.state.completed_id == 2
    assert machine.tell(CheckpointCreated(2)) == []


@pytest.mark.item("CC-11")
def test_a_creation_that_fails_at_the_shutdown_is_dropped() -> None:
    """Its states are deleted and the caller that asked is told; no job is failed and no id closed any more."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    machine.tell(Shutdown())
    actions = machine.tell(CreationFailed(2))
    assert [type(one) for one in actions] == [RefuseRequest, NotifyAborted, DiscardState]


@pytest.mark.item("CC-09")
def test_an_aborted_checkpoint_makes_room_for_the_next() -> None:
    """Its tombstone need not be there yet."""
    machine = Machine(rules(1))
    machine.request()
    machine.tell(Requested(RequestKind.USER, "waits"))
    (going,) = only(TriggerTasks, machine.tell(GivenUp(2, FailureReason.TRIGGER)))
    assert going.pending.checkpoint_id == TAKEOVER_ID + 2


# The state machine of the coordinator: acknowledgements, declines, failures, and how many of them are borne.


@pytest.mark.item("CC-01")
def test_a_checkpoint_is_created_when_all_have_acknowledged_and_not_before() -> None:
    """In whatever order the acknowledgements and their number come."""
    machine = Machine()
    machine.request()
    assert machine.acknowledge(2, 1) == []
    assert machine.expect(2, 2) == []
    (checkpoint,) = machine.acknowledge(2, 0)
    assert isinstance(checkpoint, CreateCheckpoint)
    assert sorted(checkpoint.pending.acknowledged) == [0, 1]
    machine.request()
    assert machine.acknowledge(3) == []
    machine.tell(CheckpointCreated(2))
    assert [one.pending.checkpoint_id for one in only(CreateCheckpoint, machine.expect(3))] == [3]


@pytest.mark.item("CC-01")
def test_a_checkpoint_is_not_created_while_its_tasks_are_being_told() -> None:
    """They may acknowledge before the trigger is reported; a trigger that fails then still aborts it."""
    machine = Machine()
    machine.tell(Requested(SAVEPOINT, "s2"))
    assert machine.fill(2) == []
    actions = machine.tell(TriggerFailed(2))
    assert [one.reason for one in only(RefuseRequest, actions)] == [FailureReason.TRIGGER]
    assert only(CreateCheckpoint, actions) == []


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
    """At or before the newest checkpoint all is decided; the next ids may become another coordinator's (R6)."""
    machine = Machine()
    machine.request()
    assert machine.acknowledge(TAKEOVER_ID) == [DiscardState(1, handle(1, 0), Stray.UNKNOWN_CHECKPOINT)]
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
    assert notify == NotifyAborted(2, FailureReason.DECLINED, completed_id=TAKEOVER_ID)
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
def test_a_creation_that_failed_for_certain_aborts_its_checkpoint(is_closed: bool) -> None:
    """Its states are deleted and its failure counts; the id is closed, unless a tombstone has taken it."""
    machine = Machine()
    machine.request()
    machine.fill(2)
    actions = machine.tell(CreationFailed(2, is_closed=is_closed))
    assert [one.reason for one in only(NotifyAborted, actions)] == [FailureReason.FINALIZE]
    assert [one.handle for one in only(DiscardState, actions)] == [handle(2, 0)]
    assert len(only(FailJob, actions)) == 1
    assert only(CloseId, actions) == ([] if is_closed else [CloseId(2)])
    assert machine.state.newest_checkpoint == (2 if is_closed else 1)


def test_nothing_aborts_a_checkpoint_whose_metadata_is_being_created() -> None:
    """Neither time nor a task nor the owner: only the checkpoint log decides."""
    machine = Machine(rules(9, timeout_ms=10))
    machine.request()
    machine.fill(2)
    machine.now_ms += 10
    for event in (Tick("s"), Declined(2, 0, "s2"), GivenUp(2, FailureReason.EXPIRED), TaskFailed(0)):
        assert machine.tell(event) == []
    machine.tell(CheckpointCreated(2))
    assert machine.state.completed_id == 2


# The state machine of the coordinator: which requests are triggered, when, and what time does.

TEN_MINUTES_MS = 600_000


def tick(machine: Machine, after_ms: int) -> list[TriggerTasks]:
    machine.now_ms += after_ms
    return only(TriggerTasks, machine.tell(Tick(f"s{machine.state.next_id}")))


@pytest.mark.item("CC-14")
def test_a_start_tells_what_the_restored_state_holds_and_then_tidies_up() -> None:
    """The last coordinator's notification may be lost."""
    assert Machine().first_actions == (NotifyComplete(TAKEOVER_ID), Subsume())


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
def test_no_id_is_triggered_that_the_newest_checkpoint_does_not_reserve(spare_ids: int) -> None:
    """Forced requests go beyond the concurrency as far as ids are spare.

    Each checkpoint that is created frees one more.
    """
    machine = Machine(rules(max_concurrent=1, spare_ids=spare_ids))
    ids = [machine.request(SAVEPOINT) for _ in range(1 + spare_ids)]
    assert machine.tell(Requested(SAVEPOINT, "waits")) == []
    machine.fill(ids[0])
    created = machine.tell(CheckpointCreated(ids[0]))
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
def test_no_other_request_waits_for_the_pause(kind: object) -> None:
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
    assert machine.state.creating == 2


def begin_and_request() -> tuple[object, ...]:
    state, _ = begin(TAKEOVER_ID, rules(max_concurrent=9))
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
