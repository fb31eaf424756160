"""Thousands of buckets in a real Spark stream: one open file a subtask, one file a bucket and subtask in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from spark_support import finished, make_sink, run, run_without_end, stream, write_source

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
BUCKETS = 400


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_many_buckets_over_many_batches(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """A run that just ends leaves shared stages, which the next one has encoded by Spark; then it shares on."""
    base, source = tmp_path / "out", tmp_path / "source"
    rows = 0
    for runs in (run_without_end, run):
        rows = write_source(source, 2, 1000, first=rows)
        frame = stream(spark, source).withColumn("part", F.col("id") % BUCKETS)
        sink = make_sink(base, format=format, columnar="staged", bucketer=pf.HiveBucketer("part"))
        runs(sink, frame, str(tmp_path / "spark"))
        if runs is run_without_end:
            assert finished(base) == []
            assert 0 < len(list(base.glob("_part-*.in-progress"))) <= 8
            assert list(base.glob("part=*")) == []
    table = pyarrow.dataset.dataset(finished(base), format=format).to_table()
    assert sorted(table["id"].to_pylist()) == list(range(rows))
    assert all(int(path.parent.name[5:]) in range(BUCKETS) for path in finished(base))
    assert len(list(base.glob("part=*"))) == BUCKETS
