"""What each reader makes of each format in every compression, as docs/FORMATS.md has it in its tables.

The rows are those that a task of Spark's gets, with every type that Spark sends, through the sink itself.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.json
import pytest

import partfile as pf
from partfile.writers.columns import plain_schema
from support.files.columns import table_of_every_type, type_in
from support.sinks.life_cycle import in_child
from support.spark.files import arrow_of_task, rows_of
from support.spark.streams import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARQUET = [(codec, "staged") for codec in ("snappy", "zstd", "gzip", "lz4", "brotli", "none")]
ORC = [(codec, "staged") for codec in ("zstd", "snappy", "zlib", "lz4", "none")]
AVRO = ["snappy", "deflate", "zstd", "none"]
NO_SPARK_PARQUET = ["span"]
"""An interval is a number to Spark and DuckDB: Parquet has none that Arrow writes."""
NOT_IN_ORC = ["span", "clock", "local"]


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[DataFrame]:
    """One table with every type that Spark sends."""
    with table_of_every_type(spark) as table:
        yield table


@pytest.fixture(scope="module")
def rows(table: DataFrame) -> pa.Table:
    """The same rows as a task gets them."""
    return arrow_of_task(table)


@pytest.fixture(scope="module")
def late_rows(table: DataFrame) -> pa.Table:
    """The rows that ORC takes: nothing before the calendar of today, nor parts of seconds before 1970."""
    later = {
        "instant": "greatest(date_trunc('second', instant), timestamp'1600-01-01')",
        "day": "greatest(day, date'1582-10-15')",
    }
    kept = [name for name in table.columns if name not in NOT_IN_ORC]
    return arrow_of_task(table.selectExpr(*(f"{later.get(name, name)} as {name}" for name in kept)))


def write(base: Path, rows: pa.Table, format: str, codec: str | None, **options: Any) -> Path:
    """Write row by row, with a checkpoint after every second, in a process that is killed, and one that goes on."""
    sink = pf.FileSink(base, uid="every", format=format, compression=codec, rolling=LONG, **options)

    def go_on(out: pf.LocalSink, until: int) -> None:
        for at in range(int(str(out.position or 0)), until):
            out.write(rows.slice(at, 1))
            if at % 2:
                out.checkpoint(at + 1)

    def die() -> None:
        go_on(sink.local().open(), rows.num_rows - 2)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    with sink.local() as out:
        assert out.position is not None
        go_on(out, rows.num_rows)
    return base


def parts(base: Path) -> list[Path]:
    """The finished files, in the order of their rows; one of a process more where parts are not gone on with."""
    return sorted(base.glob("part-*"), key=lambda path: int(path.name.split(".")[0].rpartition("-")[2]))


def without(rows: pa.Table, *names: str) -> list[str]:
    """The other columns."""
    return [name for name in rows.column_names if name not in names]


def odd_types(format: str, found: pa.Schema, written: pa.Schema) -> list[str]:
    """The columns that do not have the type of the table in docs/FORMATS.md."""
    return [name for name in written.names if found.field(name).type != type_in(format, written.field(name).type)]


@pytest.mark.parametrize(("codec", "columnar"), [*PARQUET, ("snappy", "per_checkpoint")])
def test_parquet_is_equal_in_every_reader(
    table: DataFrame, rows: pa.Table, tmp_path: Path, codec: str, columnar: str
) -> None:
    """Values, nulls and types in pyarrow, polars, DuckDB and Spark; but intervals are numbers to the last two."""
    base = write(tmp_path, rows, "parquet", codec, columnar=columnar)
    files = f"{base}/part-*.parquet"
    found = pf.read(base)
    in_utc = plain_schema(rows.schema)
    assert found.schema.equals(in_utc)
    assert rows_of(found.to_table(), rows.column_names) == rows_of(rows, rows.column_names)
    frame = pl.read_parquet(files)
    assert frame.schema == pl.DataFrame(in_utc.empty_table()).schema
    assert rows_of(frame.to_arrow(), rows.column_names) == rows_of(rows, rows.column_names)
    kept = without(rows, *NO_SPARK_PARQUET)
    relation = duckdb.read_parquet(files)
    kinds = dict(zip(relation.columns, relation.types, strict=True))
    memory = duckdb.from_arrow(rows.schema.empty_table())
    wanted = dict(zip(memory.columns, memory.types, strict=True))
    assert {name: kind for name, kind in kinds.items() if kind != wanted[name]} == {"span": "BIGINT"}
    assert rows_of(relation.to_arrow_table(), kept) == rows_of(rows, kept)
    if codec != "brotli":
        back = table.sparkSession.read.parquet(str(base))
        assert dict(back.dtypes)["span"] == "bigint"
        assert back.select(*without(rows, "span", "clock")).schema == table.drop("span", "clock").schema
        assert rows_of(back.toArrow(), kept) == rows_of(rows, kept)


@pytest.mark.parametrize(("codec", "columnar"), [*ORC, ("zstd", "per_checkpoint")])
def test_orc_is_equal_in_spark_and_pyarrow(
    table: DataFrame, late_rows: pa.Table, tmp_path: Path, codec: str, columnar: str
) -> None:
    """Values, nulls and types, but that instants come in nanoseconds from pyarrow."""
    base = write(tmp_path, late_rows, "orc", codec, columnar=columnar)
    names = late_rows.column_names
    back = table.sparkSession.read.orc(str(base))
    assert back.schema == table.select(*names).schema
    assert rows_of(back.toArrow(), names) == rows_of(late_rows, names)
    found = pf.read(base)
    assert odd_types("orc", found.schema, late_rows.schema) == []
    # Python has no nanoseconds, and the last instants that ORC holds are beyond those of Arrow.
    kept = without(late_rows, "instant", "point")
    assert rows_of(found.to_table(columns=kept), kept) == rows_of(late_rows, kept)


def test_duckdb_and_polars_have_no_reader_of_orc() -> None:
    """When one of them gets one, the table in docs/FORMATS.md is out of date."""
    assert not [name for name in dir(pl) if "orc" in name.lower().split("_")]
    with pytest.raises(duckdb.Error, match="read_orc does not exist"):
        duckdb.execute("SELECT * FROM read_orc('x.orc')")


@pytest.mark.parametrize("codec", AVRO)
def test_avro_is_equal_in_every_reader(
    spark_avro: SparkSession, table: DataFrame, rows: pa.Table, tmp_path: Path, codec: str
) -> None:
    """Values, nulls and types, as wide as Avro has them, in Spark, partfile and polars, which has no maps nor zstd."""
    base = write(tmp_path, rows, "avro", codec)
    names = rows.column_names
    back = spark_avro.read.format("avro").load(str(base))
    wider = {"tiny": "int", "small": "int"}
    assert dict(back.dtypes) == {**dict(table.dtypes), **wider}
    assert rows_of(back.toArrow(), names) == rows_of(rows, names)
    found = pf.read(base)
    assert odd_types("avro", found.schema, rows.schema) == []
    assert rows_of(found.to_table(), names) == rows_of(rows, names)
    kept = without(rows, "tags", "deep", "span")
    paths = parts(write(tmp_path / "flat", rows.select(kept), "avro", codec))
    if codec == "zstd":
        with pytest.raises(pl.exceptions.PolarsError, match="zstandard"):
            pl.read_avro(paths[0])
        return
    frame = pl.concat([pl.read_avro(path) for path in paths])
    memory = pl.DataFrame(found.schema.empty_table())
    assert [name for name in kept if frame.schema[name] != memory.schema[name]] == []
    assert rows_of(frame.to_arrow(), kept) == rows_of(rows, kept)


def test_spark_reads_avro_by_partfile_where_its_reader_is(
    spark_avro: SparkSession, rows: pa.Table, tmp_path: Path
) -> None:
    """``read_spark`` takes the format; a file with a sidecar it refuses, since Spark would read on."""
    base = write(tmp_path, rows, "avro", "snappy")
    assert pf.read_spark(spark_avro, base, format="avro").count() == rows.num_rows
    part = parts(base)[-1]
    part.with_name(f"_{part.name}.valid-length").write_text(str(part.stat().st_size))
    with pytest.raises(pf.ConfigError, match="has a sidecar"):
        pf.read_spark(spark_avro, base, format="avro")


def test_duckdb_reads_avro_by_an_extension_and_pyarrow_not_at_all(rows: pa.Table, tmp_path: Path) -> None:
    """What is not in the packages from PyPI is not counted on."""
    path = parts(write(tmp_path, rows, "avro", "none"))[0]
    alone: Any = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    with duckdb.connect(config=alone) as connection, pytest.raises(duckdb.Error, match="avro extension"):
        connection.execute(f"SELECT * FROM read_avro('{path}')")  # noqa: S608
    with pytest.raises(ValueError, match="avro"):
        pa.dataset.dataset(path, format="avro")


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_polars_reads_lines(rows: pa.Table, tmp_path: Path, codec: str | None) -> None:
    """Values and nulls of the columns that it takes as they are, plain and in the compressions that it knows.

    Of JSON it takes neither decimals, since they are strings, nor bare NaN and infinities; of CSV it takes them.
    """
    kept = ["number", "truth", "whole", "text", "day", "instant", "local", "list"]
    paths = parts(write(tmp_path / "json", rows.select(kept), "json", codec))
    frame = pl.concat([pl.read_ndjson(path, schema=declared(rows.select(kept))) for path in paths])
    assert rows_of(frame.to_arrow(), kept) == rows_of(rows, kept)
    kept = without(rows, "raw", "clock", "span", "list", "tags", "point", "deep")
    paths = parts(write(tmp_path / "csv", rows.select(kept), "csv", codec))
    frame = pl.concat([pl.read_csv(path, schema=declared(rows.select(kept))) for path in paths])
    assert rows_of(frame.to_arrow(), kept) == rows_of(rows, kept)
    paths = parts(write(tmp_path / "odd", rows.select(["double"]), "json", codec))
    with pytest.raises(pl.exceptions.PolarsError):
        pl.concat([pl.read_ndjson(path, schema={"double": pl.Float64}) for path in paths])


def declared(rows: pa.Table) -> Any:
    """The schema that polars is given: instants are of UTC."""
    schema = dict(pl.DataFrame(rows.schema.empty_table()).schema)
    return {name: pl.Datetime("us", "UTC") if name == "instant" else kind for name, kind in schema.items()}


@pytest.mark.parametrize("codec", ["bz2", "lz4", "snappy"])
def test_compressions_that_readers_do_not_know(rows: pa.Table, tmp_path: Path, codec: str) -> None:
    """DuckDB and polars know none of these, pyarrow no snappy; none of them gives other rows instead."""
    kept = rows.select(["number", "text"])
    path = parts(write(tmp_path, kept, "json", codec))[0]
    with pytest.raises(duckdb.Error):
        duckdb.execute(f"SELECT * FROM read_json('{path}', columns={{'number': 'BIGINT'}})").fetchall()  # noqa: S608
    with pytest.raises(pl.exceptions.PolarsError):
        pl.read_ndjson(path, schema={"number": pl.Int64})
    if codec == "snappy":
        with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
            pa.json.read_json(path)
    found = pf.read(tmp_path, schema=kept.schema).to_table()
    assert rows_of(found, kept.column_names) == rows_of(kept, kept.column_names)
