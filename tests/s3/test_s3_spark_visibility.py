"""When a Spark stream's objects become visible, and that they stay what they were: seen by a reader and at a proxy."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from s3_proxy import S3Proxy
from s3_streams import ObjectWatcher, ids_on_s3, published_too_soon, s3_sink
from spark_support import BUCKETS, LONG, expected, run, stream, widen, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

pytestmark = pytest.mark.spark
MIB = 1 << 20
COPIES = {"CopyObject", "UploadPartCopy"}
TO_FINISHED = {"PutObject", "HeadObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"}
"""What is ever asked about the key of a finished file."""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("server", ["moto", "rclone", "radosgw"])
def test_an_object_is_published_after_its_checkpoint_and_never_touched_again(
    spark: SparkSession, server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Large and small parts that roll in mid-stream: none before its checkpoint, none replaced, none copied."""
    real: S3Server = request.getfixturevalue(server)
    rows, base = write_source(tmp_path / "source", 8, 3000), f"s3://{real.bucket()}/out"
    with S3Proxy(real) as proxy, ObjectWatcher(real, base) as watcher:
        rolling = LONG.model_copy(update={"max_part_bytes": 6 * MIB})
        sink = s3_sink(proxy, base, rolling=rolling, distribution="hash", hash_partitions=2)
        run(sink, widen(stream(spark, tmp_path / "source"), 2000), str(tmp_path / "spark"))
        exchanges = proxy.exchanges
    assert ids_on_s3(real, base) == expected(rows)
    assert len(watcher.seen) > BUCKETS
    assert watcher.counts[0] == 0
    assert not published_too_soon(exchanges, base)
    done = [one.request for one in exchanges if one.status in {200, 204} and one.request.key in watcher.seen]
    made = Counter(one.key for one in done if one.operation in {"PutObject", "CompleteMultipartUpload"})
    assert made == Counter(watcher.seen.keys())
    assert {one.operation for one in done} <= TO_FINISHED
    assert not {one.request.operation for one in exchanges} & COPIES
