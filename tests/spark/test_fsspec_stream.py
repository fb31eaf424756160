"""A real Spark stream to a file system of fsspec: exactly once, although every part rolls at each checkpoint."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from spark_support import Once, expected, finished, ids_by_duckdb, make_sink, run, run_without_end, stream, write_source

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_stream_through_a_failing_task_is_read_exactly_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks reach ``dir`` by its URL; a task that fails leaves nothing visible; the start says what is weaker."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    url = f"dir::file://{base}"
    with caplog.at_level(logging.WARNING, "partfile"):
        sink = make_sink(url, bucketer=Once(tmp_path / "flag", "raise", 40))
        run_without_end(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert "every part rolls at each checkpoint" in caplog.text
    assert ids_by_duckdb(base) == expected(rows)
    before = finished(base)
    rows = write_source(tmp_path / "source", 2, first=rows)
    run(
        make_sink(url, bucketer=Once(tmp_path / "flag", "raise", 40)),
        stream(spark, tmp_path / "source"),
        str(tmp_path / "spark"),
    )
    assert ids_by_duckdb(base) == expected(rows)
    assert set(before) < set(finished(base))


def test_the_memory_of_a_process_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """What a task wrote there would be gone with it, so no batch begins."""
    write_source(tmp_path / "source", 1)
    with pytest.raises(ConfigError, match="other processes"):
        run(make_sink("memory://out"), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
