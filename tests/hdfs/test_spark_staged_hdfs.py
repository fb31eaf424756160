"""Spark streams into staged Parquet parts on a real HDFS."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hdfs_streams import hdfs_sink, visible_files
from spark_support import BUCKETS, run, run_without_end, stream, write_source
from staged_spark import HASHED, STAGED, keep_the_driver_from_encoding, numbered

if TYPE_CHECKING:
    from pathlib import Path

    from hdfs_cluster import HdfsCluster
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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
