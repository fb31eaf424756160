"""Spark streams into staged parts on real S3 servers: of a bucket each, and shared by many."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from s3_store_support import options_of
from s3_streams import pending_uploads, s3_sink, visible_objects
from spark_support import BUCKETS, run, run_without_end, stream, write_source
from staged_spark import HASHED, STAGED, keep_the_driver_from_encoding, numbered

import partfile as pf
from partfile.stores.s3.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

pytestmark = pytest.mark.spark
MANY = 150
"""Buckets, of which each batch has rows."""


def rows_on_s3(server: S3Server, base: str) -> Counter[tuple[int, int]]:
    """Every row in a visible object, with its bucket by the directory."""
    filesystem, found = server.filesystem(), Counter[tuple[int, int]]()
    for key in visible_objects(filesystem, base):
        bucket = int(key.split("bucket=")[1].split("/")[0])
        data = filesystem.cat_file(f"{base.removeprefix('s3://').partition('/')[0]}/{key}")
        found.update((number, bucket) for number in pq.read_table(pa.BufferReader(data))["id"].to_pylist())
    return found


@pytest.mark.drawn(1)
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


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("server", "format"), [("moto", "parquet"), ("radosgw", "json")])
def test_many_buckets_share_stages_that_spark_encodes(  # noqa: PLR0917 - fixtures.
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: str,
    format: str,
) -> None:
    """A run without an end leaves them; tasks of the next one encode them: a file a bucket, subtask and run."""
    keep_the_driver_from_encoding(monkeypatch)
    place: S3Server = request.getfixturevalue(server)
    base, client = f"s3://{place.bucket()}/base", place.filesystem()
    sink = s3_sink(place, base, format=format, bucketer=pf.HiveBucketer("part"))
    rows = 0
    for runs in (run_without_end, run):
        rows = write_source(tmp_path / "source", 2, MANY, first=rows)
        frame = stream(spark, tmp_path / "source").withColumn("part", F.col("id") % MANY)
        runs(sink, frame, str(tmp_path / "spark"))
        assert (len(visible_objects(client, base)) == 0) is (runs is run_without_end)
    found = Counter[tuple[int, int]]()
    for key in visible_objects(client, base):
        data = client.cat_file(f"{base.removeprefix('s3://').partition('/')[0]}/{key}")
        bucket = int(key.split("part=")[1].split("/")[0])
        found.update((number, bucket) for number in ids_in(data, format))
    assert found == Counter((number, number % MANY) for number in range(rows))
    assert pending_uploads(place, base) == []


def ids_in(data: bytes, format: str) -> list[int]:
    """The ids of the rows of a file."""
    if format == "json":
        return [json.loads(line)["id"] for line in data.splitlines()]
    ids: list[int] = pq.read_table(pa.BufferReader(data))["id"].to_pylist()
    return ids
