"""Spark streams into a real HDFS: exactly once, few files, staged parts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import hdfs_native
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from support.spark.hdfs import hdfs_sink, ids_on_hdfs, visible_files
from support.spark.staged import HASHED, STAGED, keep_the_driver_from_encoding, numbered
from support.spark.streams import BUCKETS, expected, run, run_without_end, stream, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.hdfs.cluster import HdfsCluster


# A real Spark stream into a real HDFS: exactly once, few files, everything it needs to restart on HDFS too.

pytestmark = pytest.mark.spark
TEXTS = ["plain", "a b", "x/y", "é", "100%", "a=b", "q?", "#", "*", "[", "{", "^", "", "\\", "..", "_x", ".y", ":"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Where the files to be streamed are: on local disk, so that a reader of HDFS sees the output alone."""
    return tmp_path / "source"


def test_a_part_stays_open_over_many_batches(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, source: Path
) -> None:
    """Six batches by bucket leave one file a bucket, which Spark itself reads; all checkpoints are on HDFS."""
    rows, base = write_source(source, 6), f"{hdfs_directory}/out"
    progress: list[pf.BatchProgress] = []
    sink = hdfs_sink(hdfs, base, distribution="hash", hash_partitions=2, on_progress=progress.append)
    run(sink, stream(spark, source), f"{hdfs.url}{hdfs_directory}/spark")
    assert Counter(row.id for row in spark.read.json(hdfs.url + base).collect()) == expected(rows)
    assert len(visible_files(hdfs, base)) == BUCKETS
    assert [one.parts_in_progress for one in progress if one.batch_id is not None] == [BUCKETS] * 6
    assert sum(one.parts_abandoned for one in progress) == 0


def test_a_restart_publishes_what_a_run_without_an_end_left(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, source: Path
) -> None:
    """The sink's checkpoints are in a directory of their own; a batch that Spark sends again is recognised."""
    write_source(source, 3)
    base, checkpoint = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/spark"
    options: dict[str, Any] = {"checkpoint_dir": f"{hdfs.url}{hdfs_directory}/sink"}
    run_without_end(hdfs_sink(hdfs, base, **options), stream(spark, source), checkpoint)
    assert visible_files(hdfs, base) == []
    assert hdfs_native.Client(hdfs.url).delete(f"{hdfs_directory}/spark/commits/2")
    rows = write_source(source, 2, first=90)
    progress: list[pf.BatchProgress] = []
    run(hdfs_sink(hdfs, base, **options, on_progress=progress.append), stream(spark, source), checkpoint)
    assert [one.replayed for one in progress if one.batch_id is not None] == [True, False, False]
    assert ids_on_hdfs(hdfs, base) == expected(rows)


def test_kept_parts_are_resumed_after_a_clean_stop(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, source: Path
) -> None:
    """With on_stop="keep" three runs fill one file a bucket."""
    base, checkpoint = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/spark"
    for first, on_stop in ((0, "keep"), (60, "keep"), (120, "publish")):
        assert visible_files(hdfs, base) == []
        rows = write_source(source, 2, first=first)
        sink = hdfs_sink(hdfs, base, distribution="hash", hash_partitions=2, on_stop=on_stop)
        run(sink, stream(spark, source), checkpoint)
    assert ids_on_hdfs(hdfs, base) == expected(rows)
    assert len(visible_files(hdfs, base)) == BUCKETS


def test_hive_directories_are_those_that_spark_makes(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str
) -> None:
    """Whatever the values are, the directories are partitionBy's, and Spark reads the values back."""
    frame = spark.createDataFrame([(number, text) for number, text in enumerate([*TEXTS, None])], "n int, text string")
    ours, native = f"{hdfs_directory}/ours", f"{hdfs_directory}/spark"
    frame.write.partitionBy("text").json(hdfs.url + native)
    with hdfs_sink(hdfs, ours, bucketer=pf.HiveBucketer("text")).local() as out:
        out.write(frame.toArrow())
    assert directories(hdfs, ours) == directories(hdfs, native)
    values = [spark.read.json(hdfs.url + base).orderBy("n").collect() for base in (ours, native)]
    assert values[0] == values[1]
    assert len(values[0]) == len(TEXTS) + 1


def test_a_savepoint_on_hdfs_goes_on_elsewhere(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, source: Path
) -> None:
    """A query ends with a savepoint; a sink on a fresh base begins with it and gets the later rows alone."""
    checkpoint, saved = f"{hdfs.url}{hdfs_directory}/spark", f"{hdfs.url}{hdfs_directory}/saved"
    rows = write_source(source, 2)
    sink = hdfs_sink(hdfs, f"{hdfs_directory}/first", savepoint_dir=saved)
    query = sink.start(stream(spark, source), checkpoint_location=checkpoint)
    query.processAllAvailable()
    location = query.stop_with_savepoint()
    more = write_source(source, 2, first=rows)
    second = hdfs_sink(hdfs, f"{hdfs_directory}/second", restore_from=location)
    run(second, stream(spark, source), checkpoint)
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/first") == expected(rows)
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/second") == expected(more) - expected(rows)


def directories(hdfs: HdfsCluster, base: str) -> set[str]:
    return {path.rpartition("/")[0].removeprefix(base) for path in visible_files(hdfs, base)}


# Spark streams into staged parts on a real HDFS: of a bucket each, and shared by many.

MANY = 80
"""Buckets, of which each batch has rows."""


def test_staging_files_stay_open_over_batches_and_outlive_a_run(
    spark: SparkSession,
    hdfs: HdfsCluster,
    hdfs_directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six batches leave a file a bucket and run, which Spark reads; what a run without an end left, tasks encode."""
    keep_the_driver_from_encoding(monkeypatch)
    base, checkpoint = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/spark"
    write_source(tmp_path / "source", 3)
    run_without_end(hdfs_sink(hdfs, base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    assert visible_files(hdfs, base) == []
    rows = write_source(tmp_path / "source", 3, first=90)
    run(hdfs_sink(hdfs, base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    found = spark.read.parquet(hdfs.url + base).select("id", "bucket").collect()
    assert Counter((row.id, row.bucket) for row in found) == numbered(rows)
    assert len(visible_files(hdfs, base)) == 2 * BUCKETS


@pytest.mark.drawn(1)
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_many_buckets_share_staging_files_that_spark_encodes(  # noqa: PLR0917 - fixtures.
    spark: SparkSession,
    hdfs: HdfsCluster,
    hdfs_directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    """A run without an end leaves them; tasks of the next one encode them: a file a bucket, subtask and run."""
    keep_the_driver_from_encoding(monkeypatch)
    base, checkpoint = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/spark"
    sink = hdfs_sink(hdfs, base, format=format, bucketer=pf.HiveBucketer("part"))
    rows = 0
    for runs in (run_without_end, run):
        rows = write_source(tmp_path / "source", 2, MANY, first=rows)
        runs(sink, stream(spark, tmp_path / "source").withColumn("part", F.col("id") % MANY), checkpoint)
        assert (visible_files(hdfs, base) == []) is (runs is run_without_end)
    read = spark.read.parquet if format == "parquet" else spark.read.json
    found = read(hdfs.url + base).select("id", "part").collect()
    assert Counter((row.id, row.part) for row in found) == Counter((number, number % MANY) for number in range(rows))
    assert len({path.split("part=")[1].split("/")[0] for path in visible_files(hdfs, base)}) == MANY
