"""Hive-style buckets are the very directories that Spark's own partitionBy makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from spark_support import finished

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TEXTS = [
    "plain",
    "a b",
    "x/y",
    "é",
    "100%",
    "a=b",
    "q?",
    "#",
    "'",
    '"',
    "*",
    ":",
    "[",
    "]",
    "{",
    "}",
    "^",
    "\\",
    "\x7f",
    "\n",
    "",
]


def test_partition_directories_equal_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    """For texts, numbers, booleans, dates, timestamps, decimals and nulls, row by row."""
    rows = spark.createDataFrame([(number, text) for number, text in enumerate([*TEXTS, None])], "n int, text string")
    frame = rows.selectExpr(
        "n",
        "text",
        "IF(n % 5 = 0, NULL, n * -1) AS whole",
        "n % 2 = 0 AS truth",
        "date_add(DATE'1969-12-25', n) AS day",
        "timestamp_micros(n * 1000500) AS instant",
        "CAST(n * 1.25 AS decimal(10,3)) AS price",
    )
    for column in ("text", "whole", "truth", "day", "instant", "price"):
        spark_base, our_base = tmp_path / f"spark-{column}", tmp_path / f"ours-{column}"
        two = frame.select("n", column)
        two.coalesce(1).write.partitionBy(column).json(str(spark_base))
        with pf.FileSink(our_base, uid="u", bucketer=pf.HiveBucketer(column)).local() as out:
            out.write(two.toArrow())
        assert rows_by_directory(our_base) == rows_by_directory(spark_base), column


def rows_by_directory(base: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in finished(base):
        if path.suffix == ".json":
            rows = path.read_text().replace(" ", "").splitlines()
            found.setdefault(path.parent.name, set()).update(rows)
    return found
