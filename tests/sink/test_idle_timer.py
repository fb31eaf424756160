"""A Spark driver between two batches, without Spark: its timer, takeovers without answer, savepoints."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import Fenced, NotReady, OutcomeUnknown, PartDamaged, PartfileError
from partfile.sink.concurrency import MOST_WAIT_MS
from partfile.sink.coordinator import SinkCoordinator
from partfile.sink.encode import LocalEncoder
from partfile.sink.spark import stream
from partfile.sink.spark import stream as stream_module
from partfile.sink.spark.identity import QueryRun
from partfile.sink.states import ClosedStagingFile, StagingFile
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from support.sinks.idle_driver import BATCH, INTERVAL_MS, ROWS, RUN, IdleDriver
from support.sinks.staged_streams import finished_rows, names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.sink.encode import StagingEncoder
    from partfile.snapshot.storage import CheckpointStorage


# A Spark driver between two batches, for the tests of its timer and of what is asked of it meanwhile.


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the query runs: the last one counts."""
    answers = [True]
    monkeypatch.setattr(stream, "is_active", lambda _session, run: run == RUN and answers[-1])
    return answers


@pytest.fixture
def job(tmp_path: Path, active: list[bool]) -> Iterator[IdleDriver]:
    """Just after its batch."""
    assert active[-1]
    job = IdleDriver(tmp_path)
    yield job
    job.stream.release()
    job.stream._mutex.release()


# The timer between two batches of a Spark driver, without Spark: its ticks where storage fails, or a rival is.


def test_a_tick_shows_what_is_idle(job: IdleDriver) -> None:
    """And asks for another one."""
    assert finished_rows(job.base) == {}
    assert job.tick() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)
    assert job.epoch() == 1


@pytest.mark.parametrize("answer", ["refused", "lost"])
def test_a_tick_that_failed_is_not_the_last(job: IdleDriver, answer: str) -> None:
    """A later one begins an epoch, shows the rows, and the query goes on in it."""
    job.commits.answer = answer
    assert job.tick() == INTERVAL_MS
    assert job.stream._runtime is None
    job.commits.answer = "made"
    assert job.tick() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)
    job.goes_on()
    assert job.epoch() == 2


def test_ticks_that_fail_come_at_longer_and_longer_intervals(job: IdleDriver) -> None:
    """And one that does not fail ends that."""
    job.commits.answer = "refused"
    waits = [job.tick() for _ in range(16)]
    assert waits[:4] == [INTERVAL_MS, 2 * INTERVAL_MS, 4 * INTERVAL_MS, 8 * INTERVAL_MS]
    assert waits[-3:] == [MOST_WAIT_MS] * 3
    job.commits.answer = "made"
    assert job.tick() == INTERVAL_MS
    job.writes(2)
    job.commits.answer = "refused"
    assert job.tick() == INTERVAL_MS
    job.commits.answer = "made"
    assert job.tick() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 4)


def test_no_epoch_is_begun_to_do_nothing(job: IdleDriver) -> None:
    """All rows are visible, and a checkpoint says so; the query's next batch makes a timer again."""
    job.tick()
    coordinator = job.stream._live().coordinator
    coordinator.complete(coordinator.trigger(job.now_ms), coordinator.assignment(), coordinator.state.position)
    job.stream._lose_epoch()
    assert job.tick() is None
    assert job.epoch() == 1


def test_a_rival_that_came_meanwhile_stops_the_query(job: IdleDriver) -> None:
    """For good: no epoch is begun over the rival's, neither by a tick nor by a batch of this run."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    rival = job.rival()
    assert job.tick() is None
    assert job.epoch() == 2
    with pytest.raises(Fenced):
        job.goes_on()
    rival.coordinator.close_all(job.now_ms)
    rival.close()


def test_a_tick_without_a_failure_is_fenced_as_before(job: IdleDriver) -> None:
    """By the checkpoint that it cannot create."""
    rival = job.rival()
    assert job.tick() is None
    with pytest.raises(Fenced):
        job.goes_on()
    rival.close()


def test_an_epoch_that_failed_after_its_takeover_is_gone_on_from(
    job: IdleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held, so a tick after it knows that no other driver has begun one."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"

    def refuse(*_anything: Any, **_more: Any) -> None:
        raise NotReady("not now")

    with monkeypatch.context() as patch:
        patch.setattr(SinkCoordinator, "_encode", refuse)
        assert job.tick() == 2 * INTERVAL_MS
    assert job.epoch() == 2
    assert job.tick() == INTERVAL_MS
    job.goes_on()
    assert job.epoch() == 3


def test_an_epoch_that_a_tick_has_begun_is_seen_to_run(job: IdleDriver) -> None:
    """Else no driver would hold the marker before the next batch, and recover would take the sink over."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    job.tick()
    runtime = job.stream._live()
    with LocalStore(runtime.storage.store.base) as other:
        assert other.marker_is_held(runtime.marker_path)


def test_an_epoch_that_a_tick_has_begun_encodes_as_the_batch_does(job: IdleDriver) -> None:
    """In the pool of the query, and without the staging files together that have ended a job."""
    made: list[str] = []

    def make(storage: CheckpointStorage, _here: StagingEncoder) -> LocalEncoder:
        made.append(storage.job)
        return LocalEncoder(LocalStore(str(job.base)), 1)

    job.stream._encoder = make
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    job.tick()
    assert made == ["life"]


def test_nothing_is_begun_for_a_query_that_has_ended(job: IdleDriver, active: list[bool]) -> None:
    """Nor comes another tick. A clean end has nothing of its own to wait for, and shows the rows."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    active.append(False)
    assert job.tick() is None
    assert job.epoch() == 1
    job.stream.finish("query")
    assert finished_rows(job.base) == names(0, 2)


def test_a_batch_after_a_tick_that_failed_has_a_timer_of_its_own(job: IdleDriver) -> None:
    """The old one is stopped."""
    job.commits.answer = "refused"
    job.tick()
    before = job.stream._timer
    job.commits.answer = "made"
    job.goes_on()
    assert before is not None
    assert job.stream._timer is not before
    assert not before._thread.is_alive()
    assert finished_rows(job.base) == names(0, 2)


def test_a_tick_does_not_come_while_a_batch_runs(job: IdleDriver) -> None:
    """Another thread cannot have the mutex, and comes again."""
    told: list[int | None] = []
    job.commits.answer = "refused"
    tick = threading.Thread(target=lambda: told.append(job.tick()))
    tick.start()
    tick.join()
    assert told == [INTERVAL_MS]
    assert job.stream._runtime is not None


def test_what_no_later_tick_can_mend_ends_the_timer(
    job: IdleDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an error in the log; the next batch restores, and meets it."""

    def damaged(*_anything: Any) -> None:
        raise PartDamaged("not what was written")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "partfile"):
        patch.setattr(LocalStore, "publish", damaged)
        assert job.tick() is None
    assert "not what was written" in caplog.text
    assert job.stream._timer is None
    job.goes_on()
    assert finished_rows(job.base) == names(0, 2)


# A Spark driver after a takeover that got no answer, or asked for a savepoint in a back-off; without Spark.


@pytest.fixture
def unknown(job: IdleDriver) -> IdleDriver:
    """Just after a tick whose takeover was made, and the store did not say so; now it is well again."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "lost"
    assert job.tick() == 2 * INTERVAL_MS
    assert job.epoch() == 2
    job.commits.answer = "made"
    return job


def test_an_epoch_of_its_own_is_no_rivals(unknown: IdleDriver) -> None:
    """The next tick knows the takeover as its own, and goes on from it."""
    assert unknown.tick() == INTERVAL_MS
    assert unknown.epoch() == 3
    assert finished_rows(unknown.base) == names(0, 2)
    unknown.goes_on()
    assert unknown.epoch() == 3


def test_a_clean_end_after_an_epoch_of_its_own(unknown: IdleDriver) -> None:
    """No rival is in its way either."""
    unknown.stream.finish("query")
    assert finished_rows(unknown.base) == names(0, 2)


def test_a_clean_end_after_a_batch_that_could_not_restore(job: IdleDriver) -> None:
    """The takeover of the batch was made, and the store did not say so."""
    job.commits.answer = "lost"
    with pytest.raises(OutcomeUnknown):
        job.restores()
    job.commits.answer = "made"
    job.stream.finish("query")
    assert finished_rows(job.base) == names(0, 2)


def test_a_rival_after_an_epoch_of_its_own_stops_the_query(unknown: IdleDriver) -> None:
    """The newest epoch is not this driver's."""
    rival = unknown.rival()
    assert unknown.tick() is None
    with pytest.raises(Fenced):
        unknown.goes_on()
    rival.close()


@pytest.mark.parametrize("goes_on_by", ["a tick", "a batch"])
def test_an_epoch_of_its_own_is_forgotten_with_the_next(unknown: IdleDriver, goes_on_by: str) -> None:
    """A rival that comes after that one stops the query for good."""
    if goes_on_by == "a tick":
        unknown.tick()
    unknown.goes_on()
    unknown.writes(2)
    rival = unknown.rival()
    assert unknown.epoch() == 4
    assert unknown.tick() is None
    with pytest.raises(Fenced):
        unknown.goes_on()
    assert unknown.epoch() == 4
    rival.close()


def test_a_savepoint_does_not_wait_for_the_next_tick(job: IdleDriver) -> None:
    """Storage failed in a tick and is well again: an epoch is begun, and batches and ticks go on in it."""
    job.commits.answer = "refused"
    for _ in range(4):
        job.tick()
    with pytest.raises(NotReady, match="not now"):
        job.stream.savepoint(job.base / "_savepoints")
    job.commits.answer = "made"
    assert job.stream._timer is not None
    job.stream._timer.set(job.now_ms + MOST_WAIT_MS)
    assert Path(job.stream.savepoint(job.base / "_savepoints")).is_dir()
    assert finished_rows(job.base) == names(0, 2)
    job.goes_on()
    assert job.epoch() == 2
    at_ms = job.stream._timer._at_ms
    assert at_ms is not None
    assert at_ms - job.now_ms == INTERVAL_MS


def test_a_savepoint_that_failed_does_not_end_the_timer(job: IdleDriver) -> None:
    """An idle stream has no batch that would restore."""
    job.commits.answer = "refused"
    with pytest.raises(NotReady, match="not now"):
        job.stream.savepoint(job.base / "_savepoints")
    job.commits.answer = "made"
    assert job.tick() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)


def test_a_savepoint_does_not_take_the_sink_from_a_rival(job: IdleDriver) -> None:
    """The driver is told so, and begins nothing."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    rival = job.rival()
    with pytest.raises(Fenced, match="not the newest any more") as raised:
        job.stream.savepoint(job.base / "_savepoints")
    assert f"partfile status {job.base} --uid " in raised.value.hint
    assert job.epoch() == 2
    rival.close()


def test_no_savepoint_of_a_query_that_has_ended(job: IdleDriver, active: list[bool]) -> None:
    """No epoch is begun for it."""
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    active.append(False)
    with pytest.raises(PartfileError, match="nothing to save"):
        job.stream.savepoint(job.base / "_savepoints")
    assert job.epoch() == 1


def test_a_later_run_encodes_in_its_own_session(job: IdleDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no batch of it came: the session of the run before may have been stopped."""
    asked: list[object] = []

    def encoder(_settings: object, session: object) -> Callable[[CheckpointStorage, StagingEncoder], LocalEncoder]:
        asked.append(session)
        return lambda _storage, _here: LocalEncoder(LocalStore(str(job.base)), 1)

    # Another test of this process may have left a session of Spark, of which the run has an encoder already.
    job.stream.release()
    monkeypatch.setattr(stream_module, "staging_encoder", encoder)
    job.restores()
    job.stream.release()
    monkeypatch.setattr(job.stream, "_session", "of the later run")
    job.stream.finish("query")
    assert asked == [None, "of the later run"]


class LostExecutors:
    """A session and its context, each of whose jobs fails."""

    defaultParallelism = 2  # noqa: N815 - Spark's name.

    def __init__(self) -> None:
        self.sparkContext = self._jsc = self
        self.jobs = 0

    def sc(self) -> LostExecutors:
        """The context of the JVM."""
        return self

    def isStopped(self) -> bool:  # noqa: N802 - Spark's name.
        """It runs."""
        return False

    def getLocalProperty(self, _name: str) -> None:  # noqa: N802 - Spark's name.
        """None is set."""

    def range(self, *_: object) -> Any:
        """The beginning of a job."""
        self.jobs += 1
        raise RuntimeError("the executors are lost")


def closed(name: str) -> ClosedStagingFile:
    part = PartHandle(
        bucket="", name=name, in_progress=f"_{name}", pending="_p", sidecar="_v", valid_length=1, is_staging_file=True
    )
    return ClosedStagingFile(part=part, staging_file=StagingFile(spec={"format": "parquet"}), rows=1, since=1)


def jobs_of(job: IdleDriver) -> int:
    """How many jobs a batch begins for two staging files."""
    session = LostExecutors()
    encoder: Any = job.stream._live().coordinator._staging_files._encoder
    encoder._session = session
    encoder.encode([closed("one"), closed("other")])
    return session.jobs


def test_a_run_that_lost_an_epoch_remembers_which_jobs_failed(job: IdleDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a staging file that ends its jobs would take the others along once more after each hiccup of storage."""
    monkeypatch.setattr(job.stream, "_session", LostExecutors())
    job.restores()
    assert jobs_of(job) == 1
    job.writes(2)
    job.commits.answer = "refused"
    job.tick()
    job.commits.answer = "made"
    assert job.stream._runtime is None
    job.goes_on()
    assert jobs_of(job) == 2
    job.stream._restore(QueryRun(1, "query", "another run"), BATCH, ROWS)
    assert jobs_of(job) == 1
