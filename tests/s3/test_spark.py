"""Spark streams to real S3 servers: exactly once, staged parts, and when objects become visible."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.stores.s3.store import S3Store
from support.s3.life import options_of
from support.s3.proxy import S3Proxy
from support.spark.s3 import ObjectWatcher, ids_on_s3, pending_uploads, published_too_soon, s3_sink, visible_objects
from support.spark.staged import HASHED, STAGED, keep_the_driver_from_encoding, numbered
from support.spark.streams import BUCKETS, LONG, expected, run, run_without_end, stream, widen, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.s3.server import S3Server


# A real Spark stream to real S3 servers: exactly once, parts that live across batches, no upload left open.

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MIB = 1 << 20
ROWS_A_FILE = 3000
WIDE_BYTES = 3000
"""With so many rows a batch, bucket 0 gets 3 MB of them: the third batch has enough for an upload part of 8 MiB."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Spark's own checkpoint, which needs no S3: without jars it could not be there."""
    return str(tmp_path / "spark")


@pytest.mark.drawn(1)
def test_a_part_stays_open_over_many_batches(
    spark: SparkSession, s3_server: S3Server, s3_base: str, source: Path, checkpoint: str
) -> None:
    """Six batches by bucket leave one file a bucket and nothing staged; where no task can claim, one a batch."""
    rows = write_source(source, 6)
    progress: list[pf.BatchProgress] = []
    sink = s3_sink(s3_server, s3_base, distribution="hash", hash_partitions=2, on_progress=progress.append)
    run(sink, stream(spark, source), checkpoint)
    assert ids_on_s3(s3_server, s3_base) == expected(rows)
    with S3Store(s3_base, options_of(s3_server)) as store:
        open_parts = BUCKETS if store.capabilities.append else 0
        assert store.list_names("_partfile/_sides") == store.list_names("_partfile/_claims") == []
    assert len(visible_objects(s3_server.filesystem(), s3_base)) == (BUCKETS if open_parts else 6 * BUCKETS)
    assert [one.parts_in_progress for one in progress if one.batch_id is not None] == [open_parts] * 6
    assert sum(one.parts_abandoned for one in progress) == 0
    assert pending_uploads(s3_server, s3_base) == []


def test_a_restart_publishes_what_a_run_without_an_end_left(
    spark: SparkSession, radosgw: S3Server, source: Path, tmp_path: Path, checkpoint: str
) -> None:
    """An open upload too; the sink's checkpoints are elsewhere on S3, and a batch that is sent again is recognised."""
    bucket = radosgw.bucket()
    base, options = f"s3://{bucket}/out", {"checkpoint_dir": f"s3://{bucket}/sink"}
    write_source(source, 3, ROWS_A_FILE)
    run_without_end(s3_sink(radosgw, base, **options), widen(stream(spark, source), WIDE_BYTES), checkpoint)
    assert visible_objects(radosgw.filesystem(), base) == {}
    assert len(pending_uploads(radosgw, base)) == 1
    (tmp_path / "spark" / "commits" / "2").unlink()
    (tmp_path / "spark" / "commits" / ".2.crc").unlink()
    rows = write_source(source, 2, first=3 * ROWS_A_FILE)
    progress: list[pf.BatchProgress] = []
    sink = s3_sink(radosgw, base, **options, on_progress=progress.append)
    run(sink, widen(stream(spark, source), WIDE_BYTES), checkpoint)
    assert [one.replayed for one in progress if one.batch_id is not None] == [True, False, False]
    assert ids_on_s3(radosgw, base) == expected(rows)
    assert pending_uploads(radosgw, base) == []


def test_kept_parts_are_resumed_after_a_clean_stop(
    spark: SparkSession, radosgw: S3Server, source: Path, checkpoint: str
) -> None:
    """With on_stop="keep" three runs fill one file a bucket, the wide one by one upload."""
    base = f"s3://{radosgw.bucket()}/out"
    for first, on_stop in enumerate(("keep", "keep", "publish")):
        assert visible_objects(radosgw.filesystem(), base) == {}
        rows = write_source(source, 2, ROWS_A_FILE, first=2 * ROWS_A_FILE * first)
        sink = s3_sink(radosgw, base, distribution="hash", hash_partitions=2, on_stop=on_stop)
        run(sink, widen(stream(spark, source), WIDE_BYTES), checkpoint)
        assert len(pending_uploads(radosgw, base)) == (first == 1)
    assert ids_on_s3(radosgw, base) == expected(rows)
    assert len(visible_objects(radosgw.filesystem(), base)) == BUCKETS


def test_parts_roll_by_size_in_the_middle_of_a_stream(
    spark: SparkSession, radosgw: S3Server, source: Path, checkpoint: str
) -> None:
    """The wide bucket gets files of the size asked for or a little more, and the others one file each."""
    base, rows = f"s3://{radosgw.bucket()}/out", write_source(source, 7, ROWS_A_FILE)
    rolling = pf.RollingPolicy(max_part_bytes=6 * MIB, rollover_interval_s=1e6, inactivity_interval_s=1e6)
    sink = s3_sink(radosgw, base, rolling=rolling, distribution="hash", hash_partitions=2)
    run(sink, widen(stream(spark, source), WIDE_BYTES), checkpoint)
    assert ids_on_s3(radosgw, base) == expected(rows)
    found = visible_objects(radosgw.filesystem(), base)
    wide_sizes = sorted(one.size for key, one in found.items() if "bucket=0" in key)
    assert len(found) == len(wide_sizes) + BUCKETS - 1
    assert all(6 * MIB <= size < 10 * MIB for size in wide_sizes[1:])
    assert len(wide_sizes) > 1
    assert pending_uploads(radosgw, base) == []


def test_a_savepoint_on_s3_goes_on_elsewhere(
    spark: SparkSession, radosgw: S3Server, source: Path, checkpoint: str
) -> None:
    """A query ends with a savepoint; a sink on a fresh base begins with it and gets the later rows alone."""
    bucket = radosgw.bucket()
    rows = write_source(source, 2)
    sink = s3_sink(radosgw, f"s3://{bucket}/first", savepoint_dir=f"s3://{bucket}/saved")
    query = sink.start(stream(spark, source), checkpoint_location=checkpoint)
    query.processAllAvailable()
    location = query.stop_with_savepoint()
    more = write_source(source, 2, first=rows)
    run(s3_sink(radosgw, f"s3://{bucket}/second", restore_from=location), stream(spark, source), checkpoint)
    assert ids_on_s3(radosgw, f"s3://{bucket}/first") == expected(rows)
    assert ids_on_s3(radosgw, f"s3://{bucket}/second") == expected(more) - expected(rows)


# Spark streams into staged parts on real S3 servers: of a bucket each, and shared by many.

MANY = 80
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
def test_staging_files_stay_open_over_batches_and_outlive_a_run(
    spark: SparkSession, s3_server: S3Server, s3_base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six batches leave a file a bucket and run, and no upload; where no task can claim, a file a batch and bucket."""
    keep_the_driver_from_encoding(monkeypatch)
    checkpoint = str(tmp_path / "spark")
    write_source(tmp_path / "source", 3)
    run_without_end(s3_sink(s3_server, s3_base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    with S3Store(s3_base, options_of(s3_server)) as store:
        is_staged = store.capabilities.append and store.capabilities.staging_files
    assert len(visible_objects(s3_server.filesystem(), s3_base)) == (0 if is_staged else 3 * BUCKETS)
    rows = write_source(tmp_path / "source", 3, first=90)
    run(s3_sink(s3_server, s3_base, **STAGED, **HASHED), stream(spark, tmp_path / "source"), checkpoint)
    assert rows_on_s3(s3_server, s3_base) == numbered(rows)
    assert len(visible_objects(s3_server.filesystem(), s3_base)) == (2 if is_staged else 6) * BUCKETS
    assert pending_uploads(s3_server, s3_base) == []


@pytest.mark.drawn(1)
@pytest.mark.parametrize(("server", "format"), [("moto", "parquet"), ("radosgw", "json")])
def test_many_buckets_share_staging_files_that_spark_encodes(  # noqa: PLR0917 - fixtures.
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


# When a Spark stream's objects become visible, and that they stay what they were: seen by a reader and at a proxy.

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
