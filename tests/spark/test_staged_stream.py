"""Spark streams into staged Parquet parts, of one bucket or of thousands, and the locks that they need."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.sink.spark.encode_job import SparkEncoder
from support.processes.deadline import wait_until
from support.spark.staged import (
    keep_the_driver_from_encoding,
    numbered,
    rows_by_duckdb,
    rows_by_spark,
    staged_sink,
    staging_files,
)
from support.spark.streams import (
    BUCKETS,
    NOW,
    SCHEMA,
    expected,
    finished,
    ids_by_duckdb,
    make_sink,
    run,
    run_without_end,
    store_elsewhere,
    store_without_locks,
    stream,
    write_source,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


# Spark streams into Parquet parts that stay open over micro-batches: few files, each row once, no work for drivers.

pytestmark = [pytest.mark.spark, pytest.mark.slow]
BATCHES = 6


@pytest.fixture
def _driver_encodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_the_driver_from_encoding(monkeypatch)


def run_function(spark: SparkSession, function: Any, root: Path) -> None:
    """Stream everything that is there through a foreachBatch function, and do not wait for the end of its sink."""
    writer = stream(spark, root / "source").writeStream.foreachBatch(function)
    writer.option("checkpointLocation", str(root / "spark")).trigger(availableNow=True).start().awaitTermination()


def check(spark: SparkSession, base: Path, rows: int, most_files: int) -> None:
    """Two other readers find each row once, in so many files at most."""
    assert rows_by_duckdb(base) == rows_by_spark(spark, base) == numbered(rows)
    assert len(finished(base)) <= most_files


@pytest.mark.usefixtures("_driver_encodes_nothing")
@pytest.mark.parametrize(("distribution", "files"), [("hash", BUCKETS), ("none", 2 * BUCKETS)])
def test_many_batches_become_one_file_a_bucket(
    spark: SparkSession, tmp_path: Path, distribution: str, files: int
) -> None:
    """Not one a task and batch: a bucket is one file, or as many as it has subtasks; nothing is seen before the end."""
    rows = write_source(tmp_path / "source", BATCHES)
    options: dict[str, Any] = {} if distribution == "hash" else {"distribution": "none", "hash_partitions": None}
    seen: list[int] = []
    told: list[pf.BatchProgress] = []
    sink = staged_sink(tmp_path / "out", on_progress=told.append, **options)

    def two_partitions(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df.repartition(2), batch_id)
        seen.append(len(finished(tmp_path / "out")))

    run_function(spark, two_partitions, tmp_path)
    assert seen == [0] * BATCHES
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    check(spark, tmp_path / "out", rows, files)
    assert sum(one.rows for one in told) == rows
    assert sum(one.parts_encoded for one in told) == len(finished(tmp_path / "out"))
    assert [one.encode_ms > 0 for one in told] == [False] * BATCHES + [True]


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_per_checkpoint_makes_a_file_a_task_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The other way to write columnar parts stays what it was."""
    rows = write_source(tmp_path / "source", 3)
    sink = staged_sink(tmp_path / "out", columnar="per_checkpoint")
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    check(spark, tmp_path / "out", rows, 3 * BUCKETS)
    assert len(finished(tmp_path / "out")) == 3 * BUCKETS
    assert staging_files(tmp_path / "out") == []


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_staging_files_are_deleted_once_no_checkpoint_needs_them(spark: SparkSession, tmp_path: Path) -> None:
    """After two more checkpoints only finished files are left, so that disk space is bounded by what is open."""
    rows = write_source(tmp_path / "source", 3)
    sink = staged_sink(tmp_path / "out", retained_checkpoints=3)
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    encoded = staging_files(tmp_path / "out")
    for _ in range(2):
        rows = write_source(tmp_path / "source", 1, first=rows)
        run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert len(encoded) == BUCKETS
    assert not set(encoded) & set(staging_files(tmp_path / "out"))
    check(spark, tmp_path / "out", rows, 3 * BUCKETS)


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_parts_roll_by_their_encoded_size_inside_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task encodes what it rolls, and its batch publishes it: the driver starts no job for it."""
    monkeypatch.delattr(SparkEncoder, "encode")
    rows = write_source(tmp_path / "source", 4)
    sink = staged_sink(tmp_path / "out", rolling=pf.RollingPolicy(max_part_bytes=1))
    in_between: list[int] = []

    def counting(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        in_between.append(len(finished(tmp_path / "out")))

    run_function(spark, counting, tmp_path)
    assert in_between == [BUCKETS * batch for batch in range(1, 5)]
    check(spark, tmp_path / "out", rows, 4 * BUCKETS)


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_an_idle_stream_closes_its_parts_by_a_job_of_the_timer(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing arrives any more, and yet the rows become visible while the query runs, by one job."""
    rows = write_source(tmp_path / "source", BATCHES)
    base, now = tmp_path / "out", [1_000_000]
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1)
    sink = staged_sink(base, rolling=rolling, clock=lambda: now[0])
    frame = stream(spark, tmp_path / "source")
    tracker = spark.sparkContext.statusTracker()
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), processingTime="0 seconds") as query:
        jobs_before = set(tracker.getJobIdsForGroup(None))
        query.processAllAvailable()
        assert finished(base) == []
        now[0] += 10_000
        wait_until(lambda: len(finished(base)) == BUCKETS)
        assert query.isActive
        assert len(set(tracker.getJobIdsForGroup(None)) - jobs_before) == 1
    check(spark, base, rows, BUCKETS)


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_kept_staging_files_are_gone_on_with_after_a_clean_stop(spark: SparkSession, tmp_path: Path) -> None:
    """With on_stop="keep" restarts make no files; the last run encodes the rows of all of them."""
    rows = 0
    for _ in range(3):
        rows = write_source(tmp_path / "source", 2, first=rows)
        sink = staged_sink(tmp_path / "out", on_stop="keep")
        run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
        assert finished(tmp_path / "out") == []
        assert len(staging_files(tmp_path / "out")) == BUCKETS
    rows = write_source(tmp_path / "source", 1, first=rows)
    run(staged_sink(tmp_path / "out"), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    check(spark, tmp_path / "out", rows, BUCKETS)


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_a_process_that_just_ends_leaves_staging_files_that_the_next_run_encodes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Never appended to again (R2), so a bucket has a file a run; the restore is what encodes them."""
    rows = write_source(tmp_path / "source", 3)
    run_without_end(staged_sink(tmp_path / "out"), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    rows = write_source(tmp_path / "source", 1, first=rows)
    first: list[int] = []
    sink = staged_sink(tmp_path / "out")

    def after_the_restore(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        first.append(len(finished(tmp_path / "out")))

    run_function(spark, after_the_restore, tmp_path)
    assert first == [BUCKETS]
    # Nothing new: the end of a query that no batch came to in this run.
    run(staged_sink(tmp_path / "out"), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    check(spark, tmp_path / "out", rows, 2 * BUCKETS)


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_a_change_of_schema_ends_in_files_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """Batches with another column go to other parts, and each file holds rows of one schema alone."""
    rows = write_source(tmp_path / "source", BATCHES)
    base, sink = tmp_path / "out", staged_sink(tmp_path / "out")

    def growing(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df.withColumn("note", F.lit(f"of {batch_id}")) if batch_id % 2 else df, batch_id)

    run_function(spark, growing, tmp_path)
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert Counter(tuple(pq.read_schema(path).names) for path in finished(base)) == {
        ("id",): BUCKETS,
        ("id", "note"): BUCKETS,
    }
    found = duckdb.execute(f"SELECT id, note FROM read_parquet('{base}/**/*.parquet', union_by_name = true)").fetchall()  # noqa: S608
    batch = {number: number // 30 for number in range(rows)}
    assert Counter(found) == Counter((number, f"of {of}" if of % 2 else None) for number, of in batch.items())


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_a_batch_without_rows_or_partitions_keeps_every_staging_file_open(spark: SparkSession, tmp_path: Path) -> None:
    """It is a checkpoint that carries them, and the next batch appends to them."""
    write_source(tmp_path / "source", BATCHES)
    base, sink = tmp_path / "out", staged_sink(tmp_path / "out")
    none = spark.createDataFrame(spark.sparkContext.emptyRDD(), SCHEMA)

    def sometimes_empty(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch({1: none, 3: df.where("id < 0")}.get(batch_id, df), batch_id)

    run_function(spark, sometimes_empty, tmp_path)
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    kept = Counter({row: 1 for row in numbered(30 * BATCHES) if row[0] // 30 not in {1, 3}})
    assert rows_by_duckdb(base) == rows_by_spark(spark, base) == kept
    assert len(finished(base)) == BUCKETS


@pytest.mark.usefixtures("_driver_encodes_nothing")
def test_savepoints_publish_what_is_staged(spark: SparkSession, tmp_path: Path) -> None:
    """Between two batches and at the end: every row so far is in a finished file, and the stream goes on elsewhere."""
    rows = write_source(tmp_path / "source", 4)
    sink = staged_sink(tmp_path / "out", savepoint_dir=tmp_path / "savepoints")
    published: list[int] = []

    def with_a_savepoint(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1:
            sink.savepoint()
            published.append(rows_by_duckdb(tmp_path / "out").total())

    run_function(spark, with_a_savepoint, tmp_path)
    assert published == [60]
    query = sink.start(stream(spark, tmp_path / "source"), checkpoint_location=str(tmp_path / "spark"), trigger=NOW)
    query.awaitTermination()
    where = query.stop_with_savepoint()
    check(spark, tmp_path / "out", rows, 2 * BUCKETS)
    more = write_source(tmp_path / "source", 2, first=rows)
    fresh = staged_sink(tmp_path / "fresh", restore_from=where)
    run(fresh, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert rows_by_duckdb(tmp_path / "out") + rows_by_duckdb(tmp_path / "fresh") == numbered(more)
    assert len(finished(tmp_path / "fresh")) == BUCKETS


# Thousands of buckets in a real Spark stream: one open file a subtask, one file a bucket and subtask in the end.

MANY_BUCKETS = 400


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_many_buckets_over_many_batches(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """A run that just ends leaves multi-bucket staging files, which the next one has encoded by Spark.

    Then it shares on.
    """
    base, source = tmp_path / "out", tmp_path / "source"
    rows = 0
    for runs in (run_without_end, run):
        rows = write_source(source, 2, 1000, first=rows)
        frame = stream(spark, source).withColumn("part", F.col("id") % MANY_BUCKETS)
        sink = make_sink(base, format=format, columnar="staged", bucketer=pf.HiveBucketer("part"))
        runs(sink, frame, str(tmp_path / "spark"))
        if runs is run_without_end:
            assert finished(base) == []
            assert 0 < len(list(base.glob("_part-*.in-progress"))) <= 8
            assert list(base.glob("part=*")) == []
    table = pyarrow.dataset.dataset(finished(base), format=format).to_table()
    assert sorted(table["id"].to_pylist()) == list(range(rows))
    assert all(int(path.parent.name[5:]) in range(MANY_BUCKETS) for path in finished(base))
    assert len(list(base.glob("part=*"))) == MANY_BUCKETS


# Locks are proven in every task (R13): not visible is an error, not shared means that nothing is kept open.


def test_without_shared_locks_every_part_rolls_at_every_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Where a task could lock the driver's marker nothing would fence a zombie, so each batch leaves its own files."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    sink = make_sink(base, open_store_in_tasks=store_without_locks)
    frame = stream(spark, tmp_path / "source")
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), availableNow=True):
        pass
    assert ids_by_duckdb(base) == expected(rows)
    assert len(finished(base)) == 3 * BUCKETS


def test_a_base_path_that_executors_do_not_share_is_a_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    """A task that does not see the driver's marker fails with the reason, and nothing is visible anywhere."""
    write_source(tmp_path / "source", 1)
    base = tmp_path / "out"
    sink = make_sink(base, open_store_in_tasks=store_elsewhere)
    query = stream(spark, tmp_path / "source").writeStream.foreachBatch(sink.foreach_batch)
    with pytest.raises(PySparkException, match="must be on a file system that all executors share"):
        query.option("checkpointLocation", str(tmp_path / "spark")).trigger(
            availableNow=True
        ).start().awaitTermination()
    assert finished(base) == []
