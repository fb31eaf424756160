"""Columns that change in mid-stream: each schema has parts of its own, and no row is in a file of another."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import partfile as pf
from partfile.readers.avro import AvroFile
from support.life_cycle import LONG

if TYPE_CHECKING:
    from pathlib import Path


NUMBER = pa.field("n", pa.int32())
TEXT = pa.field("s", pa.string())
SCHEMAS: dict[str, list[pa.Field[Any]]] = {
    "first": [NUMBER, TEXT],
    "new column": [NUMBER, TEXT, pa.field("x", pa.float64())],
    "fewer columns": [NUMBER],
    "widened": [NUMBER.with_type(pa.int64()), TEXT],
    "narrowed": [NUMBER.with_type(pa.int16()), TEXT],
    "another type": [NUMBER.with_type(pa.string()), TEXT],
    "renamed": [NUMBER.with_name("m"), TEXT],
    "required": [NUMBER.with_nullable(nullable=False), TEXT],
    "another order": [TEXT, NUMBER],
    "nested": [NUMBER, pa.field("s", pa.struct([TEXT]))],
    "nested and wider": [NUMBER, pa.field("s", pa.struct([TEXT, NUMBER]))],
}
NAMES = list(SCHEMAS)
BUCKETS = 3
WAYS: dict[str, dict[str, Any]] = {
    "own": {"buckets_per_staging_file": None},
    "shared": {"buckets_per_staging_file": 1},
    "per checkpoint": {"columnar": "per_checkpoint"},
}
CASES = [
    *((format, way) for format in ("parquet", "orc") for way in WAYS),
    *((format, way) for format in ("json", "csv", "avro") for way in ("own", "shared")),
]


def names_for(format: str) -> list[str]:
    """The schemas that a format takes."""
    return [name for name in NAMES if format != "csv" or "nested" not in name]


def batch(name: str, first: int) -> pa.RecordBatch:
    """A row for each bucket, of one of the schemas; their numbers go on from ``first``."""
    numbers = range(first, first + BUCKETS)
    values: dict[str, Any] = {"int": 7, "stru": {"s": "a", "n": 7}, "str": "7", "dou": 7.5}
    columns = {}
    for field in SCHEMAS[name]:
        value = next(value for start, value in values.items() if str(field.type).startswith(start))
        if pa.types.is_struct(field.type):
            value = {each.name: value[each.name] for each in field.type}
        columns[field.name] = pa.array([value] * BUCKETS, field.type)
    columns["row"] = pa.array(numbers, pa.int64())
    columns["k"] = pa.array([number % BUCKETS for number in numbers])
    return pa.RecordBatch.from_arrays(
        list(columns.values()), schema=file_schema(name).append(pa.field("k", pa.int64()))
    )


def file_schema(name: str) -> pa.Schema:
    """What a file of one of the schemas holds."""
    return pa.schema([*SCHEMAS[name], pa.field("row", pa.int64())])


def sink(base: Path, format: str, way: str, **options: Any) -> pf.FileSink:
    return pf.FileSink(
        base, uid="changes", format=format, bucketer=pf.HiveBucketer("k"), rolling=LONG, **(WAYS[way] | options)
    )


def content(path: Path) -> tuple[Any, list[int]]:
    """What a file says of its columns, and the numbers of its rows."""
    if path.suffix == ".parquet":
        table = pq.ParquetFile(path).read()
        return table.schema, table["row"].to_pylist()
    if path.suffix == ".orc":
        table = orc.read_table(path)
        return table.schema, table["row"].to_pylist()
    if path.suffix == ".avro":
        file = AvroFile(io.BytesIO(path.read_bytes()), path.name)
        return file.schema, pa.Table.from_batches(file.batches())["row"].to_pylist()
    lines = path.read_text().splitlines()
    if path.suffix == ".csv":
        return lines[0].split(","), [int(line.rpartition(",")[2]) for line in lines[1:]]
    rows = [json.loads(line) for line in lines]
    (names,) = {tuple(row) for row in rows}
    return list(names), [row["row"] for row in rows]


def said(name: str, format: str) -> Any:
    """What a file of one of the schemas says of its columns."""
    schema = file_schema(name)
    if format in {"json", "csv"}:
        return schema.names
    if format == "orc":
        return pa.schema([field.with_nullable(nullable=True) for field in schema])
    if format == "avro":
        wide = {pa.int16(): pa.int32()}
        return pa.schema([field.with_type(wide.get(field.type, field.type)) for field in schema])
    return schema


def check(base: Path, format: str, written: dict[int, str], *, files: int | None) -> None:
    """Every row is in one file, beside rows of its own schema alone, under the columns of that schema."""
    found: Counter[int] = Counter()
    paths = sorted(base.glob("k=*/part-*"))
    for path in paths:
        columns, numbers = content(path)
        found.update(numbers)
        assert {f"k={number % BUCKETS}" for number in numbers} == {path.parent.name}
        (name,) = {written[number] for number in numbers}
        assert columns == said(name, format), name
    assert found == Counter(written.keys())
    if files is not None:
        assert len(paths) == files


@pytest.mark.parametrize(("format", "way"), CASES)
def test_each_schema_has_parts_of_its_own(tmp_path: Path, format: str, way: str) -> None:
    """Schemas that take turns, in a checkpoint and over several, never meet in a file; each goes on with its own."""
    written: dict[int, str] = {}
    with sink(tmp_path, format, way).local() as out:
        for turn in range(3):
            for name in names_for(format):
                rows = batch(name, len(written))
                written |= dict.fromkeys(rows["row"].to_pylist(), name)
                out.write(rows)
                if turn == 1:
                    out.checkpoint()
            out.write(batch("new column" if turn else "first", 0).slice(0, 0))
            out.checkpoint()
    few = BUCKETS * len(names_for(format))
    check(tmp_path, format, written, files=3 * few if way == "per checkpoint" else few)


@pytest.mark.parametrize(("format", "way"), [case for case in CASES if case[1] != "per checkpoint"])
def test_a_run_with_another_schema_goes_on_beside_what_was_kept(tmp_path: Path, format: str, way: str) -> None:
    """Parts kept by a clean stop are gone on with by rows of their own schema alone, in whichever run they come."""
    written: dict[int, str] = {}
    for name in (*names_for(format), "first"):
        with sink(tmp_path, format, way, on_stop="keep").local() as out:
            rows = batch(name, len(written))
            written |= dict.fromkeys(rows["row"].to_pylist(), name)
            out.write(rows)
    assert list(tmp_path.glob("k=*/part-*")) == []
    with sink(tmp_path, format, way).local():
        pass
    check(tmp_path, format, written, files=BUCKETS * len(names_for(format)))


def test_a_dataset_of_all_schemas_is_told_apart_or_refused(tmp_path: Path) -> None:
    """Wider columns are read as the widest; a schema that is given decides where files disagree."""
    with sink(tmp_path, "avro", "own").local() as out:
        for at, name in enumerate(("first", "new column", "widened", "required", "another order", "fewer columns")):
            out.write(batch(name, BUCKETS * at))
    found = pf.read(tmp_path)
    kinds = {"n": pa.int64(), "s": pa.string(), "row": pa.int64(), "x": pa.float64(), "k": pa.int32()}
    assert {field.name: field.type for field in found.schema} == kinds
    table = found.to_table().sort_by("row")
    assert table["n"].to_pylist() == [7] * 18
    assert table["s"].to_pylist() == ["7"] * 15 + [None] * 3
    assert table["x"].to_pylist() == [None] * 3 + [7.5] * 3 + [None] * 12
