"""Reading from real S3 servers what a sink has finished: partfile.read, the file system, pyarrow, DuckDB and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.errors import ConfigError, NotApplied, NotFound
from support.s3.life import LONG, store_options
from support.s3.proxy import S3Proxy, slow_down

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.s3.server import S3Server


pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.string())])
BUCKETS = ("a b", "c%#é", "plain+&")
ROWS = sorted((number, BUCKETS[number % 3]) for number in range(12))


def sink_of(base: str, server: S3Server, format: str, **options: Any) -> pf.FileSink:
    """A sink with hostile directories, whose parts stay open until the clean end."""
    return pf.FileSink(
        base,
        uid="u",
        format=format,
        bucketer=pf.HiveBucketer("bucket"),
        rolling=LONG,
        storage_options=store_options(server),
        **options,
    )


def batch(first: int, count: int) -> pa.RecordBatch:
    """Some of the rows."""
    ids, buckets = zip(*[(n, BUCKETS[n % 3]) for n in range(first, first + count)], strict=True)
    return pa.RecordBatch.from_pydict({"id": list(ids), "bucket": list(buckets)})


def written(base: str, server: S3Server, format: str, compression: str | None = None) -> None:
    """All rows, finished, in two runs; then a part that stays open."""
    for first in (0, 6):
        with sink_of(base, server, format, compression=compression).local() as out:
            out.write(batch(first, 6))
            out.checkpoint()
    out = sink_of(base, server, format, compression=compression).local().open()
    out.write(batch(100, 3))
    # Open parts of formats that roll at each checkpoint would be finished by one.
    out.close()


def rows_of(table: pa.Table) -> list[tuple[int, str]]:
    """The rows of a table, in order."""
    return sorted(zip(table["id"].to_pylist(), table["bucket"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("format", "compression"), [("json", None), ("json", "gzip"), ("csv", "zstd"), ("parquet", None)]
)
def test_a_dataset_of_what_is_finished(moto: S3Server, format: str, compression: str | None) -> None:
    """partfile.read takes the options of the sink, and gives every finished row once with its bucket."""
    base = f"s3://{moto.bucket()}/base"
    written(base, moto, format, compression)
    assert rows_of(pf.read(base, storage_options=store_options(moto), schema=SCHEMA).to_table()) == ROWS


def test_every_reader_on_every_server(s3_server: S3Server, s3_base: str) -> None:
    """The file system, pyarrow's dataset over it, DuckDB over it, over s3fs and on the dataset: the same rows."""
    written(s3_base, s3_server, "json")
    options = store_options(s3_server)
    shown = pf.valid_length_filesystem(s3_base, options)
    files = shown.find(shown.base)
    assert len(files) == 6
    assert sum(shown.cat_file(name).count(b"\n") for name in files) == 12
    assert all(shown.size(name) == len(shown.cat_file(name)) for name in files)
    through = ds.dataset(shown.base, filesystem=shown, format="json", partitioning="hive", schema=SCHEMA)
    assert rows_of(through.to_table()) == ROWS
    flights = pf.read(s3_base, storage_options=options, schema=SCHEMA)  # noqa: F841 - DuckDB finds it by its name.
    with duckdb.connect() as connection:
        connection.register_filesystem(shown)
        connection.register_filesystem(s3_server.filesystem())
        query = "SELECT id, bucket FROM {} ORDER BY id"
        for source in (
            "flights",
            f"read_json('partfile://{shown.base}/**/*.json', hive_partitioning=true)",
            f"read_json('{s3_base}/**/*.json', hive_partitioning=true)",
        ):
            assert sorted(connection.sql(query.format(source)).fetchall()) == ROWS, source


def test_plain_s3fs_and_pyarrow_see_nothing_else(s3_server: S3Server, s3_base: str) -> None:
    """Who knows nothing of partfile reads the base path as it is: staged bytes and state are hidden by their names."""
    written(s3_base, s3_server, "json")
    path = s3_base.removeprefix("s3://")
    found = ds.dataset(path, filesystem=s3_server.filesystem(), format="json", partitioning="hive", schema=SCHEMA)
    assert rows_of(found.to_table()) == ROWS


def test_a_prefix_that_is_not_there(s3_server: S3Server, s3_base: str) -> None:
    """Is named, on every server."""
    with pytest.raises(NotFound, match="base"):
        pf.read(s3_base, storage_options=store_options(s3_server), schema=SCHEMA)


def test_pending_parts_are_refused_by_name_until_they_are_published(moto: S3Server) -> None:
    """They are no files, so no reader could read them; once published they are there."""
    base, options = f"s3://{moto.bucket()}/base", store_options(moto)
    with sink_of(base, moto, "json").local() as out:
        out.write(batch(0, 12))
        out.checkpoint()
    found = pf.read(base, storage_options=options, schema=SCHEMA, include="pending")
    assert rows_of(found.to_table()) == ROWS
    files = moto.filesystem()
    (gone, *_) = files.find(f"{base}/bucket=a b")
    files.rm_file(gone)
    published = [name for name in files.find(f"{base}/_partfile") if name.endswith("_published")]
    for name in published:
        files.rm_file(name)
    with pytest.raises(ConfigError, match="pending"):
        pf.read(base, storage_options=options, schema=SCHEMA, include="pending")


def test_a_throttled_reader_asks_again(moto: S3Server) -> None:
    """Listings and reads that are turned away are repeated."""
    base = f"s3://{moto.bucket()}/base"
    written(base, moto, "json")
    with S3Proxy(moto) as proxy:
        proxy.inject(slow_down(), operation="ListObjectsV2", times=2)
        proxy.inject(slow_down(), operation="GetObject", times=2)
        found = pf.read(base, storage_options=store_options(proxy), schema=SCHEMA)
        assert rows_of(found.to_table()) == ROWS


@pytest.mark.spark
@pytest.mark.parametrize(("format", "compression"), [("json", None), ("csv", "gzip"), ("text", None)])
def test_spark_without_a_client_of_its_own(
    moto: S3Server, spark: SparkSession, format: str, compression: str | None
) -> None:
    """partfile.read_spark: the executors read through s3fs, and Spark parses."""
    base = f"s3://{moto.bucket()}/base"
    if format == "text":
        with sink_of(base, moto, "text").local() as out:
            texts = [f"row {number}" for number, _ in ROWS]
            out.write(pa.RecordBatch.from_pydict({"row": texts, "bucket": [bucket for _, bucket in ROWS]}))
        frame = pf.read_spark(spark, base, format="text", storage_options=store_options(moto))
        assert frame.columns == ["value", "bucket"]
        assert sorted((int(row.value.split()[1]), row.bucket) for row in frame.collect()) == ROWS
        return
    written(base, moto, format, compression)
    for schema in ("id long, bucket string", "id long"):
        frame = pf.read_spark(spark, base, format=format, schema=schema, storage_options=store_options(moto))
        assert sorted((row.id, row.bucket) for row in frame.collect()) == ROWS


@pytest.mark.parametrize(
    ("bucket", "options", "said"),
    [
        (None, {"secret": "wrong"}, "credentials"),
        (None, {"endpoint_url": "http://127.0.0.1:1"}, "endpoint_url"),
        ("no-such-bucket", {}, "create the S3 bucket"),
    ],
    ids=["denied", "away", "no bucket"],
)
def test_a_reader_is_told_what_a_sink_would_be_told(
    radosgw: S3Server, bucket: str | None, options: dict[str, object], said: str
) -> None:
    """An error of ours that names the place and says what to do; a directory that is empty is none."""
    base, options = f"s3://{bucket or radosgw.bucket()}/x", store_options(radosgw) | options
    for read in (pf.read, lambda base, **more: pf.valid_length_filesystem(base, **more).find(base)):
        with pytest.raises(NotApplied, match=base.split("/")[2]) as raised:
            read(base, storage_options=options)
        assert said in raised.value.hint
