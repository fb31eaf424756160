"""Spark jobs that encode stages and fail as a whole: the query goes on, the timer too, and no row is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faulty_encodes import FatalBucket
from spark_support import BUCKETS, finished, run, run_without_end, stream, write_source
from staged_spark import numbered, rows_by_duckdb, staged_sink, wait_until

import partfile as pf
from partfile.errors import NotReady

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FATAL = FatalBucket("bucket=1")


def test_a_worker_that_dies_each_time_ends_neither_start_nor_query(spark: SparkSession, tmp_path: Path) -> None:
    """Its jobs fail at the start and at the clean end; batches complete meanwhile, and a sound run has every row."""
    base, checkpoint = tmp_path / "out", str(tmp_path / "spark")
    before = write_source(tmp_path / "source", 1)
    run_without_end(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert finished(base) == []
    rows = write_source(tmp_path / "source", 1, first=before)
    told: list[pf.BatchProgress] = []
    harmed = staged_sink(base, open_store_in_tasks=FATAL, on_progress=told.append)
    with pytest.raises(NotReady, match="of its stages could not be encoded"):
        run(harmed, stream(spark, tmp_path / "source"), checkpoint)
    assert sum(one.rows for one in told) == rows - before
    assert list(base.glob("bucket=1/part-*")) == []
    run(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_by_duckdb(base) == numbered(rows)


def test_the_idle_timer_survives_a_job_that_fails(spark: SparkSession, tmp_path: Path) -> None:
    """Later turns show the parts of all buckets but the one whose stage kills its worker."""
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
    with pytest.raises(NotReady, match="has ended, and 1 of its stages"):
        query.stop()
    run(staged_sink(base), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_by_duckdb(base) == numbered(rows)
