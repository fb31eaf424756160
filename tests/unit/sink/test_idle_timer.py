"""The timer between two batches of a Spark driver, without Spark: its turns where storage fails, or a rival is."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from idle_driver import INTERVAL_MS, IdleDriver
from staged_streams import finished_rows, names

from partfile.errors import Fenced, NotReady, PartDamaged
from partfile.sink.concurrency import MOST_WAIT_MS
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.encode import StagesInProcess
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from partfile.snapshot.storage import CheckpointStorage


def test_a_turn_shows_what_is_idle(job: IdleDriver) -> None:
    """And asks for another one."""
    assert finished_rows(job.base) == {}
    assert job.turn() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)
    assert job.generation() == 1


@pytest.mark.parametrize("answer", ["refused", "lost"])
def test_a_turn_that_failed_is_not_the_last(job: IdleDriver, answer: str) -> None:
    """A later one begins a generation, shows the rows, and the query goes on in it."""
    job.links.answer = answer
    assert job.turn() == INTERVAL_MS
    assert job.stream._runtime is None
    job.links.answer = "made"
    assert job.turn() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)
    job.goes_on()
    assert job.generation() == 2


def test_turns_that_fail_come_at_longer_and_longer_intervals(job: IdleDriver) -> None:
    """And one that does not fail ends that."""
    job.links.answer = "refused"
    waits = [job.turn() for _ in range(16)]
    assert waits[:4] == [INTERVAL_MS, 2 * INTERVAL_MS, 4 * INTERVAL_MS, 8 * INTERVAL_MS]
    assert waits[-3:] == [MOST_WAIT_MS] * 3
    job.links.answer = "made"
    assert job.turn() == INTERVAL_MS
    job.writes(2)
    job.links.answer = "refused"
    assert job.turn() == INTERVAL_MS
    job.links.answer = "made"
    assert job.turn() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 4)


def test_no_generation_is_begun_to_do_nothing(job: IdleDriver) -> None:
    """All rows are visible, and a checkpoint says so; the query's next batch makes a timer again."""
    job.turn()
    coordinator = job.stream._live().coordinator
    coordinator.complete(coordinator.trigger(job.now_ms), coordinator.assignment(), coordinator.state.position)
    job.stream.lose_generation()
    assert job.turn() is None
    assert job.generation() == 1


def test_a_rival_that_came_meanwhile_stops_the_query(job: IdleDriver) -> None:
    """For good: no generation is begun over the rival's, neither by a turn nor by a batch of this run."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    rival = job.rival()
    assert job.turn() is None
    assert job.generation() == 2
    with pytest.raises(Fenced):
        job.goes_on()
    rival.coordinator.close_all(job.now_ms)
    rival.close()


def test_a_turn_without_a_failure_is_fenced_as_before(job: IdleDriver) -> None:
    """By the link that it cannot create."""
    rival = job.rival()
    assert job.turn() is None
    with pytest.raises(Fenced):
        job.goes_on()
    rival.close()


def test_a_generation_that_failed_after_its_fence_is_gone_on_from(
    job: IdleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held, so a turn after it knows that nobody else has begun one."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"

    def refuse(*_anything: Any) -> None:
        raise NotReady("not now")

    with monkeypatch.context() as patch:
        patch.setattr(SinkCoordinator, "_encode_rolled", refuse)
        assert job.turn() == 2 * INTERVAL_MS
    assert job.generation() == 2
    assert job.turn() == INTERVAL_MS
    job.goes_on()
    assert job.generation() == 3


def test_a_generation_that_a_turn_has_begun_is_seen_to_run(job: IdleDriver) -> None:
    """Else nobody would hold the marker before the next batch, and recover would take the sink over."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    job.turn()
    runtime = job.stream._live()
    with LocalStore(runtime.storage.store.base) as other:
        assert other.marker_is_held(runtime.marker_path)


def test_a_generation_that_a_turn_has_begun_encodes_as_the_batch_does(job: IdleDriver) -> None:
    """In the pool of the query, and without the stages together that have ended a job."""
    made: list[str] = []

    def make(storage: CheckpointStorage) -> StagesInProcess:
        made.append(storage.job)
        return StagesInProcess(LocalStore(str(job.base)), 1)

    job.stream._encoder = make
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    job.turn()
    assert made == ["life"]


def test_nothing_is_begun_for_a_query_that_has_ended(job: IdleDriver, active: list[bool]) -> None:
    """Nor comes another turn. A clean end has nothing of its own to wait for, and shows the rows."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    active.append(False)
    assert job.turn() is None
    assert job.generation() == 1
    job.stream.finish("query")
    assert finished_rows(job.base) == names(0, 2)


def test_a_batch_after_a_turn_that_failed_has_a_timer_of_its_own(job: IdleDriver) -> None:
    """The old one is stopped."""
    job.links.answer = "refused"
    job.turn()
    before = job.stream._timer
    job.links.answer = "made"
    job.goes_on()
    assert before is not None
    assert job.stream._timer is not before
    assert not before._timer._thread.is_alive()
    assert finished_rows(job.base) == names(0, 2)


def test_a_turn_does_not_come_while_a_batch_runs(job: IdleDriver) -> None:
    """Another thread cannot have the mutex, and comes again."""
    told: list[int | None] = []
    job.links.answer = "refused"
    turn = threading.Thread(target=lambda: told.append(job.turn()))
    turn.start()
    turn.join()
    assert told == [INTERVAL_MS]
    assert job.stream._runtime is not None


def test_what_no_later_turn_can_mend_ends_the_timer(
    job: IdleDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an error in the log; the next batch restores, and meets it."""

    def damaged(*_anything: Any) -> None:
        raise PartDamaged("not what was written")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "partfile"):
        patch.setattr(LocalStore, "publish", damaged)
        assert job.turn() is None
    assert "not what was written" in caplog.text
    assert job.stream._timer is None
    job.goes_on()
    assert finished_rows(job.base) == names(0, 2)
