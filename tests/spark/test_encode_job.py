"""The Spark job that encodes staging files: which task has which, failures of the job, and whose pool it runs in."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext
from pyspark.sql import Row

import partfile as pf
from partfile.errors import ConfigError, NotReady, OutcomeUnknown, PartDamaged, PartfileError, PartMissing
from partfile.sink.encode import EncodeResult, LocalEncoder
from partfile.sink.encoded_files import EncodedFile, JobFailed, NotItsOwn, PartlyEncoded, SharedJobFailed
from partfile.sink.plan import SinkSnapshot
from partfile.sink.publish import StagedParts
from partfile.sink.restore_rules import paths_of
from partfile.sink.spark.encode_job import (
    EncodeAnswer,
    EncodeGroups,
    SparkEncoder,
    assign_to_tasks,
    read_answers,
    staging_encoder,
)
from partfile.sink.spark.write_job import Problem
from partfile.sink.states import ClosedStagingFile, StagingFile
from partfile.snapshot.storage import CheckpointStorage, open_storage
from partfile.stores.base import PartHandle
from partfile.stores.local.store import LocalStore
from partfile.version import __version__
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import spec_of
from support.files.encryption import decrypted_ids, encryption
from support.processes.deadline import wait_until
from support.spark.openers import FatalBucket, FaultyEncodes
from support.spark.staged import numbered, rows_by_duckdb, staged_sink
from support.spark.streams import (
    BUCKETS,
    finished,
    make_sink,
    parts_elsewhere,
    run,
    run_without_end,
    store_elsewhere,
    stream,
    write_source,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


# The Spark job that encodes staging files: which task has which, what becomes of answers, and whose pool it runs in.

SPEC = StagingFile(spec={"format": "parquet"})


def closed(number: int, length: int = 1000) -> ClosedStagingFile:
    """A staging file that no file is behind."""
    names = {"in_progress": f"_part-{number}.token.in-progress", "pending": f"_part-{number}.token.pending"}
    part = PartHandle(
        bucket="",
        name=f"part-{number}",
        sidecar=f"_part-{number}.valid-length",
        valid_length=length,
        is_staging_file=True,
        **names,
    )
    return ClosedStagingFile(part=part, staging_file=SPEC, rows=1, since=1)


def answer(
    staging_file: ClosedStagingFile, submission: str = "this", target: str | None = "file", version: str = __version__
) -> Row:
    """A row that a task may answer with; without a target it says that storage was not ready."""
    problem = NotReady("later") if target is None else None
    files = None
    if target is not None:
        handle = staging_file.part.model_copy(update={"is_staging_file": False, "pending": target})
        files = (EncodedFile(part=handle, rows=staging_file.rows, crc32=0),)
    said = EncodeAnswer.of(EncodeResult(staging_file, files, problem))
    return Row(submission=submission, version=version, answer=bytearray(said.model_dump_json().encode()))


@pytest.mark.slow
@given(st.lists(st.integers(1, 1 << 30), max_size=60), st.integers(1, 8))
def test_every_staging_file_is_in_one_share(lengths: list[int], slots: int) -> None:
    """No task has nothing to do, as many run as can, and none has more than its part and one staging file."""
    staging_files = [closed(number, length) for number, length in enumerate(lengths)]
    shares = assign_to_tasks(staging_files, slots)
    assert sorted(place for share in shares for place in share) == list(range(len(staging_files)))
    assert all(shares)
    assert len(shares) >= min(slots, len(staging_files))
    loads = [sum(lengths[place] + (1 << 20) for place in share) for share in shares]
    assert loads == sorted(loads, reverse=True)
    if staging_files:
        assert loads[0] <= sum(loads) / len(loads) + max(lengths) + (1 << 20)


@pytest.mark.slow
def test_a_thousand_small_staging_files_are_no_thousand_tasks() -> None:
    """Starting a task costs more than encoding a few rows."""
    assert len(assign_to_tasks([closed(number) for number in range(1000)], 2)) < 10


@pytest.mark.slow
def test_an_answer_counts_once() -> None:
    """The first one to this job is taken; of another job, of another staging file, or none at all: not encoded yet."""
    staging_files = [closed(number) for number in range(4)]
    rows = [
        answer(staging_files[1], "another"),
        answer(staging_files[0], target="first"),
        answer(staging_files[0], target="second"),
        answer(closed(9)),
        answer(staging_files[2], target=None),
    ]
    found = read_answers(staging_files, "this", rows)
    assert [one.staging_file for one in found] == staging_files
    assert [[file.part.pending for file in one.files or ()] for one in found] == [["first"], [], [], []]
    assert [type(one.problem) for one in found] == [type(None), NotReady, NotReady, NotReady]


@pytest.mark.slow
def test_a_staging_file_that_is_partly_encoded_is_not_done() -> None:
    """Its files come with what keeps the others from being made, and both reach the driver."""
    staging_file = closed(1)
    files = (EncodedFile(part=staging_file.part.model_copy(update={"is_staging_file": False}), rows=1, crc32=0),)
    partly = PartlyEncoded.of(staging_file.part, files, 1, NotReady("later", hint="wait", path="k=7"))
    said = EncodeAnswer.of(EncodeResult(staging_file, files, partly)).model_dump_json().encode()
    (found,) = read_answers([staging_file], "this", [Row(submission="this", version=__version__, answer=said)])
    assert (found.files, found.is_done) == (files, False)
    assert isinstance(found.problem, NotReady)
    assert (found.problem.message, found.problem.hint, found.problem.path) == (partly.message, "wait", "k=7")


@pytest.mark.slow
def test_a_worker_of_another_version_is_refused() -> None:
    """It may have encoded otherwise."""
    with pytest.raises(PartfileError, match=r"an executor has partfile 0\.0\.0-other"):
        read_answers([closed(1)], "this", [answer(closed(1), version="0.0.0-other")])


@pytest.mark.slow
def test_staging_files_of_a_job_that_failed_are_parted() -> None:
    """The one that ends its job is alone after as many tries as halve them; no other has to wait for it then."""
    staging_files, culprit = [closed(number) for number in range(8)], 5
    groups, left, tries = EncodeGroups(), staging_files, 0
    while len(left) > 1:
        tries += 1
        for group in groups.of(left):
            if staging_files[culprit] in group:
                groups.failed(group)
            else:
                left = [staging_file for staging_file in left if staging_file not in group]
    assert (left, tries) == ([staging_files[culprit]], 4)
    new = closed(9)
    assert groups.of([new, *left]) == [[new], left]


@pytest.mark.slow
def test_what_had_no_job_comes_first_and_a_suspect_that_waits_stays_one() -> None:
    """Every staging file that is asked for is in one job."""
    staging_files, groups = [closed(number) for number in range(6)], EncodeGroups()
    groups.failed(staging_files[:4])
    groups.not_tried(staging_files[4:])
    assert groups.of([*staging_files[:3], staging_files[5]]) == [
        staging_files[5:],
        staging_files[:2],
        staging_files[2:3],
    ]
    assert groups.of(staging_files) == [[*staging_files[:3], staging_files[5]], staging_files[4:5], staging_files[3:4]]
    assert groups.of(staging_files) == [staging_files]


class OfNobody(PartMissing):
    """A kind of error that only the task knows."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PartMissing, PartDamaged, ConfigError, OutcomeUnknown, NotItsOwn, SharedJobFailed])
def test_an_error_keeps_its_kind_on_the_way(kind: type[PartfileError]) -> None:
    """The coordinator tries again after some and stops after others."""
    there = Problem.of(kind("what", hint="do this", path="a/b"))
    back = Problem.model_validate_json(there.model_dump_json()).to_error()
    assert (type(back), back.message, back.hint, back.path) == (kind, "what", "do this", "a/b")


@pytest.mark.slow
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


def staging_files_of(base: Path) -> list[ClosedStagingFile]:
    """Three real staging files of two rows each, which a plain sink has left open."""
    sink = make_sink(base, format="parquet", columnar="staged", on_stop="keep")
    with sink.local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": list(range(6)), "bucket": [0, 1, 2] * 2}))
        out.checkpoint()
        opened = [part for parts in out._runtime.coordinator.state.open.values() for part in parts]
    return [
        ClosedStagingFile(part=one.part, staging_file=one.staging_file or SPEC, rows=one.rows, since=1)
        for one in opened
    ]


@contextmanager
def encoder(spark: SparkSession, base: Path, **options: Any) -> Iterator[SparkEncoder]:
    """The encoder of a sink with these options, as its driver has it."""
    settings = make_sink(base, **options).settings
    storage = open_storage(settings.checkpoints, settings.uid)
    with closing(storage.store), LocalStore(str(base)) as store:
        make = staging_encoder(settings, spark)
        assert make is not None
        yield make(storage, LocalEncoder(store, 1))


def ids(base: Path, encoded: EncodeResult) -> list[int]:
    """The rows of an encoded file that is not published yet."""
    assert encoded.files is not None
    (file,) = encoded.files
    found: list[int] = pq.read_table(base / file.part.path_of(file.part.pending))["id"].to_pylist()
    return found


@pytest.mark.slow
@pytest.mark.spark
def test_the_timer_encodes_in_the_pool_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """A thread of its own has no properties of the query's; those that it has are as they were afterwards."""
    staging_files, context = staging_files_of(tmp_path / "out"), spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "streams")
    encoded: list[EncodeResult] = []
    after: list[str | None] = []
    with encoder(spark, tmp_path / "out", open_store_in_tasks=PoolNoting(tmp_path / "log")) as by_spark:
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]

        def tick() -> None:
            context.setLocalProperty("spark.job.description", "mine")
            encoded.extend(by_spark.encode(staging_files))
            after.extend(context.getLocalProperty(name) for name in ("spark.scheduler.pool", "spark.job.description"))

        timer = threading.Thread(target=tick)
        timer.start()
        timer.join()
    assert (tmp_path / "log").read_text() == "streams | partfile numbers: encode 3 parts"
    assert after == [None, "mine"]
    assert [ids(tmp_path / "out", one) for one in encoded] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.slow
@pytest.mark.spark
def test_a_staging_file_that_fails_keeps_no_other_from_being_encoded(spark: SparkSession, tmp_path: Path) -> None:
    """One is gone, storage refuses another: each has its own problem, and the third its file."""
    base, staging_files = tmp_path / "out", staging_files_of(tmp_path / "out")
    (base / staging_files[1].part.path_of(staging_files[1].part.in_progress)).unlink()
    with encoder(spark, base, open_store_in_tasks=FaultyEncodes(tmp_path / "flag", "refuse")) as by_spark:
        encoded = by_spark.encode(staging_files)
    assert type(encoded[1].problem) is PartMissing
    others = [encoded[0], encoded[2]]
    assert sorted(type(one.problem).__name__ for one in others) == ["NoneType", "NotReady"]
    (done,) = (one for one in others if one.problem is None)
    assert ids(base, done) == [encoded.index(done), encoded.index(done) + 3]


@pytest.mark.slow
@pytest.mark.spark
def test_a_staging_file_that_kills_its_worker_does_not_keep_the_others_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The job fails, which is no error but a problem of its staging files; tries later the others have their files."""
    base, staging_files = tmp_path / "out", staging_files_of(tmp_path / "out")
    with encoder(spark, base, open_store_in_tasks=FatalBucket(staging_files[1].part.bucket)) as by_spark:
        encoded = by_spark.encode(staging_files)
        assert [type(one.problem) for one in encoded] == [SharedJobFailed] * 3
        assert "the Spark job that was to encode it has failed" in str(encoded[0].problem)
        done = []
        for _ in range(2):
            encoded = by_spark.encode([one.staging_file for one in encoded if one.files is None])
            done += [ids(base, one) for one in encoded if one.files is not None]
    assert [(one.staging_file, type(one.problem)) for one in encoded if one.files is None] == [
        (staging_files[1], JobFailed)
    ]
    assert sorted(done) == [[0, 3], [2, 5]]


@pytest.mark.slow
@pytest.mark.spark
def test_tasks_encrypt_what_they_encode(spark: SparkSession, tmp_path: Path) -> None:
    """The sink's format goes with the closure, since no format spec holds what encrypts."""
    base, form = tmp_path / "out", ParquetFormat(encryption=encryption)
    (staging_file, *_others) = staging_files_of(base)
    asks = staging_file.model_copy(
        update={"staging_file": staging_file.staging_file.model_copy(update={"spec": spec_of(form)})}
    )
    with encoder(spark, base, format=form) as by_spark:
        (done,) = by_spark.encode([asks])
    assert done.files is not None
    (file,) = done.files
    assert decrypted_ids(base / file.part.path_of(file.part.pending)) == [0, 3]


@pytest.mark.slow
@pytest.mark.spark
def test_a_task_that_does_not_see_the_base_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """It finds no marker of the driver's (R13).

    Worth another try, no staging file counts as gone, and none is to blame.
    """
    staging_files = staging_files_of(tmp_path / "out")
    with encoder(spark, tmp_path / "out", open_store_in_tasks=store_elsewhere) as by_spark:
        encoded = by_spark.encode(staging_files)
    assert [type(one.problem) for one in encoded] == [SharedJobFailed] * 3
    assert all("all executors share" in str(one.problem) for one in encoded)


@pytest.mark.slow
@pytest.mark.spark
def test_what_only_tasks_miss_is_not_given_up(spark: SparkSession, tmp_path: Path) -> None:
    """R13: they see the marker and none of the staging files; the driver, who sees both, looks itself."""
    base, staging_files = tmp_path / "out", staging_files_of(tmp_path / "out")
    before = replace(SinkSnapshot.fresh("00000000"), closed=tuple(staging_files))
    with encoder(spark, base, open_store_in_tasks=parts_elsewhere) as by_spark, LocalStore(str(base)) as store:
        assert [type(one.problem) for one in by_spark.encode(staging_files)] == [PartMissing] * 3
        encoding = StagedParts(store, CheckpointStorage(store, "numbers"), by_spark, recover_command=str).encode(
            before, 2, 0, gives_up=paths_of(before)
        )
    assert (encoding.failure, encoding.given_up, encoding.after) == (None, 0, before)


# Spark jobs that encode staging files and fail as a whole: the query goes on, the timer too, and no row is lost.

FATAL = FatalBucket("bucket=1")


@pytest.mark.spark
@pytest.mark.slow
def test_a_worker_that_dies_each_time_ends_neither_start_nor_query(spark: SparkSession, tmp_path: Path) -> None:
    """Its jobs fail at the start and at the clean end; batches complete meanwhile, and a sound run has every row."""
    base, checkpoint = tmp_path / "out", str(tmp_path / "spark")
    before = write_source(tmp_path / "source", 1)
    run_without_end(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert finished(base) == []
    rows = write_source(tmp_path / "source", 1, first=before)
    told: list[pf.BatchProgress] = []
    harmed = staged_sink(base, open_store_in_tasks=FATAL, on_progress=told.append)
    with pytest.raises(NotReady, match="staging files not encoded"):
        run(harmed, stream(spark, tmp_path / "source"), checkpoint)
    assert sum(one.rows for one in told) == rows - before
    assert list(base.glob("bucket=1/part-*")) == []
    run(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_by_duckdb(base) == numbered(rows)


@pytest.mark.spark
@pytest.mark.slow
def test_the_idle_timer_survives_a_job_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    """Later turns show the parts of all buckets but the one whose staging file kills its worker."""
    base, now = tmp_path / "out", [1_000_000]
    rows = write_source(tmp_path / "source", 1)
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1)
    sink = staged_sink(base, rolling=rolling, clock=lambda: now[0], open_store_in_tasks=FATAL)

    def others_are_visible() -> bool:
        now[0] += 10_000
        return len(finished(base)) == BUCKETS - 1

    trigger = {"processingTime": "0 seconds"}
    frame = stream(spark, tmp_path / "source")
    checkpoint = str(tmp_path / "spark")
    query = sink.start(frame, checkpoint_location=checkpoint, trigger=trigger)
    query.processAllAvailable()
    wait_until(others_are_visible)
    assert query.isActive
    with pytest.raises(NotReady, match=r"(?s)has ended .*1 staging files not encoded"):
        query.stop()
    run(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_by_duckdb(base) == numbered(rows)
