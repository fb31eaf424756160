"""Every type that Spark sends, through our files and through a real stream: equal values in each reader."""

from __future__ import annotations

import base64
import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.errors import UnsupportedTypeError
from partfile.writers.registry import resolve_format
from support.files.columns import NESTED, SCALARS, table_of_every_type
from support.spark.files import arrow_of_task, rows_of, values_of, write_file
from support.spark.streams import finished, make_sink, run, run_without_end, stream, write_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


# What Spark's types look like to Spark, DuckDB and pyarrow after a trip through our files: equal, value for value.
#
# The files are made where the sink makes them, in ``mapInArrow``, so that the Arrow types are those that a task gets.
# The options each reader is given here are the ones that docs/FORMATS.md tells its readers to use.

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_pc: Any = pc  # the stubs lack the operands used here


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[DataFrame]:
    """One table with every type that Spark sends."""
    with table_of_every_type(spark) as table:
        yield table


_CODECS = [None, "gzip", "zstd"]
_SPARK_CODECS = [*_CODECS, "bz2", "snappy"]
_PYARROW_CODECS = [*_CODECS, "bz2", "lz4"]


@pytest.mark.parametrize("codec", _SPARK_CODECS)
def test_spark_reads_json_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """Spark, given the schema and no option, reads every type back from JSON lines, plain and compressed."""
    path = write_file(table, resolve_format("json", codec), tmp_path)
    back = table.sparkSession.read.schema(table.schema).option("mode", "FAILFAST").json(path)
    assert values_of(back.toArrow(), table.columns) == values_of(table.toArrow(), table.columns)


def test_spark_reads_strict_json_back(table: DataFrame, tmp_path: Path) -> None:
    """Quoted NaN and infinities are Spark's own form, and read back as well."""
    path = write_file(table, resolve_format("json", non_finite="string"), tmp_path)
    back = table.sparkSession.read.schema(table.schema).option("mode", "FAILFAST").json(path)
    assert values_of(back.toArrow(), table.columns) == values_of(table.toArrow(), table.columns)


_DUCKDB_KINDS = {
    "tinyint": "TINYINT",
    "time(6)": "TIME",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
    "binary": "VARCHAR",
    "interval day to second": "VARCHAR",
    "array<int>": "INTEGER[]",
    "map<string,double>": "MAP(VARCHAR, DOUBLE)",
    "struct<x:double,at:timestamp,name:string,price:decimal(10,2)>": (
        'STRUCT(x DOUBLE, "at" TIMESTAMPTZ, name VARCHAR, price DECIMAL(10,2))'
    ),
    "array<struct<a:array<map<string,int>>,s:string>>": "STRUCT(a MAP(VARCHAR, INTEGER)[], s VARCHAR)[]",
}
_DUCKDB_DECODING = r"""* replace (
    from_base64(raw) as raw,
    cast(regexp_replace(span, '^(-?)(\d+) ', '\1\2 days \1') as interval) as span
)"""


def _duckdb(source: str, kinds: dict[str, str]) -> dict[str, str]:
    columns = ", ".join(f"'{name}': '{_DUCKDB_KINDS.get(kind, kind)}'" for name, kind in kinds.items())
    query = f"select {_DUCKDB_DECODING} from {source.format(columns='{' + columns + '}')}"  # noqa: S608
    connection: Any = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    table = connection.sql(query).to_arrow_table()
    spans = [
        None if span is None else dt.timedelta(days=span.days, microseconds=span.nanoseconds // 1000)
        for span in table["span"].to_pylist()
    ]
    at = table.schema.get_field_index("span")
    return values_of(table.set_column(at, "span", pa.array(spans, pa.duration("us"))), kinds)


@pytest.mark.parametrize("codec", _CODECS)
def test_duckdb_reads_json_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """DuckDB, given the column types, reads every type back; binary and intervals take one documented expression."""
    path = write_file(table, resolve_format("json", codec), tmp_path)
    kinds = SCALARS | NESTED
    source = f"read_json('{path}', columns={{columns}}, format='newline_delimited')"
    assert _duckdb(source, kinds) == values_of(table.toArrow(), kinds)


def _arrow_schema(table: pa.Table, odd: dict[Any, Any]) -> pa.Schema:
    return pa.schema([(field.name, odd.get(field.name, field.type)) for field in table.schema])


def _span(text: str | None) -> dt.timedelta | None:
    if text is None:
        return None
    sign, days, hours, minutes, seconds = re.fullmatch(r"(-?)(\d+) (\d+):(\d+):([\d.]+)", text).groups()  # type: ignore[union-attr]
    size = dt.timedelta(
        days=int(days), hours=int(hours), minutes=int(minutes), microseconds=round(float(seconds) * 1e6)
    )
    return -size if sign else size


def _decoded(table: pa.Table) -> pa.Table:
    """Undo, as docs/FORMATS.md says, the forms that pyarrow's readers leave as text."""
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    columns["raw"] = pa.array(
        [None if value is None else base64.b64decode(value) for value in table["raw"].to_pylist()], pa.binary()
    )
    columns["day"] = columns["day"].cast(pa.date32())
    if not pa.types.is_time(columns["clock"].type):
        moments = _pc.binary_join_element_wise("1970-01-01T", columns["clock"], "").cast(pa.timestamp("ns"))
        columns["clock"] = moments.cast(pa.time64("ns"))
    columns["span"] = pa.array([_span(text) for text in columns["span"].to_pylist()], pa.duration("us"))
    return pa.table(columns)


@pytest.mark.parametrize("codec", _PYARROW_CODECS)
def test_pyarrow_reads_json_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """Given a schema, pyarrow reads every type but maps back; four types arrive as text to be decoded."""
    kept = [name for name in table.columns if name not in {"tags", "deep"}]
    original = table.select(kept).toArrow()
    path = write_file(table.select(kept), resolve_format("json", codec), tmp_path)
    odd = {"raw": pa.string(), "day": pa.timestamp("s"), "clock": pa.string(), "span": pa.string()}
    options = pyarrow.json.ParseOptions(explicit_schema=_arrow_schema(original, odd), unexpected_field_behavior="error")
    back = pyarrow.json.read_json(path, parse_options=options)
    assert values_of(_decoded(back), kept) == values_of(original, kept)


@pytest.mark.parametrize("codec", _SPARK_CODECS)
def test_spark_reads_csv_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """Spark reads every scalar back from CSV with the documented options."""
    kept = table.select(*SCALARS)
    path = write_file(kept, resolve_format("csv", codec), tmp_path)
    schema = ", ".join(f"{name} {'string' if kind == 'binary' else kind}" for name, kind in SCALARS.items())
    reader = kept.sparkSession.read.schema(schema).option("mode", "FAILFAST").options(**_SPARK_CSV)
    back = reader.csv(path).selectExpr(*(f"unbase64({n}) as {n}" if n == "raw" else n for n in SCALARS))
    assert values_of(back.toArrow(), SCALARS) == values_of(kept.toArrow(), SCALARS)


# Without a nullValue of its own Spark reads a quoted empty string as null, too.
_SPARK_CSV: dict[str, Any] = {"header": True, "escape": '"', "multiLine": True, "nullValue": "\0"}


@pytest.mark.parametrize("codec", _CODECS)
def test_duckdb_reads_csv_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """DuckDB reads every scalar back from CSV with the documented options."""
    kept = table.select(*SCALARS)
    path = write_file(kept, resolve_format("csv", codec), tmp_path)
    source = (
        f"read_csv('{path}', columns={{columns}}, header=true, delim=',', quote='\"', escape='\"',"
        " nullstr='', allow_quoted_nulls=false, auto_detect=false, new_line='\\n')"
    )
    assert _duckdb(source, SCALARS) == values_of(kept.toArrow(), SCALARS)


@pytest.mark.parametrize("codec", _PYARROW_CODECS)
def test_pyarrow_reads_csv_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """With pyarrow every scalar comes back from CSV with the documented options."""
    original = table.select(*SCALARS).toArrow()
    path = write_file(table.select(*SCALARS), resolve_format("csv", codec), tmp_path)
    odd = {"raw": pa.string(), "span": pa.string()}
    convert = pyarrow.csv.ConvertOptions(
        column_types=_arrow_schema(original, odd),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    back = pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
    assert values_of(_decoded(back), SCALARS) == values_of(original, SCALARS)


@pytest.mark.parametrize("codec", _SPARK_CODECS)
def test_text_reads_back(table: DataFrame, codec: str | None, tmp_path: Path) -> None:
    """Spark reads the lines of text back, a null as an empty line, a carriage return as part of its line."""
    lines = table.selectExpr("concat('\r', nullif(cast(whole as string), '0'), '\r') as value")
    path = write_file(lines, resolve_format("text", codec), tmp_path)
    back = [row.value for row in table.sparkSession.read.option("lineSep", "\n").text(path).collect()]
    assert back == [row.value or "" for row in lines.collect()]


def test_parquet_reads_back(table: DataFrame, tmp_path: Path) -> None:
    """Parquet keeps every type that Spark can read from it by itself."""
    kept = table.drop("span", "clock")
    path = write_file(kept, resolve_format("parquet"), tmp_path)
    back = table.sparkSession.read.parquet(path)
    assert values_of(back.toArrow(), kept.columns) == values_of(kept.toArrow(), kept.columns)


def test_orc_reads_back(table: DataFrame, tmp_path: Path) -> None:
    """ORC keeps every type that Spark can read from it by itself, in nested columns as well."""
    later = ("greatest(date_trunc('second', instant), timestamp'1600-01-01')", "greatest(day, date'1582-10-15')")
    kept = table.selectExpr("*", *later).drop("instant", "day", "span", "clock", "local")
    path = write_file(kept, resolve_format("orc"), tmp_path)
    back = table.sparkSession.read.orc(path)
    assert values_of(back.toArrow(), kept.columns) == values_of(kept.toArrow(), kept.columns)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("parse_json('1')", "variant"),
        ("map(1, 'a')", "a map key of type int32"),
        ("make_interval(1, 2, 3)", "month_day_nano_interval"),
    ],
)
def test_what_spark_sends_without_a_form_is_refused(
    spark: SparkSession, expression: str, words: str, tmp_path: Path
) -> None:
    """The other types that Spark sends are refused in the task by the column's name and type."""
    odd = spark.sql(f"select {expression} as odd")
    with pytest.raises(Exception, match=f"(?s)UnsupportedTypeError: Column 'odd' .*{words}"):
        write_file(odd, resolve_format("json"), tmp_path)
    assert issubclass(UnsupportedTypeError, TypeError)


# Every type that Spark sends through a real stream whose buckets share a staging file, over several batches and two
# runs.

BUCKETS = 7
_PLACE = "CASE WHEN number IS NULL THEN 4 WHEN number < 2 THEN number WHEN number = 9007199254740993 THEN 2 ELSE 3 END"
"""Numbers the rows of the table from 0 to 4."""


@pytest.fixture(scope="module")
def streamed_table(spark: SparkSession) -> Iterator[DataFrame]:
    """One table with every type that Spark sends, and the number of each row."""
    with table_of_every_type(spark) as table:
        yield table.withColumn("at", F.expr(_PLACE))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("format", "compression"), [("parquet", None), ("avro", "zstd"), ("json", "snappy"), ("json", "zstd")]
)
def test_every_type_of_a_stream_is_read_back(
    spark: SparkSession, streamed_table: DataFrame, tmp_path: Path, format: str, compression: str | None
) -> None:
    """Each row once, in the bucket that it belongs to, with the values that it had."""
    base, source = tmp_path / "out", tmp_path / "source"
    kept = [name for name in streamed_table.columns if name != "at"]
    count = 0
    for go in (run_without_end, run):
        count = write_source(source, 2, 21, first=count)
        numbered = stream(spark, source).withColumn("at", F.col("id") % 5)
        joined = numbered.join(F.broadcast(streamed_table), "at").withColumn("part", F.col("id") % BUCKETS)
        options: dict[str, Any] = {"bucketer": pf.HiveBucketer("part"), "buckets_per_staging_file": 2}
        sink = make_sink(base, format=format, compression=compression, **options)
        go(sink, joined.select("id", "part", *kept), str(tmp_path / "spark"))
        assert (finished(base) == []) is (go is run_without_end)
    files = finished(base)
    assert len({path.parent for path in files}) == BUCKETS
    assert len(files) < 4 * BUCKETS
    if format == "json":
        declared = (
            spark.createDataFrame([], streamed_table.select(*kept).schema).schema.add("id", "long").add("part", "long")
        )
        found = spark.read.schema(declared).option("mode", "FAILFAST").json(str(base)).toArrow()
    else:
        found = pf.read(base).to_table()
    ids = found["id"].to_pylist()
    assert sorted(ids) == list(range(count))
    assert found["part"].to_pylist() == [number % BUCKETS for number in ids]
    rows = arrow_of_task(streamed_table)
    wanted = rows.sort_by("at").take([number % 5 for number in ids])
    assert rows_of(found, kept) == rows_of(wanted, kept)


@pytest.mark.parametrize("most_buckets", [None, 1])
def test_a_stream_whose_columns_change_goes_on_in_other_files(
    spark: SparkSession, tmp_path: Path, most_buckets: int | None
) -> None:
    """A run adds a column and widens another: no file holds rows of both, and none is lost of what was open before."""
    base, source = tmp_path / "out", tmp_path / "source"
    first = write_source(source, 2, 30)
    sink = make_sink(base, format="parquet", buckets_per_staging_file=most_buckets)
    narrow = stream(spark, source).withColumn("size", F.col("id").cast("int"))
    run_without_end(sink, narrow, str(tmp_path / "spark"))
    assert finished(base) == []
    count = write_source(source, 2, 30, first=first)
    wide = stream(spark, source).withColumns({"size": F.col("id"), "more": F.lit("x")})
    run(make_sink(base, format="parquet", buckets_per_staging_file=most_buckets), wide, str(tmp_path / "spark"))
    tables = [pq.ParquetFile(path).read() for path in finished(base)]
    for table in tables:
        is_wide = "more" in table.column_names
        assert table.schema.field("size").type == (pa.int64() if is_wide else pa.int32())
        assert {number >= first for number in table["id"].to_pylist()} == {is_wide}
        assert table["size"].to_pylist() == table["id"].to_pylist()
    assert sorted(number for table in tables for number in table["id"].to_pylist()) == list(range(count))
