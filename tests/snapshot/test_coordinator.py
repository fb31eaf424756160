"""The coordinator over a real store, with both kinds of owner."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from partfile.errors import Fenced, NotApplied, OutcomeUnknown, PartfileError
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.events import CoordinatorRules, FailureReason, RequestKind, RequestLimits
from partfile.testing.faults import ActAt, CrashAt, FailAt, SimulatedCrash
from support.state.checkpoint_owner import Owner, held, storage, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.events import PendingCheckpoint


# The coordinator over a real store: what a crash, a failed call or a lost notification leaves behind.

CREATE = ["create_file"]
MANY = CoordinatorRules(limits=RequestLimits(max_concurrent=9), tolerable_failures=9)


def write_state(owner: Owner, checkpoint_id: int) -> str:
    """Let subtask 0 acknowledge with a file of its own; return the file's path."""
    handle = write_text(owner.storage, checkpoint_id, "x")
    submission = owner.checkpoints.state.find(checkpoint_id)
    assert submission is not None
    owner.checkpoints.acknowledge(checkpoint_id, 0, submission.submission, handle)
    return owner.storage.path(handle.path)


@pytest.mark.item("CC-02", "CC-14")
@pytest.mark.parametrize(("when", "text", "told"), [("before", "fresh", 4), ("after", "a", 5)])
def test_a_crash_at_the_commit_is_told_by_the_next_start(when: str, text: str, told: int, tmp_path: Path) -> None:
    """Before it the checkpoint never was; after it the restart tells what the crash left untold."""
    crash = CrashAt(2, when, only=CREATE)  # type: ignore[arg-type]
    one = Owner(tmp_path, crash)
    one.start()
    with pytest.raises(SimulatedCrash):
        one.complete("a")
    assert one.told == [("complete", 1)]
    again = Owner(tmp_path)
    assert held(again.start()) == text
    assert again.told == [("complete", told)]


@pytest.mark.item("CC-14")
def test_a_lost_notification_is_made_good_by_the_next(tmp_path: Path) -> None:
    """An error in one is logged; the checkpoint stays complete, and the next tells of all up to itself."""
    one = Owner(tmp_path)
    one.start()
    one.raising = {"notify_complete"}
    assert held(one.complete("a")) == "a"
    one.raising = set()
    one.complete("b")
    assert one.told == [("complete", 1), ("complete", 3)]
    assert one.completed == [2, 3]
    assert held(one.checkpoints.look()) == "b"


@pytest.mark.item("CC-03", "CC-15")
def test_a_creation_that_failed_aborts_and_the_next_checkpoint_goes_on(tmp_path: Path) -> None:
    """Its state is deleted, its id closed by a tombstone, and its cause told to the caller that asked."""
    error = NotApplied("disk full")
    # The third file: the takeover, the state of the subtask, the checkpoint.
    one = Owner(tmp_path, FailAt(3, error, only=CREATE), rules=MANY)
    one.start()
    pending = one.trigger()
    path = write_state(one, pending.checkpoint_id)
    one.checkpoints.know_subtasks(pending.checkpoint_id, 1)
    assert one.refusals == [(1, FailureReason.FINALIZE, error)]
    assert one.told[-1] == ("aborted", 2)
    assert not (tmp_path / path).exists()
    checkpoint = one.complete("b")
    assert (checkpoint.checkpoint_id, storage(tmp_path).list_completed_ids()) == (3, [1, 2, 3])


@pytest.mark.item("CC-15")
def test_an_unknown_creation_deletes_nothing_and_ends_the_coordinator(tmp_path: Path) -> None:
    """The checkpoint may be there and name the state; every call says so from then on."""
    unknown = FailAt(3, OutcomeUnknown("reply lost"), applied=True, persistent=True, only=[*CREATE, "read_file"])
    one = Owner(tmp_path, unknown, rules=MANY)
    one.start()
    pending, waiting = one.trigger(), one.trigger()
    path = write_state(one, pending.checkpoint_id)
    with pytest.raises(OutcomeUnknown):
        one.checkpoints.know_subtasks(pending.checkpoint_id, 1)
    with pytest.raises(OutcomeUnknown):
        one.checkpoints.request(RequestKind.USER)
    reasons = {reason for _, reason, _ in one.refusals}
    assert (reasons, len(one.refusals)) == ({FailureReason.OUTCOME_UNKNOWN}, 3)
    assert waiting.checkpoint_id == 3
    assert (tmp_path / path).exists()
    checkpoint = Owner(tmp_path).checkpoints.look()
    assert checkpoint is not None
    assert checkpoint.checkpoint_id == 2


@pytest.mark.item("CC-11", "CC-15")
def test_a_fenced_coordinator_stops_for_good(tmp_path: Path) -> None:
    """Another has started: everything fails as fenced, and nothing is deleted or told."""
    one = Owner(tmp_path, rules=MANY)
    one.start()
    pending = one.trigger()
    path = write_state(one, pending.checkpoint_id)
    Owner(tmp_path).start()
    with pytest.raises(Fenced):
        one.checkpoints.know_subtasks(pending.checkpoint_id, 1)
    with pytest.raises(Fenced):
        one.checkpoints.tick()
    assert one.told == [("complete", 1)]
    assert (tmp_path / path).exists()


@pytest.mark.item("CC-13")
def test_a_state_that_a_checkpoint_names_is_never_deleted(tmp_path: Path) -> None:
    """An acknowledgement that comes again after the completion is unknown, yet its file is in use."""
    one = Owner(tmp_path, rules=MANY)
    one.start()
    pending = one.trigger()
    path = write_state(one, pending.checkpoint_id)
    one.checkpoints.know_subtasks(pending.checkpoint_id, 1)
    (state,) = one.checkpoints.newest.operators["o"].subtasks
    one.checkpoints.acknowledge(pending.checkpoint_id, 0, pending.submission, state.handle)
    assert (tmp_path / path).exists()
    stray = write_text(one.storage, pending.checkpoint_id, "y")
    assert stray.kind == "file"
    one.checkpoints.acknowledge(pending.checkpoint_id, 1, pending.submission, stray)
    assert not (tmp_path / one.storage.path(stray.path)).exists()


@pytest.mark.item("CC-04", "CC-06")
def test_a_late_state_is_deleted_and_the_id_stays_closed(tmp_path: Path) -> None:
    """Ten minutes on the fake clock; a restart takes an id beyond every one that was used."""
    one = Owner(tmp_path, rules=MANY)
    one.start()
    pending = one.trigger()
    one.now_ms += 600_000
    one.checkpoints.tick()
    late = write_text(one.storage, pending.checkpoint_id, "x")
    assert late.kind == "file"
    one.checkpoints.acknowledge(pending.checkpoint_id, 0, pending.submission, late)
    assert not (tmp_path / one.storage.path(late.path)).exists()
    assert one.trigger().checkpoint_id == 3
    takeover = Owner(tmp_path).start().checkpoint_id
    assert takeover == 2 + MANY.ids_ahead + 1
    assert storage(tmp_path).list_completed_ids() == list(range(1, takeover + 1))


@pytest.mark.item("CC-16")
def test_slow_deletions_hold_requests_back(tmp_path: Path) -> None:
    """Run elsewhere, they count until they have run."""
    queued: list[Callable[[], None]] = []
    one = Owner(tmp_path, submit_deletion=queued.append)
    one.start()
    one.complete("a")
    one.checkpoints.request(RequestKind.USER)
    assert len(one.triggered) == 1
    assert storage(tmp_path).list_completed_ids() == [1, 2]
    queued.pop(0)()
    assert len(one.triggered) == 2


def test_a_tombstone_that_failed_is_tried_again(tmp_path: Path) -> None:
    """The checkpoint after it waits for it."""
    one = Owner(tmp_path, FailAt(2, NotApplied("disk full"), only=CREATE), rules=MANY)
    one.start()
    one.checkpoints.abort(one.trigger().checkpoint_id)
    assert storage(tmp_path).list_completed_ids() == [1]
    due_ms = one.checkpoints.tick()
    assert due_ms is not None
    one.now_ms = due_ms
    one.checkpoints.tick()
    assert storage(tmp_path).list_completed_ids() == [1, 2]


@pytest.mark.item("CC-06")
def test_who_asks_for_a_checkpoint_does_not_wait_for_the_retry(tmp_path: Path) -> None:
    """The only id there is waits for a tombstone: it is tried again at once, and the request goes after it."""
    one_id = CoordinatorRules(tolerable_failures=9, spare_ids=0)
    one = Owner(tmp_path, FailAt(2, NotApplied("disk full"), only=CREATE), rules=one_id)
    one.start()
    one.checkpoints.abort(one.trigger().checkpoint_id)
    assert storage(tmp_path).list_completed_ids() == [1]
    assert one.trigger().checkpoint_id == 3
    assert storage(tmp_path).list_completed_ids() == [1, 2]


@pytest.mark.item("CC-06")
@pytest.mark.parametrize("clean", [True, False])
def test_an_id_that_was_only_triggered_is_never_used_again(clean: bool, tmp_path: Path) -> None:
    """It left nothing on disk, at a crash as at a clean end; the next start closes it all the same."""
    one = Owner(tmp_path)
    one.start()
    pending = one.trigger()
    if clean:
        one.checkpoints.shut_down()
    again = Owner(tmp_path)
    again.start()
    closed = again.storage.read_checkpoint(pending.checkpoint_id)
    assert closed is not None
    assert closed.kind == "tombstone"
    assert again.trigger().checkpoint_id > again.checkpoints.newest.checkpoint_id > pending.checkpoint_id


@pytest.mark.item("CC-02")
def test_nothing_is_told_while_the_metadata_is_not_there(tmp_path: Path) -> None:
    """Seen from the store: at the creation of the checkpoint no task has heard, at its end the checkpoint is alone."""
    seen: list[list[tuple[str, int]]] = []
    one = Owner(tmp_path, ActAt(2, lambda: seen.append(list(one.told)), "after", only=CREATE))
    one.start()
    one.complete("a")
    assert seen == [[("complete", 1)]]
    assert one.told == [("complete", 1), ("complete", 2)]


# The two kinds of owner: one that ticks, and one whose tasks answer at once or from other threads.

HANDLE = InlineHandle(data=b"")


class Embedded(Owner):
    """An owner whose tasks acknowledge before they are all told."""

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """Every task acknowledges at once."""
        super().trigger_tasks(pending)
        self.checkpoints.know_subtasks(pending.checkpoint_id, 2)
        for subtask in range(2):
            self.checkpoints.acknowledge(pending.checkpoint_id, subtask, pending.submission, HANDLE)


class Eager(Embedded):
    """An owner that asks for the next checkpoint while it is told of one."""

    def notify_complete(self, checkpoint_id: int) -> None:
        """Ask first, note then."""
        if checkpoint_id < 4:
            self.checkpoints.request(RequestKind.USER)
        super().notify_complete(checkpoint_id)


def test_what_a_hook_reports_waits_its_turn(tmp_path: Path) -> None:
    """An event of a hook is taken when all that belongs to the one before is done."""
    one = Eager(tmp_path)
    one.start()
    assert one.told == [("complete", 1), ("complete", 2), ("complete", 3), ("complete", 4)]
    assert one.completed == [2, 3, 4]
    assert storage(tmp_path).list_completed_ids() == [3, 4]


@pytest.mark.item("LT-03", "LT-04")
@pytest.mark.parametrize("seed", range(3))
def test_a_loop_that_ticks_takes_checkpoints_at_intervals(seed: int, tmp_path: Path) -> None:
    """The first after a delay between the pause and the interval, by the seed; each tick says when the next is due."""
    rules = CoordinatorRules(limits=RequestLimits(min_pause_ms=300), interval_ms=1000)
    one = Embedded(tmp_path, rules=rules, draw=random.Random(seed).randint)
    one.start()
    one.checkpoints.start_periodic()
    times = []
    for _ in range(4):
        due_ms = one.checkpoints.tick()
        assert due_ms is not None
        times.append(due_ms)
        one.now_ms = due_ms
    assert times[0] == random.Random(seed).randint(300, 1000)
    assert [after - before for before, after in pairwise(times)] == [1000] * 3
    assert one.completed == [2, 3, 4]
    one.checkpoints.stop_periodic()
    assert one.checkpoints.tick() is None


def test_a_trigger_that_fails_aborts_and_tells_why(tmp_path: Path) -> None:
    """The id is closed, and the next request goes."""
    one = Owner(tmp_path)
    one.start()
    one.raising = {"trigger_tasks"}
    one.checkpoints.request(RequestKind.USER)
    ((number, reason, cause),) = one.refusals
    assert (number, reason, str(cause)) == (1, FailureReason.TRIGGER, "deliberate: trigger_tasks")
    one.raising = set()
    assert one.complete("a").checkpoint_id == 3
    assert storage(tmp_path).list_completed_ids() == [1, 2, 3]


@pytest.mark.item("CC-05")
def test_the_job_fails_when_its_state_cannot_be_made(tmp_path: Path) -> None:
    """No failure is borne unless so many are allowed."""
    one = Owner(tmp_path)
    one.start()
    one.raising = {"collect_states"}
    with pytest.raises(RuntimeError, match="collect_states"):
        one.complete("a")
    assert one.failed_jobs == [(2, FailureReason.FINALIZE)]


@pytest.mark.item("CC-11")
def test_after_the_shutdown_nothing_begins(tmp_path: Path) -> None:
    """What waits and what comes later is refused; a second shutdown changes nothing."""
    one = Owner(tmp_path)
    one.start()
    pending = one.trigger()
    one.checkpoints.shut_down()
    one.checkpoints.shut_down()
    one.checkpoints.know_subtasks(pending.checkpoint_id, 0)
    one.checkpoints.request(RequestKind.USER)
    assert [reason for _, reason, _ in one.refusals] == [FailureReason.SHUTDOWN] * 2
    assert storage(tmp_path).list_completed_ids() == [1]


def test_before_the_start_nothing_goes(tmp_path: Path) -> None:
    """It owns no chain; a shutdown is none either."""
    one = Owner(tmp_path)
    with pytest.raises(PartfileError, match="start it first"):
        one.checkpoints.request(RequestKind.USER)
    one.checkpoints.shut_down()


@pytest.mark.item("CC-01")
def test_acknowledgements_come_from_many_threads(tmp_path: Path) -> None:
    """One event is taken at a time, and none is lost."""
    one = Owner(tmp_path)
    one.start()
    pending = one.trigger()
    one.checkpoints.know_subtasks(pending.checkpoint_id, 8)

    def acknowledge(subtask: int) -> None:
        one.checkpoints.acknowledge(pending.checkpoint_id, subtask, pending.submission, HANDLE)

    threads = [threading.Thread(target=acknowledge, args=(subtask,)) for subtask in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.completed == [2]
    assert len(one.checkpoints.newest.operators["o"].subtasks) == 8
