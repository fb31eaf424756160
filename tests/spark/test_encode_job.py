"""The Spark job that encodes stages: which task has which, what becomes of answers, and whose pool it runs in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encrypted_parquet import decrypted_ids, encryption
from faulty_encodes import FaultyEncodes
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import Row
from spark_support import make_sink

from partfile.filesystems import errors
from partfile.filesystems.errors import ConfigError, NotReady, PartfileError, PartMissing
from partfile.filesystems.local import LocalStore
from partfile.filesystems.port import PartHandle
from partfile.sink.encoding import EncodedStage
from partfile.sink.spark.encode_job import EncodeAnswer, Problem, StagesBySpark, read_answers, shared_out
from partfile.sink.states import RolledStage, Stage
from partfile.version import __version__
from partfile.writers.parquet import ParquetFormat
from partfile.writers.recipes import recipe_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RECIPE = Stage(recipe={"format": "parquet"})


def rolled(number: int, length: int = 1000) -> RolledStage:
    """A stage that no file is behind."""
    names = {"in_progress": f"_part-{number}.token.in-progress", "pending": f"_part-{number}.token.pending"}
    part = PartHandle(
        bucket="",
        name=f"part-{number}",
        sidecar=f"_part-{number}.valid-length",
        valid_length=length,
        is_stage=True,
        **names,
    )
    return RolledStage(part=part, stage=RECIPE, rows=1, since=1)


def answer(
    stage: RolledStage, submission: str = "this", target: str | None = "file", version: str = __version__
) -> Row:
    """A row that a task may answer with; without a target it says that storage was not ready."""
    problem = NotReady("later") if target is None else None
    handle = None if target is None else stage.part.model_copy(update={"is_stage": False, "pending": target})
    said = EncodeAnswer.of(EncodedStage(stage, handle, problem))
    return Row(submission=submission, version=version, answer=bytearray(said.model_dump_json().encode()))


@given(st.lists(st.integers(1, 1 << 30), max_size=60), st.integers(1, 8))
def test_every_stage_is_in_one_share(lengths: list[int], slots: int) -> None:
    """No task has nothing to do, as many run as can, and none has more than its part and one stage."""
    stages = [rolled(number, length) for number, length in enumerate(lengths)]
    shares = shared_out(stages, slots)
    assert sorted(place for share in shares for place in share) == list(range(len(stages)))
    assert all(shares)
    assert len(shares) >= min(slots, len(stages))
    loads = [sum(lengths[place] + (1 << 20) for place in share) for share in shares]
    assert loads == sorted(loads, reverse=True)
    if stages:
        assert loads[0] <= sum(loads) / len(loads) + max(lengths) + (1 << 20)


def test_a_thousand_small_stages_are_no_thousand_tasks() -> None:
    """Starting a task costs more than encoding a few rows."""
    assert len(shared_out([rolled(number) for number in range(1000)], 2)) < 10


def test_an_answer_counts_once() -> None:
    """The first one to this job is taken; of another job, of another stage, or none at all: not encoded yet."""
    stages = [rolled(number) for number in range(4)]
    rows = [
        answer(stages[1], "another"),
        answer(stages[0], target="first"),
        answer(stages[0], target="second"),
        answer(rolled(9)),
        answer(stages[2], target=None),
    ]
    found = read_answers(stages, "this", rows)
    assert [one.stage for one in found] == stages
    assert [one.target.pending if one.target else None for one in found] == ["first", None, None, None]
    assert [type(one.problem) for one in found] == [type(None), NotReady, NotReady, NotReady]


def test_a_worker_of_another_version_is_refused() -> None:
    """It may have encoded otherwise."""
    with pytest.raises(PartfileError, match=r"an executor has partfile 0\.0\.0-other"):
        read_answers([rolled(1)], "this", [answer(rolled(1), version="0.0.0-other")])


class OfNobody(PartMissing):
    """A kind of error that only the task knows."""


@pytest.mark.parametrize("kind", [PartMissing, NotReady, ConfigError, errors.OutcomeUnknown, errors.PartDamaged])
def test_an_error_keeps_its_kind_on_the_way(kind: type[PartfileError]) -> None:
    """The coordinator tries again after some and stops after others."""
    there = Problem.of(kind("what", hint="do this", path="a/b"))
    back = Problem.model_validate_json(there.model_dump_json()).to_error()
    assert (type(back), back.message, back.hint, back.path) == (kind, "what", "do this", "a/b")


def test_an_unknown_error_is_the_nearest_known_one() -> None:
    """A class that the driver does not have, and one from outside the tree."""
    assert type(Problem.of(OfNobody("gone")).to_error()) is PartMissing
    assert type(Problem.of(OSError("disk")).to_error()) is PartfileError
    assert Problem.of(OSError("disk")).to_error().message == "OSError: disk"


class PoolNoting:
    """Opens the stores of tasks, and notes in which pool and by what description they run."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __call__(self, url: str, _options: Any) -> LocalStore:
        """Open a store."""
        task = TaskContext.get()
        assert task is not None
        names = ("spark.scheduler.pool", "spark.job.description")
        Path(self.log).write_text(" | ".join(str(task.getLocalProperty(name)) for name in names))
        return LocalStore(url)


def stages_of(base: Path) -> list[RolledStage]:
    """Three real stages of two rows each, which a plain sink has left open."""
    sink = make_sink(base, format="parquet", columnar="staged", on_stop="keep")
    with sink.local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": list(range(6)), "bucket": [0, 1, 2] * 2}))
        out.checkpoint()
        opened = [part for parts in out._runtime.coordinator.state.open.values() for part in parts]
    return [RolledStage(part=one.part, stage=one.stage or RECIPE, rows=one.rows, since=1) for one in opened]


def encoder(spark: SparkSession, base: Path, opener: Any) -> StagesBySpark:
    return StagesBySpark(make_sink(base, open_store_in_tasks=opener).settings, spark)


def ids(base: Path, encoded: EncodedStage) -> list[int]:
    """The rows of an encoded file that nobody has published yet."""
    assert encoded.target is not None
    found: list[int] = pq.read_table(base / encoded.target.path_of(encoded.target.pending))["id"].to_pylist()
    return found


@pytest.mark.spark
def test_the_timer_encodes_in_the_pool_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """A thread of its own has no properties of the query's; those that it has are as they were afterwards."""
    stages, context = stages_of(tmp_path / "out"), spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "streams")
    try:
        by_spark = encoder(spark, tmp_path / "out", PoolNoting(tmp_path / "log"))
    finally:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # Spark takes it away.
    encoded: list[EncodedStage] = []
    after: list[str | None] = []

    def turn() -> None:
        context.setLocalProperty("spark.job.description", "mine")
        encoded.extend(by_spark.encode(stages))
        after.extend(context.getLocalProperty(name) for name in ("spark.scheduler.pool", "spark.job.description"))

    timer = threading.Thread(target=turn)
    timer.start()
    timer.join()
    assert (tmp_path / "log").read_text() == "streams | partfile numbers: encode 3 parts"
    assert after == [None, "mine"]
    assert [ids(tmp_path / "out", one) for one in encoded] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.spark
def test_a_stage_that_fails_keeps_no_other_from_being_encoded(spark: SparkSession, tmp_path: Path) -> None:
    """One is gone, storage refuses another: each has its own problem, and the third its file."""
    base, stages = tmp_path / "out", stages_of(tmp_path / "out")
    (base / stages[1].part.path_of(stages[1].part.in_progress)).unlink()
    encoded = encoder(spark, base, FaultyEncodes(tmp_path / "flag", "refuse")).encode(stages)
    assert type(encoded[1].problem) is PartMissing
    others = [encoded[0], encoded[2]]
    assert sorted(type(one.problem).__name__ for one in others) == ["NoneType", "NotReady"]
    (done,) = (one for one in others if one.problem is None)
    assert ids(base, done) == [encoded.index(done), encoded.index(done) + 3]


@pytest.mark.spark
def test_tasks_encrypt_what_they_encode(spark: SparkSession, tmp_path: Path) -> None:
    """The sink's format goes with the closure, since no recipe holds what encrypts."""
    base, form = tmp_path / "out", ParquetFormat(encryption=encryption)
    (stage, *_others) = stages_of(base)
    asks = stage.model_copy(update={"stage": Stage(recipe=recipe_of(form))})
    (done,) = StagesBySpark(make_sink(base, format=form).settings, spark).encode([asks])
    assert done.target is not None
    assert decrypted_ids(base / done.target.path_of(done.target.pending)) == [0, 3]
