"""``partfile.read_spark`` returns the rows that every other reader returns, of the same trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, NotFound, SnapshotCorrupt
from support.files.trees import finished_of, rows, sidecars, write_tree
from support.sinks.life_cycle import continue_to, long_sink
from support.sinks.live_tree import FINISHED, live_tree

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMAS = {"text": None, "json": "id long, text string", "csv": "id long, text string"}
EXPECTED = sorted((text, bucket) for _, text, bucket in rows())


def texts_and_buckets(frame: DataFrame) -> list[tuple[str, str]]:
    """The rows by what every format has."""
    text = "text" if "text" in frame.columns else "value"
    return sorted((row[0], row[1]) for row in frame.select(text, "bucket").collect())


@pytest.mark.parametrize(
    ("format", "compression"),
    [("text", "gzip"), ("json", "zstd"), ("csv", None), ("csv", "snappy")],
)
def test_tails_are_no_rows(spark: SparkSession, format: str, compression: str | None, tmp_path: Path) -> None:
    """Files with and without a sidecar give every row once, with the schema of Spark's own reader."""
    base = tmp_path / "base [1] {x} 100% ü=y"
    write_tree(base, format, compression)
    assert len(sidecars(base)) == 7
    found = pf.read_spark(spark, base, format=format, schema=SCHEMAS[format])
    assert texts_and_buckets(found) == EXPECTED
    for sidecar in sidecars(base):
        content = finished_of(sidecar).read_bytes()[: int(sidecar.read_text())]
        finished_of(sidecar).write_bytes(content)
        sidecar.unlink()
    plain = pf.read_spark(spark, base, format=format, schema=SCHEMAS[format])
    assert texts_and_buckets(plain) == EXPECTED
    assert found.schema == plain.schema
    if format != "text":
        assert sorted(row.id for row in found.select("id").collect()) == list(range(len(EXPECTED)))


def test_without_a_sidecar_it_is_sparks_reader(spark: SparkSession, tmp_path: Path) -> None:
    """The plan has one scan and no Python, and typed partitions are Spark's."""
    for day in ("2013-01-01", "2013-01-02"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "part-0.json").write_text('{"id": 1}\n')
    frame = pf.read_spark(spark, tmp_path, format="json", schema="id long")
    assert frame.schema.simpleString() == "struct<id:bigint,day:date>"
    plan = frame._jdf.queryExecution().toString()
    assert "Union" not in plan
    assert "MapInArrow" not in plan
    (tmp_path / "day=2013-01-02" / "_part-0.json.valid-length").write_text("10")
    with (tmp_path / "day=2013-01-02" / "part-0.json").open("a") as file:
        file.write('{"id": 2}\n')
    cut = pf.read_spark(spark, tmp_path, format="json", schema="id long")
    assert cut.schema == frame.schema
    assert sorted(map(tuple, cut.collect())) == sorted(map(tuple, frame.where("id = 1").collect()))


def test_directories_that_are_no_partitions_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """Buckets by date are plain directories, which Spark looks into only when it is told to."""
    base = tmp_path / "base"
    for directory in ("2013-01-01", "2013-01-02/deeper"):
        (base / directory).mkdir(parents=True)
        (base / directory / "part-0.txt").write_text(f"{directory}\n")
    (base / "2013-01-01" / "_part-0.txt.valid-length").write_text("4")
    found = pf.read_spark(spark, base, format="text").collect()
    assert sorted(row.value for row in found) == ["2013", "2013-01-02/deeper"]


def test_every_type_comes_out_the_same_from_a_cut_file(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of a file with a sidecar are parsed as Spark parses a whole file: nulls, empty texts, quotes, line feeds."""
    columns: dict[str, Any] = {
        "whole": pa.array([1, None, -3], pa.int64()),
        "text": ["", None, 'q"uo,te\nsecond line\\'],
        "at": pa.array([0, 1_372_680_000_123_456, None], pa.timestamp("us", "UTC")),
        "price": pa.array(["1.10", None, "-0.05"]).cast(pa.decimal128(10, 2)),
        "real": [0.1, float("nan"), float("-inf")],
    }
    schema = "whole long, text string, at timestamp, price decimal(10,2), real double"
    for format in ("json", "csv"):
        base = tmp_path / format
        with pf.FileSink(base, uid="types", format=format).local() as out:
            out.write(pa.RecordBatch.from_pydict(columns))
        whole = pf.read_spark(spark, base, format=format, schema=schema).collect()
        assert len(whole) == 3
        (part,) = base.glob("part-*")
        part.with_name(f"_{part.name}.valid-length").write_text(str(part.stat().st_size))
        with part.open("ab") as file:
            file.write(b'{"whole": 9}\n9,,,,\n')
        cut = pf.read_spark(spark, base, format=format, schema=schema).collect()
        assert sorted(map(repr, cut)) == sorted(map(repr, whole))


def test_what_spark_cannot_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """By name: an absent path, a missing schema, options that would not hold, several shapes, a damaged sidecar."""
    with pytest.raises(NotFound, match="nowhere"):
        pf.read_spark(spark, tmp_path / "nowhere", format="text")
    with pytest.raises(ConfigError, match=r"(?s)json files do not say their schema: there are no checkpoints.*schema="):
        pf.read_spark(spark, tmp_path, format="json")
    continue_to(long_sink(tmp_path), 4)
    with pytest.raises(ConfigError, match="'lineSep' cannot be passed"):
        pf.read_spark(spark, tmp_path, format="text", options={"lineSep": ";"})
    (tmp_path / "_other").mkdir()
    (tmp_path / "_other" / "part.json").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match=r"format='csv', but the name of 'part.json' says 'json'"):
        pf.read_spark(spark, tmp_path / "_other", format="csv", schema="id long")
    for schema in ("id lng", ["id"], "", "long", "array<long>", "id long, id long"):
        with pytest.raises(ConfigError, match=r"is no schema|has no columns, or one name twice"):
            pf.read_spark(spark, tmp_path, format="text", schema=schema)
    with pytest.raises(ConfigError, match="is no mapping"):
        pf.read_spark(spark, tmp_path, format="text", options=cast("Any", ["header"]))
    assert pf.read_spark(spark, tmp_path, format="text", schema=pa.schema({"value": "string"})).columns[0] == "value"
    (tmp_path / "part-0.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="several shapes"):
        pf.read_spark(spark, tmp_path, format="text")
    (tmp_path / "part-0.txt").unlink()
    (part, *_) = (tmp_path / "bucket=b0").glob("part-*")
    part.with_name(f"_{part.name}.valid-length").write_text("many")
    with pytest.raises(SnapshotCorrupt, match="says b'many'"):
        pf.read_spark(spark, tmp_path, format="text")


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc", "text"])
def test_spark_reads_a_tree_that_a_sink_is_writing(spark: SparkSession, format: str, tmp_path: Path) -> None:
    """By itself, the base as a directory and its files by a glob: finished rows once, and the directories' keys."""
    reader = spark.read.option("header", "true").option("inferSchema", "true").format(format)
    with live_tree(tmp_path / "base", format):
        for path in (f"{tmp_path}/base", f"{tmp_path}/base/*/*.{'txt' if format == 'text' else format}"):
            found = reader.option("basePath", f"{tmp_path}/base").load(path).collect()
            assert sorted(int(row[0] if format == "text" else row["id"]) for row in found) == FINISHED
            assert {row["key"] for row in found} == {"k0", "k1", "k2"}
