"""Spark streams into staged parts on a real HDFS: of a bucket each, and shared by many."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hdfs_streams import hdfs_sink, visible_files
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from spark_support import BUCKETS, run, run_without_end, stream, write_source
from staged_spark import HASHED, STAGED, keep_the_driver_from_encoding, numbered

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

    from hdfs_cluster import HdfsCluster
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
MANY = 150
"""Buckets, of which each batch has rows."""


def test_stages_stay_open_over_batches_and_outlive_a_run(
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
def test_many_buckets_share_stages_that_spark_encodes(  # noqa: PLR0917 - fixtures.
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
