"""Readers on HDFS: files published with a sidecar end at their valid length, whatever lies behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.readers.cut_files import CutFiles
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.string())])


@pytest.fixture
def base(hdfs: HdfsCluster, hdfs_directory: str) -> str:
    """Two buckets with one whole and one cut file each, and a staged one; rows 0 to 7 count."""
    url = hdfs.url + hdfs_directory
    with HdfsStore(url, HdfsOptions()) as store:
        for number, bucket in enumerate(("bucket=a b", "bucket=c%#é")):
            for name, tail in (("whole.json", b""), ("cut.json", b'{"id": 99}\n{"id"')):
                handle = new_part(bucket, name)
                with_tail = store.create(handle)
                first = 4 * number + (2 if tail else 0)
                with_tail.write(b"".join(b'{"id": %d}\n' % row for row in (first, first + 1)))
                valid = with_tail.persist()
                with_tail.write(tail)
                with_tail.persist()
                with_tail.close()
                store.publish(valid, "valid-length")
        staged = store.create(new_part("bucket=a b", "staged.json"))
        staged.write(b'{"id": 100}\n')
        staged.persist()
        staged.close()
    return url


def test_the_dataset_ends_at_the_valid_length(base: str) -> None:
    """partfile.read: every row that counts, once, with its bucket."""
    found = pf.read(base, schema=SCHEMA).to_table().to_pylist()
    assert sorted((row["id"], row["bucket"]) for row in found) == [
        (number, "a b" if number < 4 else "c%#é") for number in range(8)
    ]


def test_the_file_system_shows_what_counts(base: str) -> None:
    """The fsspec wrapper: no sidecar, no staged file, sizes and bytes as far as they count."""
    shown = pf.valid_length_filesystem(base)
    files = shown.find(shown.base)
    assert sorted(name.rpartition("/")[2] for name in files) == ["cut.json", "cut.json", "whole.json", "whole.json"]
    for name in files:
        assert shown.cat_file(name).count(b"\n") == 2
        assert shown.size(name) == len(shown.cat_file(name))


@pytest.mark.spark
def test_a_data_frame_ends_at_the_valid_length(
    base: str, hdfs: HdfsCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """partfile.read_spark: Spark reads whole files by itself, and the executors cut the others, without a secret."""
    travelling = []

    def rows(files: CutFiles, *arguments: Any) -> DataFrame:
        travelling.append(files)
        return rows_of_files(files, *arguments)

    rows_of_files = CutFiles.rows
    monkeypatch.setattr(CutFiles, "rows", rows)
    options = {"http_address": hdfs.http_address, "delegation_token": "secret", "call_timeout_s": 50.0}
    frame = pf.read_spark(spark, base, format="json", schema="id long, bucket string", storage_options=options)
    assert [files.storage_options for files in travelling] == [{"call_timeout_s": 50.0}]
    found = frame.collect()
    assert sorted((row.id, row.bucket) for row in found) == [
        (number, "a b" if number < 4 else "c%#é") for number in range(8)
    ]
