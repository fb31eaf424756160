"""Spark streams into staged Parquet parts: their sink, their readers, and what tells where they were encoded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb

from partfile.sink.encode import LocalEncoder
from support.spark.streams import BUCKETS, make_sink

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import SparkSession

    import partfile as pf


STAGED: dict[str, Any] = {"format": "parquet", "columnar": "staged"}
HASHED: dict[str, Any] = {"distribution": "hash", "hash_partitions": 2}


def staged_sink(base: Path | str, **options: Any) -> pf.FileSink:
    """A Parquet sink with Hive buckets, each open in one subtask, whose parts roll only at the end."""
    return make_sink(base, **(STAGED | HASHED | options))


def rows_by_duckdb(base: Path) -> Counter[tuple[int, int]]:
    """Every row in a finished file, as another reader's glob finds them, with its bucket by the directory."""
    if not list(base.glob("**/*.parquet")):
        return Counter()
    found = duckdb.execute(f"SELECT id, bucket FROM read_parquet('{base}/**/*.parquet', hive_partitioning = true)")  # noqa: S608
    return Counter((int(row[0]), int(row[1])) for row in found.fetchall())


def rows_by_spark(spark: SparkSession, base: Path) -> Counter[tuple[int, int]]:
    """The same by Spark."""
    return Counter((row.id, row.bucket) for row in spark.read.parquet(str(base)).select("id", "bucket").collect())


def numbered(rows: int) -> Counter[tuple[int, int]]:
    """Each numbered row once, in its bucket."""
    return Counter((number, number % BUCKETS) for number in range(rows))


def staging_files(base: Path) -> list[Path]:
    """The files of staging files, spent ones among them."""
    return sorted(base.glob("**/_*.parquet.*.in-progress"))


def keep_the_driver_from_encoding(patch: pytest.MonkeyPatch) -> None:
    """Let this process fail if it encodes; Spark's workers are forked from another one."""

    def encode(_self: object, _staging_files: object) -> None:
        raise AssertionError("the driver encodes by itself")

    patch.setattr(LocalEncoder, "encode", encode)
