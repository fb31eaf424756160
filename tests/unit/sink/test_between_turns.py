"""A Spark driver after a fence that got no answer, or asked for a savepoint in a back-off; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from idle_driver import BATCH, INTERVAL_MS, IdleDriver
from staged_streams import finished_rows, names

from partfile.errors import Fenced, NotReady, OutcomeUnknown, PartfileError
from partfile.sink.concurrency import MOST_WAIT_MS
from partfile.sink.encode import StagesInProcess
from partfile.sink.spark import stream as stream_module
from partfile.sink.spark.identity import QueryRun
from partfile.sink.states import RolledStage, Stage
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.storage import CheckpointStorage


@pytest.fixture
def unknown(job: IdleDriver) -> IdleDriver:
    """Just after a turn whose fence was made, and the store did not say so; now it is well again."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "lost"
    # A tombstone closes the id that the turn has triggered.
    job.links.left_to_make = 1
    assert job.turn() == 2 * INTERVAL_MS
    assert job.generation() == 2
    job.links.answer = "made"
    return job


def test_a_generation_of_its_own_is_no_rivals(unknown: IdleDriver) -> None:
    """The next turn knows the fence as its own, and goes on from it."""
    assert unknown.turn() == INTERVAL_MS
    assert unknown.generation() == 3
    assert finished_rows(unknown.base) == names(0, 2)
    unknown.goes_on()
    assert unknown.generation() == 3


def test_a_clean_end_after_a_generation_of_its_own(unknown: IdleDriver) -> None:
    """No rival is in its way either."""
    unknown.stream.finish("query")
    assert finished_rows(unknown.base) == names(0, 2)


def test_a_clean_end_after_a_batch_that_could_not_restore(job: IdleDriver) -> None:
    """The fence of the batch was made, and the store did not say so."""
    job.links.answer = "lost"
    job.links.left_to_make = 1
    with pytest.raises(OutcomeUnknown):
        job.restores()
    job.links.answer = "made"
    job.stream.finish("query")
    assert finished_rows(job.base) == names(0, 2)


def test_a_rival_after_a_generation_of_its_own_stops_the_query(unknown: IdleDriver) -> None:
    """The newest generation is not this driver's."""
    rival = unknown.rival()
    assert unknown.turn() is None
    with pytest.raises(Fenced):
        unknown.goes_on()
    rival.close()


@pytest.mark.parametrize("goes_on_by", ["a turn", "a batch"])
def test_a_generation_of_its_own_is_forgotten_with_the_next(unknown: IdleDriver, goes_on_by: str) -> None:
    """A rival that comes after that one stops the query for good."""
    if goes_on_by == "a turn":
        unknown.turn()
    unknown.goes_on()
    unknown.writes(2)
    rival = unknown.rival()
    assert unknown.generation() == 4
    assert unknown.turn() is None
    with pytest.raises(Fenced):
        unknown.goes_on()
    assert unknown.generation() == 4
    rival.close()


def test_a_savepoint_does_not_wait_for_the_next_turn(job: IdleDriver) -> None:
    """Storage failed in a turn and is well again: a generation is begun, and batches and turns go on in it."""
    job.links.answer = "refused"
    for _ in range(4):
        job.turn()
    with pytest.raises(NotReady, match="not now"):
        job.stream.savepoint(job.base / "_savepoints")
    job.links.answer = "made"
    assert job.stream._timer is not None
    job.stream._timer._timer.set(job.now_ms + MOST_WAIT_MS)
    assert Path(job.stream.savepoint(job.base / "_savepoints")).is_dir()
    assert finished_rows(job.base) == names(0, 2)
    job.goes_on()
    assert job.generation() == 2
    at_ms = job.stream._timer._timer._at_ms
    assert at_ms is not None
    assert at_ms - job.now_ms == INTERVAL_MS


def test_a_savepoint_that_failed_does_not_end_the_timer(job: IdleDriver) -> None:
    """An idle stream has no batch that would restore."""
    job.links.answer = "refused"
    with pytest.raises(NotReady, match="not now"):
        job.stream.savepoint(job.base / "_savepoints")
    job.links.answer = "made"
    assert job.turn() == INTERVAL_MS
    assert finished_rows(job.base) == names(0, 2)


def test_a_savepoint_does_not_take_the_sink_from_a_rival(job: IdleDriver) -> None:
    """The driver is told so, and begins nothing."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    rival = job.rival()
    with pytest.raises(Fenced, match="not the newest any more"):
        job.stream.savepoint(job.base / "_savepoints")
    assert job.generation() == 2
    rival.close()


def test_no_savepoint_of_a_query_that_has_ended(job: IdleDriver, active: list[bool]) -> None:
    """No generation is begun for it."""
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    active.append(False)
    with pytest.raises(PartfileError, match="nothing to save"):
        job.stream.savepoint(job.base / "_savepoints")
    assert job.generation() == 1


def test_a_later_run_encodes_in_its_own_session(job: IdleDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no batch of it came: the session of the run before may have been stopped."""
    asked: list[object] = []

    def encoder(_settings: object, session: object) -> Callable[[CheckpointStorage], StagesInProcess]:
        asked.append(session)
        return lambda _storage: StagesInProcess(LocalStore(str(job.base)), 1)

    # Another test of this process may have left a session of Spark, of which the run has an encoder already.
    job.stream.release()
    monkeypatch.setattr(stream_module, "stage_encoder", encoder)
    job.restores()
    job.stream.release()
    monkeypatch.setattr(job.stream, "_session", "of the later run")
    job.stream.finish("query")
    assert asked == [None, "of the later run"]


class LostExecutors:
    """A session and its context, each of whose jobs fails."""

    defaultParallelism = 2  # noqa: N815 - Spark's name.

    def __init__(self) -> None:
        self.sparkContext = self
        self.jobs = 0

    def getLocalProperty(self, _name: str) -> None:  # noqa: N802 - Spark's name.
        """None is set."""

    def range(self, *_: object) -> Any:
        """The beginning of a job."""
        self.jobs += 1
        raise RuntimeError("the executors are lost")


def rolled(name: str) -> RolledStage:
    part = PartHandle(
        bucket="", name=name, in_progress=f"_{name}", pending="_p", sidecar="_v", valid_length=1, is_stage=True
    )
    return RolledStage(part=part, stage=Stage(recipe={"format": "parquet"}), rows=1, since=1)


def jobs_of(job: IdleDriver) -> int:
    """How many jobs a batch begins for two stages."""
    session = LostExecutors()
    encoder: Any = job.stream._live().coordinator._stages._encoder
    encoder._session = session
    encoder.encode([rolled("one"), rolled("other")])
    return session.jobs


def test_a_run_that_lost_a_generation_remembers_which_jobs_failed(
    job: IdleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stage that ends its jobs would take the others along once more after each hiccup of storage."""
    monkeypatch.setattr(job.stream, "_session", LostExecutors())
    job.restores()
    assert jobs_of(job) == 1
    job.writes(2)
    job.links.answer = "refused"
    job.turn()
    job.links.answer = "made"
    assert job.stream._run is None
    job.goes_on()
    assert jobs_of(job) == 2
    job.stream._restore(QueryRun(1, "query", "another run"), BATCH)
    assert jobs_of(job) == 1
