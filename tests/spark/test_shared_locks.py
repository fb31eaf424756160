"""Locks are proven in every task (S13): not visible is an error, not shared means that nothing is kept open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors.exceptions.base import PySparkException
from spark_support import (
    BUCKETS,
    expected,
    finished,
    ids_by_duckdb,
    make_sink,
    store_elsewhere,
    store_without_locks,
    stream,
    write_source,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_without_shared_locks_every_part_rolls_at_every_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Where a task could lock the driver's marker nothing would fence a zombie, so each batch leaves its own files."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    sink = make_sink(base, open_store_in_tasks=store_without_locks)
    frame = stream(spark, tmp_path / "source")
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger={"availableNow": True}):
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
