"""Every Arrow type with its edges through the sink in each format: equal values and types."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import partfile as pf
from partfile.errors import ConfigError, PartfileError, UnsupportedTypeError
from partfile.readers.avro import AvroFile
from partfile.readers.streams import decompressed
from partfile.writers.base import RowFormat
from partfile.writers.columns import as_plain, plain_schema
from partfile.writers.json import JsonLinesFormat
from partfile.writers.registry import resolve_format
from support.files.columns import REFUSED, accepted_by, batch_of, type_in
from support.sinks.life_cycle import LONG, in_child

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


# Rows as text that tells apart what compares equal, such as 0.0 and -0.0, and joins what does not, such as NaN.

_JSON = JsonLinesFormat()


def plain_table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows without dictionaries, runs and views."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    schema = plain_schema(table.schema)
    return pa.Table.from_batches([as_plain(batch, schema) for batch in table.to_batches()], schema)


def texts_of(table: pa.Table) -> list[str]:
    """Each row as text: the form of JSON where there is one, which has all digits of each value."""
    columns = [list(_texts(table.column(name).combine_chunks())) for name in table.column_names]
    return [" ".join(row) for row in zip(*columns, strict=True)]


def _texts(column: Any) -> Iterator[str]:
    if isinstance(column, pa.ChunkedArray):
        for chunk in column.chunks:
            yield from _texts(chunk)
        return
    batch = pa.record_batch([column], names=["x"])
    try:
        _JSON.check(batch.schema)
    except UnsupportedTypeError:
        yield from map(str, column.to_pylist())
        return
    # By line feeds alone: text may hold what Python takes for the end of a line, too.
    yield from bytes(_JSON.encode(batch).data).decode().split("\n")[:-1]


# Every Arrow type with its edges through the sink in each format, staged, shared and not: equal values and types.

ROWS = 24
BUCKETS = 3
LARGE = LONG.model_copy(update={"max_part_bytes": 1 << 30})
"""Parts that nothing rolls, in which every slice of these tests is a small one."""
WAYS: dict[str, dict[str, Any]] = {
    "own": {"buckets_per_staging_file": None},
    "shared": {"buckets_per_staging_file": 1},
    "per checkpoint": {"columnar": "per_checkpoint"},
}
COLUMNAR = [(format, way) for format in ("parquet", "orc") for way in WAYS]
ROWWISE = [(format, way) for format in ("json", "csv", "avro") for way in ("own", "shared")]


def write(base: Path, format: str, way: str, rows: pa.RecordBatch, **options: Any) -> None:
    """Rows in turn for three buckets, in batches of odd sizes with empty ones between, over several checkpoints."""
    batch = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    batch = batch.append_column("k", pa.array([row % BUCKETS for row in range(rows.num_rows)], pa.int32()))
    fixed: dict[str, Any] = {"uid": "hard", "bucketer": pf.HiveBucketer("k"), "rolling": LARGE}
    with pf.FileSink(base, format=format, **(fixed | WAYS[way] | options)).local() as out:
        start = 0
        for size in (7, 0, 2, rows.num_rows):
            out.write(batch.slice(start, size))
            out.write(batch.slice(0, 0))
            out.checkpoint()
            start += size


def files_of(base: Path, bucket: int) -> list[Path]:
    """The finished files of a bucket, in the order in which they were begun."""
    return sorted(base.glob(f"k={bucket}/part-*"))


def read(path: Path) -> pa.Table:
    """A file by the reader that plain Python has for it."""
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read()
    if path.suffix == ".orc":
        return orc.read_table(path)
    file = AvroFile(io.BytesIO(path.read_bytes()), path.name)
    return pa.Table.from_batches(file.batches(), file.schema)


def differing(found: pa.Table, expected: pa.Table) -> list[str]:
    """The columns that hold other values than they should, once they are of the expected type."""
    names = []
    for name in expected.column_names:
        kind = expected.schema.field(name).type
        if texts_of(as_type(found.select([name]), kind)) != texts_of(expected.select([name])):
            names.append(name)
    return names


def as_type(column: pa.Table, kind: Any) -> pa.Table:
    """A table of one column in a type that has the same values."""
    plain = plain_table(column)
    return plain if plain.schema.types == [kind] else plain.cast(pa.schema([plain.schema.field(0).with_type(kind)]))


@pytest.mark.parametrize(("format", "way"), [*COLUMNAR, ("avro", "own"), ("avro", "shared")])
def test_every_type_reads_back_equal(tmp_path: Path, format: str, way: str) -> None:
    """Values and nulls of every column are in the files of their buckets, in their order."""
    rows = batch_of(accepted_by(format), ROWS)
    write(tmp_path, format, way, rows)
    for bucket in range(BUCKETS):
        files = files_of(tmp_path, bucket)
        assert len(files) == (1 if way != "per checkpoint" else 3 if bucket else 2)
        tables = [read(path) for path in files]
        found = pa.concat_tables(tables)
        numbers = list(range(bucket, ROWS, BUCKETS))
        assert found["row"].to_pylist() == numbers
        expected = plain_table(rows).take(numbers)
        assert found.drop_columns(["row"]).column_names == expected.column_names
        assert differing(found, expected) == []
        assert odd_types(format, tables[0].schema, rows.schema) == {}


@pytest.mark.fault("K3")
@pytest.mark.parametrize(("format", "way"), [*COLUMNAR, ("avro", "own"), ("avro", "shared")])
def test_every_type_reads_back_equal_after_a_kill(tmp_path: Path, format: str, way: str) -> None:
    """Values that were checkpointed by a process that is dead, and those that its successor adds."""
    rows = batch_of(accepted_by(format), ROWS)
    write_through_a_kill(tmp_path, format, way, rows)
    found = pa.concat_tables([read(path) for bucket in range(BUCKETS) for path in files_of(tmp_path, bucket)])
    found = found.sort_by("row")
    assert found["row"].to_pylist() == list(range(ROWS))
    assert differing(found, plain_table(rows)) == []
    assert odd_types(format, found.schema, rows.schema) == {}


@pytest.mark.fault("K3")
@pytest.mark.parametrize("way", WAYS)
def test_duckdb_and_polars_read_every_column_of_parquet_after_a_kill(tmp_path: Path, way: str) -> None:
    """But decimals of more than 38 digits."""
    names = accepted_by("parquet")
    kinds = dict(zip(names, plain_table(batch_of(names, ROWS)).schema.types, strict=True))
    wide = [name for name, kind in kinds.items() if pa.types.is_decimal256(kind)]
    assert len(wide) == 1
    kept = [name for name in names if name not in wide]
    write_through_a_kill(tmp_path / "duckdb", "parquet", way, batch_of(kept, ROWS))
    found = duckdb.read_parquet(f"{tmp_path}/duckdb/*/part-*.parquet").order("row").to_arrow_table()
    assert differing(found, plain_table(batch_of(kept, ROWS))) == []
    write_through_a_kill(tmp_path / "polars", "parquet", way, batch_of(kept, ROWS))
    frame = pl.read_parquet(f"{tmp_path}/polars/*/part-*.parquet").sort("row")
    assert differing(frame.to_arrow(), plain_table(batch_of(kept, ROWS))) == []


@pytest.mark.fault("K3")
@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize(("format", "way"), [case for case in ROWWISE if case[0] != "avro"])
def test_every_line_is_the_one_of_its_row_after_a_kill(
    tmp_path: Path, format: str, way: str, codec: str | None
) -> None:
    """Each line once, whichever process wrote it."""
    rows = batch_of(accepted_by(format), ROWS)
    write_through_a_kill(tmp_path, format, way, rows, compression=codec)
    form = resolve_format(format)
    assert isinstance(form, RowFormat)
    encoded = form.encode(rows.append_column("row", pa.array(range(ROWS), pa.int64())))
    for bucket in range(BUCKETS):
        found = []
        for path in files_of(tmp_path, bucket):
            with path.open("rb") as file:
                content = decompressed(file, path.name).read()
            found.append(content[content.index(b"\n") + 1 :] if format == "csv" else content)
        lines = [encoded.rows(row, row + 1) for row in range(bucket, ROWS, BUCKETS)]
        assert sorted(b"".join(found).splitlines()) == sorted(b"".join(map(bytes, lines)).splitlines())


def write_through_a_kill(base: Path, format: str, way: str, rows: pa.RecordBatch, **options: Any) -> None:
    """Rows of which a process checkpoints half and is killed behind some more; another process writes the rest."""
    batch = rows.append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    batch = batch.append_column("k", pa.array([row % BUCKETS for row in range(rows.num_rows)], pa.int32()))
    fixed: dict[str, Any] = {"uid": "hard", "bucketer": pf.HiveBucketer("k"), "rolling": LARGE}
    half = rows.num_rows // 2
    sink = pf.FileSink(base, format=format, **(fixed | WAYS[way] | options))

    def die() -> None:
        out = sink.local().open()
        out.write(batch.slice(0, half), position=half)
        out.checkpoint()
        out.write(batch.slice(half))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    with sink.local() as out:
        assert out.position == half
        out.write(batch.slice(half))


def odd_types(format: str, found: pa.Schema, written: pa.Schema) -> dict[str, str]:
    """The columns whose type is not the one that docs/FORMATS.md promises."""
    wanted = {name: type_in(format, written.field(name).type) for name in written.names}
    return {
        name: f"{found.field(name).type}, not {kind}" for name, kind in wanted.items() if found.field(name).type != kind
    }


@pytest.mark.parametrize("codec", [None, "zstd", "snappy"])
@pytest.mark.parametrize(("format", "way"), [case for case in ROWWISE if case[0] != "avro"])
def test_every_line_is_the_one_of_its_row(tmp_path: Path, format: str, way: str, codec: str | None) -> None:
    """A file is its header and the lines of its bucket's rows in order, whichever way they took."""
    rows = batch_of(accepted_by(format), ROWS)
    write(tmp_path, format, way, rows, compression=codec)
    form = resolve_format(format)
    assert isinstance(form, RowFormat)
    whole = rows.append_column("row", pa.array(range(ROWS), pa.int64()))
    encoded = form.encode(whole)
    for bucket in range(BUCKETS):
        (path,) = files_of(tmp_path, bucket)
        lines = b"".join(encoded.rows(row, row + 1) for row in range(bucket, ROWS, BUCKETS))
        header = ",".join(whole.schema.names).encode() + b"\n" if format == "csv" else b""
        with path.open("rb") as file:
            assert decompressed(file, path.name).read() == header + lines


REFUSING = [*((format, "own") for format in ("orc", "avro", "csv")), ("orc", "shared"), ("orc", "per checkpoint")]


@pytest.mark.parametrize(("format", "way"), REFUSING)
def test_what_a_format_has_no_form_for_is_refused_at_the_first_row(tmp_path: Path, format: str, way: str) -> None:
    """By an error of ours that names the column; and nothing of it is ever published."""
    # Types are refused before there is any way; values are where they would be written.
    for name in sorted(name for name in REFUSED[format] if way == "own" or name.endswith("_early")):
        with pytest.raises(PartfileError, match=f"'{name}'"):
            write(tmp_path, format, way, batch_of([name], 4))
    assert list(tmp_path.glob("k=*/part-*")) == []


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("format", "way"), [*COLUMNAR[:3], ("orc", "shared"), *ROWWISE])
def test_a_thousand_columns(tmp_path: Path, format: str, way: str) -> None:
    """As many as that are as good as few."""
    kinds: list[Any] = [pa.int64(), pa.string(), pa.float64(), pa.bool_()]
    schema = pa.schema({f"c{at}": kinds[at % 4] for at in range(1000)})
    values = [[at, f"{at}", at / 2, None] for at in range(1000)]
    rows = pa.RecordBatch.from_pylist(
        [{f"c{at}": values[at][at % 4] if row % 5 else None for at in range(1000)} for row in range(9)], schema
    )
    write(tmp_path, format, way, rows)
    assert found_texts(tmp_path, format, schema) == texts_of(plain_table(rows))


@pytest.mark.drawn
@pytest.mark.parametrize(("format", "way"), [*COLUMNAR, *ROWWISE])
def test_texts_of_a_megabyte(tmp_path: Path, format: str, way: str) -> None:
    """A row that is as large as a message, a block or a chunk of lines is whole."""
    schema = pa.schema({"text": pa.string()})
    rows = pa.RecordBatch.from_pylist([{"text": chr(97 + row) * ((1 << 20) + row)} for row in range(9)], schema)
    write(tmp_path, format, way, rows)
    assert found_texts(tmp_path, format, schema) == texts_of(plain_table(rows))


def found_texts(base: Path, format: str, schema: pa.Schema) -> list[str]:
    """Every row in the order in which it was written, read by ``partfile.read``."""
    options: dict[str, Any] = {}
    if format == "json":
        options["format"] = pa.dataset.JsonFileFormat(read_options=pa.json.ReadOptions(block_size=16 << 20))
    if format == "csv":
        options["format"] = pa.dataset.CsvFileFormat(
            read_options=pa.csv.ReadOptions(block_size=16 << 20),
            convert_options=pa.csv.ConvertOptions(
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
    whole = schema.append(pa.field("row", pa.int64()))
    return texts_of(pf.read(base, schema=whole, **options).to_table().sort_by("row").select(schema.names))


@pytest.mark.parametrize(("format", "way"), [*COLUMNAR, *ROWWISE])
def test_buckets_without_rows_get_no_file(tmp_path: Path, format: str, way: str) -> None:
    """Names that a bucketer lists and gives no row are no directories, and a batch without rows is no part."""

    def bucket(batch: pa.RecordBatch) -> Any:
        names = pa.array(["none", "b0", "nobody", "b1", "b2", "nothing"])
        return pa.DictionaryArray.from_arrays(pa.array([1 + row % 2 * 2 for row in batch["row"].to_pylist()]), names)

    rows = pa.record_batch({"n": range(8)})
    write(tmp_path, format, way, rows, bucketer=bucket)
    assert {path.parent.name for path in tmp_path.rglob("part-*")} == {"b0", "b1"}
    write(tmp_path / "empty", format, way, rows.slice(0, 0), bucketer=bucket)
    assert list((tmp_path / "empty").rglob("*part-*")) == []


def required(kind: Any, values: Iterable[Any]) -> pa.RecordBatch:
    """A batch whose only column says that it holds no null, and may hold one all the same."""
    schema = pa.schema([pa.field("n", kind, nullable=False)])
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], schema=schema)


@pytest.mark.drawn
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("format", ["parquet", "orc", "avro", "json"])
def test_a_null_that_the_schema_forbids_is_no_staging_file_that_cannot_be_encoded(
    tmp_path: Path, format: str, way: str
) -> None:
    """It is refused with its row, or written as a null where the format keeps no such promise."""
    some = pa.field("item", pa.int64(), nullable=False)
    cases: dict[str, tuple[Any, list[Any]]] = {
        "plain": (pa.int64(), [1, None, 3]),
        "item": (pa.list_(some), [[1], [None], []]),
        "field": (pa.struct([some]), [{"item": 1}, {"item": None}, {"item": 2}]),
        "value": (pa.map_(pa.string(), some.with_name("value")), [[("a", 1)], [], [("b", None)]]),
    }
    for name, (kind, values) in cases.items():
        base = tmp_path / name
        try:
            write(base, format, way, required(kind, values))
        except ConfigError as error:
            refused = str(error)
        else:
            refused = ""
        if format in {"parquet", "avro"}:
            assert any(f"'{named}'" in refused for named in ("n", "item", "value"))
            assert list(base.glob("k=*/part-*")) == []
        else:
            assert refused == ""
            assert pf.read(base).count_rows() == 3
    # What is below a null does not count.
    within = pa.struct([pa.field("in", pa.struct([some]))])
    write(tmp_path / "fine", format, way, required(within, [{"in": {"item": 1}}, {"in": None}, {"in": {"item": 2}}]))
    assert pf.read(tmp_path / "fine").count_rows() == 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("format", ["parquet", "avro"])
def test_seconds_that_milliseconds_cannot_count_are_refused_with_their_row(
    tmp_path: Path, format: str, way: str
) -> None:
    """Both formats count milliseconds instead, and a staging file must not hold what cannot be encoded."""
    seconds = pa.array([2**60, None, -(2**60)], pa.int64()).view(pa.timestamp("s"))
    for at, values in enumerate((seconds, pa.StructArray.from_arrays([seconds], names=["at"]))):
        with pytest.raises(ConfigError, match=r"overflow|without a loss"):
            write(tmp_path / str(at), format, way, pa.record_batch([values], names=["n"]))
    assert list(tmp_path.rglob("k=*/part-*")) == []


# A null struct whose fields are never null: as Spark hands it over, with nulls in the fields, and in every nesting.

_STRUCT = pa.struct([pa.field("x", pa.int32(), nullable=False)])
_STRUCTS = pa.StructArray.from_arrays(
    [pa.array([1, None, 3], pa.int32())], fields=list(_STRUCT), mask=pa.array([False, True, False])
)
_COLUMNS = {
    "struct": _STRUCTS,
    "in a list": pa.ListArray.from_arrays([0, 1, 2, 3], _STRUCTS),
    "in a map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), _STRUCTS),
    "in a struct": pa.StructArray.from_arrays([_STRUCTS], fields=[pa.field("s", _STRUCT)]),
}


@pytest.mark.parametrize("shared", [1, None])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("column", _COLUMNS)
def test_a_null_struct_is_written_though_its_fields_are_never_null(
    tmp_path: Path, column: str, format: str, columnar: Any, shared: int | None
) -> None:
    """The rows come back as they were: a null struct, and the others with their values."""
    rows = pa.record_batch([pa.array([0, 1, 0]), _COLUMNS[column]], names=["k", "c"])
    options: dict[str, Any] = {"columnar": columnar, "buckets_per_staging_file": shared}
    sink = pf.FileSink(tmp_path, uid="u", format=format, bucketer=pf.HiveBucketer("k"), **options)
    with sink.local() as out:
        out.write(rows)
    found = pf.read(tmp_path, format=format).to_table().sort_by("k")
    values = _COLUMNS[column].to_pylist()
    assert sorted(map(str, found["c"].to_pylist())) == sorted(map(str, values))


def test_a_null_where_there_may_be_none_is_refused_all_the_same(tmp_path: Path) -> None:
    """Only what lies below a null counts as null: a null in a struct that is there is the user's mistake."""
    wrong = pa.StructArray.from_arrays([pa.array([1, None], pa.int32())], fields=list(_STRUCT))
    schema = pa.schema([pa.field("c", _STRUCT, nullable=False)])
    rows = pa.RecordBatch.from_arrays([wrong], schema=schema)
    with pf.FileSink(tmp_path, uid="u", format="parquet").local() as out, pytest.raises(pf.ConfigError, match="'c'"):
        out.write(rows)


# Columns that change in mid-stream: each schema has parts of its own, and no row is in a file of another.


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


@pytest.mark.drawn
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


@pytest.mark.drawn
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
    kinds = {"n": pa.int64(), "s": pa.string(), "row": pa.int64(), "x": pa.float64(), "k": pa.int64()}
    assert {field.name: field.type for field in found.schema} == kinds
    table = found.to_table().sort_by("row")
    assert table["n"].to_pylist() == [7] * 18
    assert table["s"].to_pylist() == ["7"] * 15 + [None] * 3
    assert table["x"].to_pylist() == [None] * 3 + [7.5] * 3 + [None] * 12


def unions() -> dict[str, pa.Array[Any]]:
    """Types that no format has a form for, where Arrow has no empty column of them."""
    union = pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    )
    sparse = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    ends = pa.array([0, 1, 2], pa.int32())
    return {
        "dense": union,
        "sparse": sparse,
        "in_list": pa.ListArray.from_arrays(ends, union),
        "in_struct": pa.StructArray.from_arrays([sparse], names=["f"]),
        "in_map": pa.MapArray.from_arrays(ends, pa.array(["k", "k"]), union),
    }


@pytest.mark.parametrize("format", ["parquet", "orc", "avro", "json", "csv"])
@pytest.mark.parametrize("name", unions())
def test_a_type_that_arrow_has_no_empty_column_of_is_refused_by_name(tmp_path: Path, format: str, name: str) -> None:
    """The error is ours, whatever Arrow itself does with the type."""
    with pytest.raises(UnsupportedTypeError, match=f"'{name}'"):
        write(tmp_path, format, "own", pa.record_batch({name: unions()[name]}))
    assert list(tmp_path.glob("k=*")) == []


@pytest.mark.parametrize("format", ["json", "csv"])
@pytest.mark.parametrize(("kind", "ticks"), [("time32[s]", 86_400), ("time32[ms]", -1), ("time64[ns]", 86_400 * 10**9)])
def test_a_time_outside_a_day_is_refused_with_its_row(tmp_path: Path, format: str, kind: str, ticks: int) -> None:
    """Arrow holds it, and writes a text for it that no reader takes for a time."""
    unit = kind[7:-1]
    of = pa.time32(unit) if kind.startswith("time32") else pa.time64(unit)
    values = pa.array([0, None, ticks], pa.int32() if kind.startswith("time32") else pa.int64()).view(of)
    with pytest.raises(ConfigError, match="lies outside a day"):
        write(tmp_path, format, "own", pa.record_batch({"v": values}))
    assert list(tmp_path.glob("k=*/part-*")) == []


@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_a_large_batch_is_written_in_the_order_of_its_rows(tmp_path: Path, format: str) -> None:
    """It is encoded slice by slice; each bucket has its rows once, in their order."""
    rows = 40_000
    rng = np.random.default_rng(rows)
    where = rng.integers(0, 3, rows)
    columns = {"v": [f"row-{number:06d}" for number in range(rows)]}
    sink = pf.FileSink(tmp_path, uid="u", format=format, bucketer=pf.HiveBucketer("k"))
    with sink.local() as out:
        out.write(pa.record_batch({"k": where.astype(str), **columns}))
        out.checkpoint()
    for bucket in range(3):
        (path,) = (tmp_path / f"k={bucket}").glob("part-*")
        told = re.findall(rb"row-[0-9]{6}", path.read_bytes())
        assert told == [f"row-{number:06d}".encode() for number in np.flatnonzero(where == bucket)]
