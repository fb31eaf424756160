"""A real Spark stream to real S3 servers: exactly once, parts that live across batches, no upload left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_store_support import options_of
from s3_streams import ids_on_s3, pending_uploads, s3_sink, visible_objects
from spark_support import BUCKETS, expected, run, run_without_end, stream, widen, write_source

import partfile as pf
from partfile.stores.s3.store import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from s3_server import S3Server

pytestmark = pytest.mark.spark
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
    """Six batches by bucket leave one file a bucket and nothing staged; where nobody can claim, one a batch."""
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
