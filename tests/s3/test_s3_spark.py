"""A real Spark stream to a real S3 server: exactly once, parts that live across batches, no upload left open."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from s3_store_support import options_of, store_options
from spark_support import BUCKETS, build_session, stream, write_source

import partfile as pf
from partfile.filesystems.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = build_session()
    yield session
    session.stop()


def ids(server: S3Server, base: str) -> tuple[Counter[int], int]:
    """The ids in the finished files, and how many files there are."""
    found: Counter[int] = Counter()
    with S3Store(base, options_of(server)) as store:
        files = list(store.list())
        for file in files:
            found.update(json.loads(line)["id"] for line in store.read_file(file.path, file.size).splitlines())
    return found, len(files)


def test_many_batches_become_few_files(moto: S3Server, spark: SparkSession, tmp_path: Path) -> None:
    """Six batches of two partitions in Spark's workers: a part a bucket and partition, each row once, nothing left."""
    rows = write_source(tmp_path / "source", 6)
    bucket = moto.bucket()
    base = f"s3://{bucket}/base"
    sink = pf.FileSink(
        base, uid="u", format="json", bucketer=pf.HiveBucketer("bucket"), storage_options=store_options(moto)
    )
    frame = stream(spark, tmp_path / "source")
    query = sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger={"availableNow": True})
    with query:
        query.awaitTermination()
    found, files = ids(moto, base)
    assert found == Counter(range(rows))
    assert files <= 2 * BUCKETS
    assert not moto.filesystem().call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads")
    with S3Store(base, options_of(moto)) as store:
        assert store.list_names("_partfile/_sides") == store.list_names("_partfile/_claims") == []
