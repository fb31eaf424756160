"""Spark streams into staged Parquet parts on real S3 servers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_store_support import options_of
from s3_streams import pending_uploads, s3_sink, visible_objects
from spark_support import BUCKETS, run, run_without_end, stream, write_source
from staged_spark import HASHED, STAGED, keep_the_driver_from_encoding, numbered

from partfile.filesystems.s3 import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

pytestmark = pytest.mark.spark


def rows_on_s3(server: S3Server, base: str) -> Counter[tuple[int, int]]:
    """Every row in a visible object, with its bucket by the directory."""
    filesystem, found = server.filesystem(), Counter[tuple[int, int]]()
    for key in visible_objects(filesystem, base):
        bucket = int(key.split("bucket=")[1].split("/")[0])
        data = filesystem.cat_file(f"{base.removeprefix('s3://').partition('/')[0]}/{key}")
        found.update((number, bucket) for number in pq.read_table(pa.BufferReader(data))["id"].to_pylist())
    return found


def test_stages_stay_open_over_batches_and_outlive_a_run(
    spark: SparkSession, s3_server: S3Server, s3_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six batches leave a file a bucket and run, and no upload; where nobody can claim, a file a batch and bucket."""
    keep_the_driver_from_encoding(monkeypatch)
    checkpoint = str(tmp_path / "spark")
    write_source(tmp_path / "source", 3)
    run_without_end(s3_sink(s3_server, s3_base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    with S3Store(s3_base, options_of(s3_server)) as store:
        is_staged = store.capabilities.append and store.capabilities.stages
    assert len(visible_objects(s3_server.filesystem(), s3_base)) == (0 if is_staged else 3 * BUCKETS)
    rows = write_source(tmp_path / "source", 3, first=90)
    run(s3_sink(s3_server, s3_base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_on_s3(s3_server, s3_base) == numbered(rows)
    assert len(visible_objects(s3_server.filesystem(), s3_base)) == (2 if is_staged else 6) * BUCKETS
    assert pending_uploads(s3_server, s3_base) == []
