"""The two kinds of owner: one that ticks, and one whose tasks answer at once or from other threads."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from checkpoint_owner import Owner, storage

from partfile.errors import PartfileError
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.events import CoordinatorRules, FailureReason, RequestKind, RequestLimits

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.snapshot.events import PendingCheckpoint

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
    assert storage(tmp_path).list_links() == [3, 4]


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
    assert storage(tmp_path).list_links() == [1, 2, 3]


@pytest.mark.item("CC-05")
def test_the_job_fails_when_its_state_cannot_be_made(tmp_path: Path) -> None:
    """No failure is borne unless so many are allowed."""
    one = Owner(tmp_path)
    one.start()
    one.raising = {"finalise"}
    with pytest.raises(RuntimeError, match="finalise"):
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
    assert storage(tmp_path).list_links() == [1]


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
