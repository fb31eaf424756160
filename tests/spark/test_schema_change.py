"""A query whose columns change is let pass or refused by what the checkpoint holds, before anything is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError
from support.processes.command_line import told
from support.spark.streams import make_sink, run, run_without_end, stream, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from partfile.sink.schema import OnSchemaChange


pytestmark = [pytest.mark.spark]


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> tuple[Path, DataFrame]:
    """A base, and a stream of the next source file."""
    write_source(tmp_path / "source", 1)
    return tmp_path / "base", stream(spark, tmp_path / "source")


def go_on(place: tuple[Path, DataFrame], on_schema_change: OnSchemaChange, *columns: str, **options: Any) -> None:
    """A new run of the query over one source file more, with other columns."""
    base, df = place
    source = base.parent / "source"
    write_source(source, 1, first=30 * len(list(source.glob("*.json"))))
    sink = make_sink(base, on_schema_change=on_schema_change, **options)
    run(sink, df.selectExpr("bucket", *columns), str(base.parent / "spark"))


def checkpoints(base: Path) -> list[str]:
    return sorted(path.name for path in (base / "_partfile" / "numbers").iterdir())


def offsets(base: Path) -> list[str]:
    """The batches that Spark has begun."""
    return sorted(path.name for path in (base.parent / "spark" / "offsets").iterdir())


def test_a_batch_of_plain_foreach_batch_is_refused(place: tuple[Path, DataFrame]) -> None:
    """Before its job, and before an epoch is begun."""
    base, df = place
    go_on(place, "evolve", "id")
    before = checkpoints(base)
    write_source(base.parent / "source", 1, first=60)
    sink = make_sink(base, on_schema_change="evolve")
    writer = df.selectExpr("bucket", "cast(id as int) id").writeStream.foreachBatch(sink.foreach_batch)
    query = writer.option("checkpointLocation", str(base.parent / "spark")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="'id' was int64 and is int32"):
        query.awaitTermination()
    assert checkpoints(base) == before


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_columns_evolve_over_runs_of_a_query(place: tuple[Path, DataFrame], format: str) -> None:
    """Added and widened columns go on; the checkpoint has the types of all rows, and readers have them from it."""
    base, _ = place
    go_on(place, "evolve", "cast(id as int) id", format=format)
    assert pf.read_schema(base) == pa.schema({"bucket": pa.int64(), "id": pa.int32()})
    go_on(place, "evolve", "id", "cast(id as decimal(9, 2)) price", "unhex('FF00') raw", format=format)
    assert pf.read_schema(base).field("id").type == pa.int64()
    rows = pf.read(base).to_table().sort_by("id").to_pylist()
    assert [row["id"] for row in rows] == list(range(90))
    assert {row["raw"] for row in rows} == {None, b"\xff\x00"}
    assert sum(row["price"] is None for row in rows) == 60


@pytest.mark.parametrize(
    ("mode", "columns", "told"),
    [
        ("evolve", ["cast(id as string) id"], "'id' was int64 and is string"),
        ("evolve", ["cast(id as int) id"], "'id' was int64 and is int32"),
        ("evolve", ["1 other"], r"'id' \(int64\) is gone"),
        ("fail", ["id", "1 other"], r"'other' \(int32\) is new"),
    ],
)
def test_a_refused_query_changes_nothing(
    place: tuple[Path, DataFrame], mode: OnSchemaChange, columns: list[str], told: str
) -> None:
    """No epoch is begun for it, so the sink stands as it stood; the query goes on once its columns are mended."""
    base, _ = place
    go_on(place, mode, "id")
    before, batches = checkpoints(base), offsets(base)
    with pytest.raises(CheckpointMismatch, match=f"(?s)numbers: the columns are not those of the rows before.*{told}"):
        go_on(place, mode, *columns)
    assert (checkpoints(base), offsets(base)) == (before, batches)
    go_on(place, mode, "id")
    assert sorted(pf.read(base).to_table()["id"].to_pylist()) == list(range(120))


def test_a_batch_that_comes_again_is_not_judged(place: tuple[Path, DataFrame]) -> None:
    """Its rows count already: what the sink would refuse now was written when it was allowed. ``start`` refuses it."""
    base, df = place
    checkpoint = base.parent / "spark"
    run_without_end(make_sink(base), df.selectExpr("bucket", "id"), str(checkpoint))
    for commit in (checkpoint / "commits").glob("*0*"):
        commit.unlink()
    sink = make_sink(base, on_schema_change="fail")
    writer = df.selectExpr("bucket", "id", "1 other").writeStream.foreachBatch(sink.foreach_batch)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    sink.finish()
    assert sorted(pf.read(base).to_table()["id"].to_pylist()) == list(range(30))
    assert "other" not in pf.read_schema(base).names


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_the_zone_of_a_session_is_no_change(place: tuple[Path, DataFrame], spark: SparkSession, format: str) -> None:
    """Instants are instants, in whichever zone a session shows them."""
    try:
        for zone in ("Asia/Tokyo", "Europe/Berlin"):
            spark.conf.set("spark.sql.session.timeZone", zone)
            go_on(place, "fail", "id", "timestamp_seconds(id) at", format=format)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert pf.read_schema(place[0]).field("at").type == pa.timestamp("us", "UTC")
    assert pf.read(place[0]).to_table()["at"].type.tz == "UTC"


TYPED = (
    "concat('00', bucket) bucket",
    "id",
    "unhex('FF00') raw",
    "cast(id as decimal(9, 2)) price",
    "date'2024-02-29' day",
    "timestamp_ntz'2024-02-29 01:02:03.456789' at",
    "make_dt_interval(1, 2) span",
)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_read_spark_needs_no_schema(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Text has the types that it had before Spark wrote it; a directory's key that looks like a number is text."""
    write_source(tmp_path / "source", 1)
    df = stream(spark, tmp_path / "source").selectExpr(*TYPED)
    options = {"header": False, "separator": ";"} if format == "csv" else {}
    run(make_sink(tmp_path / "base", format=format, format_options=options), df, str(tmp_path / "spark"))
    found = pf.read_spark(spark, tmp_path / "base", format=format)
    assert {field.name: field.dataType for field in found.schema} == {field.name: field.dataType for field in df.schema}
    expected = spark.read.schema("id long, bucket long").json(str(tmp_path / "source"))
    expected = expected.selectExpr(*TYPED)
    assert sorted(found.select(expected.columns).collect()) == sorted(expected.collect())


def test_rows_of_several_types_need_a_schema(place: tuple[Path, DataFrame], spark: SparkSession) -> None:
    """The error names the column."""
    go_on(place, "roll", "id")
    go_on(place, "roll", "cast(id as string) id")
    with pytest.raises(ConfigError, match="have values of several types in 'id'"):
        pf.read_spark(spark, place[0], format="json")


@pytest.mark.parametrize(
    ("format", "options"),
    [("json", {}), ("csv", {"separator": "\t"}), ("csv", {"header": False}), ("parquet", {})],
)
def test_spark_reads_by_the_statement(
    spark: SparkSession, tmp_path: Path, format: str, options: dict[str, Any]
) -> None:
    """``partfile sql --engine spark`` makes a view with the rows and types that ``read_spark`` gives."""
    write_source(tmp_path / "source", 1)
    df = stream(spark, tmp_path / "source").selectExpr(*TYPED)
    base = tmp_path / "it's" / "sold rows"
    run(make_sink(base, format=format, format_options=options), df, str(tmp_path / "spark"))
    for statement in told("sql", base, "--engine", "spark").split(";\n")[:-1]:
        spark.sql(statement)
    found = spark.table("sold_rows")
    expected = spark.read.schema("id long, bucket long").json(str(tmp_path / "source")).selectExpr(*TYPED)
    if format == "parquet":
        expected = expected.withColumn("span", functions.lit(93_600_000_000))
    assert sorted(found.select(expected.columns).collect()) == sorted(expected.collect())
    spark.catalog.dropTempView("sold_rows")


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "orc"])
def test_spark_reads_what_has_evolved_by_the_statement(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Files from before a type was widened and a column added, below a path with brackets and braces."""
    base = tmp_path / "a [1] {b}"
    for columns in ({"n": pa.array([1], pa.int32())}, {"n": pa.array([2**40]), "raw": pa.array([b"\xff"])}):
        with pf.FileSink(base, uid="evolving", on_schema_change="evolve", format=format).local() as out:
            out.write(pa.table(columns))
    for statement in told("sql", base, "--engine", "spark").split(";\n")[:-1]:
        spark.sql(statement)
    found = spark.table("a_1_b")
    assert found.dtypes == [("n", "bigint"), ("raw", "binary")]
    assert sorted(map(tuple, found.collect())) == [(1, None), (2**40, b"\xff")]
    for view in ("a_1_b", "a_1_b_as_text"):
        spark.catalog.dropTempView(view)


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "orc"])
def test_read_spark_has_the_types_of_keys(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Text that looks like a number, a date, a decimal; of an instant the text, whatever the zone of the session."""
    keys = {
        "zip": pa.array(["007", "7"]),
        "price": pa.array(["1.50", "2.00"]).cast(pa.decimal128(9, 2)),
        "at": pa.array([0, 1_000_000], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    with pf.FileSink(tmp_path, uid="keys", format=format, bucketer=pf.HiveBucketer(*keys)).local() as out:
        out.write(pa.table({"id": [0, 1], **keys}))
    inferred = spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        rows = pf.read_spark(spark, tmp_path, format=format).sort("id").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [(row.zip, str(row.price), row["at"]) for row in rows] == [
        ("007", "1.50", "1970-01-01 00:00:00"),
        ("7", "2.00", "1970-01-01 00:00:01"),
    ]
    assert spark.conf.get("spark.sql.sources.partitionColumnTypeInference.enabled") == inferred


def test_csv_that_spark_would_read_wrongly_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark goes by the places of columns: another order, and a key that is kept in the files."""
    rows = pa.table({"k": ["a"], "x": ["1"], "y": ["2"]})
    for order in (["x", "y"], ["y", "x"]):
        with pf.FileSink(tmp_path / "moved", uid="moved", format="csv").local() as out:
            out.write(rows.select(order))
    with pytest.raises(ConfigError, match="with columns at several places"):
        pf.read_spark(spark, tmp_path / "moved", format="csv")
    bucketer = pf.HiveBucketer("k", keep_columns=True)
    with pf.FileSink(tmp_path / "kept", uid="kept", format="csv", bucketer=bucketer).local() as out:
        out.write(rows)
    with pytest.raises(ConfigError, match="'k' is in files of CSV and in their directories"):
        pf.read_spark(spark, tmp_path / "kept", format="csv")


def test_odd_names_of_binary_columns_are_decoded(spark: SparkSession, tmp_path: Path) -> None:
    """With a dot and a backtick in them."""
    with pf.FileSink(tmp_path, uid="odd", format="csv").local() as out:
        out.write(pa.table({"a.b`c": [b"\xff"], "n": [1]}))
    assert [tuple(row) for row in pf.read_spark(spark, tmp_path, format="csv").collect()] == [(b"\xff", 1)]
