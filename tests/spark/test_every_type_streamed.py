"""Every type that Spark sends through a real stream whose buckets share a stage, over several batches and two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_type import table_of_every_type
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from spark_files import arrow_of_task, rows_of
from spark_support import finished, make_sink, run, run_without_end, stream, write_source

import partfile as pf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
BUCKETS = 7
_PLACE = "CASE WHEN number IS NULL THEN 4 WHEN number < 2 THEN number WHEN number = 9007199254740993 THEN 2 ELSE 3 END"
"""Numbers the rows of the table from 0 to 4."""


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> Iterator[DataFrame]:
    """One table with every type that Spark sends, and the number of each row."""
    with table_of_every_type(spark) as table:
        yield table.withColumn("at", F.expr(_PLACE))


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("format", "compression"), [("parquet", None), ("avro", "zstd"), ("json", "snappy"), ("json", "zstd")]
)
def test_every_type_of_a_stream_is_read_back(
    spark: SparkSession, table: DataFrame, tmp_path: Path, format: str, compression: str | None
) -> None:
    """Each row once, in the bucket that it belongs to, with the values that it had."""
    base, source = tmp_path / "out", tmp_path / "source"
    kept = [name for name in table.columns if name != "at"]
    count = 0
    for go in (run_without_end, run):
        count = write_source(source, 2, 21, first=count)
        numbered = stream(spark, source).withColumn("at", F.col("id") % 5)
        joined = numbered.join(F.broadcast(table), "at").withColumn("part", F.col("id") % BUCKETS)
        options: dict[str, Any] = {"bucketer": pf.HiveBucketer("part"), "shared_stage_buckets": 2}
        sink = make_sink(base, format=format, compression=compression, **options)
        go(sink, joined.select("id", "part", *kept), str(tmp_path / "spark"))
        assert (finished(base) == []) is (go is run_without_end)
    files = finished(base)
    assert len({path.parent for path in files}) == BUCKETS
    assert len(files) < 4 * BUCKETS
    if format == "json":
        declared = spark.createDataFrame([], table.select(*kept).schema).schema.add("id", "long").add("part", "long")
        found = spark.read.schema(declared).option("mode", "FAILFAST").json(str(base)).toArrow()
    else:
        found = pf.read(base).to_table()
    ids = found["id"].to_pylist()
    assert sorted(ids) == list(range(count))
    assert found["part"].to_pylist() == [number % BUCKETS for number in ids]
    rows = arrow_of_task(table)
    wanted = rows.sort_by("at").take([number % 5 for number in ids])
    assert rows_of(found, kept) == rows_of(wanted, kept)


@pytest.mark.parametrize("most_buckets", [None, 1])
def test_a_stream_whose_columns_change_goes_on_in_other_files(
    spark: SparkSession, tmp_path: Path, most_buckets: int | None
) -> None:
    """A run adds a column and widens another: no file holds rows of both, and none is lost of what was open before."""
    base, source = tmp_path / "out", tmp_path / "source"
    first = write_source(source, 2, 30)
    sink = make_sink(base, format="parquet", shared_stage_buckets=most_buckets)
    narrow = stream(spark, source).withColumn("size", F.col("id").cast("int"))
    run_without_end(sink, narrow, str(tmp_path / "spark"))
    assert finished(base) == []
    count = write_source(source, 2, 30, first=first)
    wide = stream(spark, source).withColumns({"size": F.col("id"), "more": F.lit("x")})
    run(make_sink(base, format="parquet", shared_stage_buckets=most_buckets), wide, str(tmp_path / "spark"))
    tables = [pq.ParquetFile(path).read() for path in finished(base)]
    for table in tables:
        is_wide = "more" in table.column_names
        assert table.schema.field("size").type == (pa.int64() if is_wide else pa.int32())
        assert {number >= first for number in table["id"].to_pylist()} == {is_wide}
        assert table["size"].to_pylist() == table["id"].to_pylist()
    assert sorted(number for table in tables for number in table["id"].to_pylist()) == list(range(count))
