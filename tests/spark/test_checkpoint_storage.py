"""The inline threshold of a sink holds in Spark's tasks as on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_support import expected, ids_by_duckdb, make_sink, stream, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.item("ST-08", "ST-09")
@pytest.mark.parametrize(("threshold", "files"), [(0, 3), (1 << 20, 0)])
def test_the_threshold_decides_what_tasks_send(spark: SparkSession, tmp_path: Path, threshold: int, files: int) -> None:
    """Above it each task's state goes to a file of the checkpoint, beside the driver's; below it there is no file."""
    rows = write_source(tmp_path / "source", 2)
    base = tmp_path / "out"
    sink = make_sink(base, inline_threshold_bytes=threshold, retained_checkpoints=9)
    frame = stream(spark, tmp_path / "source", files=2)
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger={"availableNow": True}):
        pass
    assert len(list((base / "_partfile" / "numbers" / "chk-2").glob("*.state"))) == files
    assert ids_by_duckdb(base) == expected(rows)
