"""Odd batches through every format, the columnar ones by way of a staging file.

Equal values, types and nulls everywhere.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

import partfile as pf
from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.arrow_staging import StagingFormat, read_staging_file
from partfile.writers.base import BulkFormat
from partfile.writers.registry import resolve_format

if TYPE_CHECKING:
    from pathlib import Path


_NESTED = pa.schema(
    {
        "list": pa.list_(pa.int32()),
        "point": pa.struct({"x": pa.float64(), "names": pa.list_(pa.string()), "in": pa.struct({"y": pa.int64()})}),
        "deep": pa.list_(pa.struct({"a": pa.list_(pa.list_(pa.int8()))})),
    }
)
_NESTED_ROWS: list[dict[str, Any]] = [
    {
        "list": [1, None],
        "point": {"x": 0.5, "names": [None, "é"], "in": {"y": 1}},
        "deep": [None, {"a": [[1], None, []]}],
    },
    {"list": None, "point": None, "deep": None},
    {"list": [], "point": {"x": None, "names": [], "in": None}, "deep": []},
    {"list": [7], "point": {"x": 1.0, "names": None, "in": {"y": None}}, "deep": [{"a": None}]},
]
_SCALARS = pa.schema(
    {
        "truth": pa.bool_(),
        "tiny": pa.int8(),
        "long": pa.int64(),
        "single": pa.float32(),
        "double": pa.float64(),
        "price": pa.decimal128(38, 18),
        "text": pa.string(),
        "raw": pa.binary(),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
    }
)
_MOMENT = dt.datetime.fromisoformat("2024-02-29T01:02:03.000004")
_SCALAR_ROWS = [
    dict(zip(_SCALARS.names, row, strict=True))
    for row in [
        (
            True,
            -128,
            2**63 - 1,
            0.5,
            -0.0,
            Decimal("1.000000000000000001"),
            "é漢😀",
            b"\x00\xff",
            dt.date(1600, 2, 29),
            None,
        ),
        (None,) * 10,
        (False, 127, -(2**63), -1.5, 1e300, Decimal(-(10**19)), "", b"", dt.date(2200, 12, 31), _MOMENT),
    ]
]
_WIDE = pa.schema({f"c{at}": [pa.int64(), pa.string(), pa.float64(), pa.bool_()][at % 4] for at in range(1000)})
_WIDE_ROWS = [{f"c{at}": [at + row, f"{at}", at / 2, None][at % 4] for at in range(1000)} for row in range(3)]
_LONG = pa.schema({"s": pa.string(), "n": pa.int8()})
_LONG_ROWS: list[dict[str, Any]] = [{"s": chr(97 + at) * (1 << 20), "n": at} for at in range(5)] + [
    {"s": "", "n": None}
]

_CASES: dict[str, tuple[pa.Schema, list[dict[str, Any]]]] = {
    "nested": (_NESTED, _NESTED_ROWS),
    "scalars": (_SCALARS, _SCALAR_ROWS),
    "all null": (_SCALARS, [dict.fromkeys(_SCALARS.names)] * 3),
    "1000 columns": (_WIDE, _WIDE_ROWS),
    "1 MB strings": (_LONG, _LONG_ROWS),
    "no rows": (_SCALARS, []),
}


def _write(name: str, schema: pa.Schema, rows: list[dict[str, Any]], memory_part: Any) -> bytes:
    """A file whose rows came singly and with empty batches between, over several persists."""
    form = resolve_format(name)
    form.check(schema)
    is_bulk = isinstance(form, BulkFormat)
    opened = StagingFormat(form) if isinstance(form, BulkFormat) else form
    opened.check(schema)
    part = memory_part()
    batch = pa.RecordBatch.from_pylist(rows, schema)
    for at in range(len(rows) + 1):
        writer = opened.open(part, schema)
        writer.write(batch.slice(at, 0))
        writer.write(batch.slice(at, 1))
        writer.persist()
    if not is_bulk:
        return bytes(part.data)
    staged, batches = read_staging_file(io.BytesIO(part.data), part.position)
    encoded = memory_part()
    assert form.encode(batches, staged, encoded) == len(rows)  # type: ignore[attr-defined]
    return bytes(encoded.data)


@pytest.mark.parametrize("case", _CASES)
def test_parquet_reads_back_everywhere(case: str, tmp_path: Path, memory_part: Any) -> None:
    """Values, nulls and types in pyarrow, DuckDB and polars are those that were written."""
    schema, rows = _CASES[case]
    path = tmp_path / "part.parquet"
    path.write_bytes(_write("parquet", schema, rows, memory_part))
    table = pq.read_table(path)
    assert table.schema.equals(schema)
    assert table.to_pylist() == rows
    frame = pl.read_parquet(path)
    assert frame.schema == pl.DataFrame(schema.empty_table()).schema
    assert frame.to_dicts() == rows
    # What DuckDB makes of the same table in memory is what it should make of the file.
    found = duckdb.read_parquet(str(path))
    assert found.types == duckdb.from_arrow(schema.empty_table()).types
    assert [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()] == rows


@pytest.mark.parametrize("case", _CASES)
def test_orc_reads_back(case: str, memory_part: Any) -> None:
    """Values and nulls are those that were written; types too, but for timestamps, which come in nanoseconds."""
    schema, rows = _CASES[case]
    table = orc.read_table(pa.BufferReader(_write("orc", schema, rows, memory_part)))
    assert table.cast(schema).to_pylist() == rows
    assert [kind for kind in table.schema.types if not pa.types.is_timestamp(kind)] == [
        kind for kind in schema.types if not pa.types.is_timestamp(kind)
    ]


@pytest.mark.parametrize("case", _CASES)
def test_avro_reads_back(case: str, memory_part: Any) -> None:
    """Values and nulls are those that were written, in fastavro and in polars."""
    schema, rows = _CASES[case]
    data = _write("avro", schema, rows, memory_part)
    assert list(fastavro.reader(io.BytesIO(data))) == rows
    if rows:  # polars panics over a file without a block.
        assert pl.read_avro(io.BytesIO(data)).to_dicts() == rows


@pytest.mark.parametrize("case", ["nested", "all null", "1000 columns", "1 MB strings", "no rows"])
def test_json_reads_back(case: str, memory_part: Any) -> None:
    """Values and nulls are those that were written; scalars have forms of their own, which other tests read."""
    schema, rows = _CASES[case]
    data = _write("json", schema, rows, memory_part)
    assert [json.loads(line) for line in data.splitlines()] == rows
    if case in {"nested", "1000 columns"}:  # polars has no small integers in JSON.
        assert pl.read_ndjson(io.BytesIO(data), schema=pl.DataFrame(schema.empty_table()).schema).to_dicts() == rows


@pytest.mark.parametrize("case", ["all null", "1000 columns", "1 MB strings", "no rows"])
def test_csv_reads_back(case: str, tmp_path: Path, memory_part: Any) -> None:
    """Values and nulls are those that were written, as DuckDB reads them with the documented options."""
    schema, rows = _CASES[case]
    path = tmp_path / "part.csv"
    path.write_bytes(_write("csv", schema, rows, memory_part))
    kinds = duckdb.from_arrow(schema.empty_table())
    columns = {name: str(kind) for name, kind in zip(kinds.columns, kinds.types, strict=True)}
    query = (
        "select * from read_csv($path, columns=$columns, header=true, delim=',', quote='\"', escape='\"', nullstr='', "
        "allow_quoted_nulls=false, auto_detect=false, new_line='\\n', max_line_size=4000000)"
    )
    found = duckdb.execute(query, {"path": str(path), "columns": columns})
    names = [each[0] for each in found.description]
    assert [dict(zip(names, row, strict=True)) for row in found.fetchall()] == rows


_DAY = dt.date(2024, 2, 29)
_UNION = pa.dense_union([pa.field("a", pa.int32()), pa.field("b", pa.string())])
_TWICE = pa.struct([pa.field("x", pa.int32()), pa.field("x", pa.string())])
_NEGATIVE = pa.decimal128(5, -2)


def _around(kind: pa.DataType) -> dict[str, pa.DataType]:
    """A type at the top and in each kind of nested column."""
    return {
        "top": kind,
        "list": pa.list_(kind),
        "large list": pa.large_list(kind),
        "fixed list": pa.list_(kind, 1),
        "struct": pa.struct([pa.field("f", kind)]),
        "map": pa.map_(pa.string(), kind),
        "list of structs": pa.list_(pa.struct([pa.field("f", kind)])),
    }


def _in(place: str, value: Any) -> Any:
    """A value as a column of that type has it."""
    if place == "struct":
        return {"f": value}
    if place == "map":
        return [("k", value)]
    return value if place == "top" else [{"f": value}] if place == "list of structs" else [value]


@pytest.mark.parametrize("name", ["parquet", "orc", "avro", "json"])
@pytest.mark.parametrize("place", _around(_UNION))
@pytest.mark.parametrize("kind", [_UNION, _TWICE, _NEGATIVE], ids=["union", "name twice", "negative scale"])
def test_what_no_reader_gets_back_is_refused_by_name(kind: pa.DataType, place: str, name: str) -> None:
    """Unions, doubled names and negative scales, wherever they are; ORC would end the process over the last."""
    schema = pa.schema({"ok": pa.int8(), "bad": _around(kind)[place]})
    form = resolve_format(name)
    with pytest.raises(UnsupportedTypeError, match="bad"):
        form.check(schema)
    if isinstance(form, BulkFormat):
        with pytest.raises(UnsupportedTypeError, match="bad"):
            StagingFormat(form).check(schema)


@pytest.mark.parametrize("name", ["parquet", "orc"])
@pytest.mark.parametrize("place", _around(pa.date64()))
def test_days_in_milliseconds_read_back_as_days(place: str, name: str, tmp_path: Path, memory_part: Any) -> None:
    """Nested as well, also from a staging file; below a null there is no day to refuse."""
    kind = _around(pa.date64())[place]
    schema, rows = pa.schema({"day": kind}), [{"day": _in(place, _DAY)}, {"day": None}]
    path = tmp_path / "part"
    path.write_bytes(_write(name, schema, rows, memory_part))
    table = pq.read_table(path) if name == "parquet" else orc.read_table(path)
    assert table.to_pylist() == rows
    assert "timestamp" not in str(table.schema)


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_the_second_in_which_nanoseconds_begin_is_refused(form: str, zone: str | None, tmp_path: Path) -> None:
    """Pyarrow reads its text as damage; the next second is read back equal."""
    first_ns = -9_223_372_036 * 10**9
    sink = pf.FileSink(tmp_path, uid="u", format=form)
    kind = pa.timestamp("ns", zone)
    with sink.local() as out, pytest.raises(ConfigError, match="before 1677-09-21T00:12:44"):
        out.write(pa.table({"at": pa.array([first_ns - 1], kind)}))
    with sink.local() as out:
        out.write(pa.table({"at": pa.array([first_ns, 0], kind)}))
    assert pf.read(tmp_path).to_table()["at"].cast("int64").to_pylist() == [first_ns, 0]


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (pa.timestamp("us", "America/New_York"), -62_167_219_200_000_000, 253_402_300_799_999_999),
        (pa.timestamp("s"), -62_167_219_200, 253_402_300_799),
        (pa.date32(), -719_528, 2_932_896),
    ],
    ids=str,
)
def test_years_that_readers_take_from_no_text_are_refused(
    form: str, kind: pa.DataType, first: int, last: int, tmp_path: Path
) -> None:
    """In UTC, as they are written; the values beside them are read back equal."""
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    sink = pf.FileSink(tmp_path, uid="u", format=form)
    for odd in (first - 1, last + 1):
        column = pa.array([0, odd], whole).view(kind)
        with sink.local() as out, pytest.raises(ConfigError, match=r"Column 'at'.*outside the years") as refused:
            out.write(pa.table({"at": column}))
        assert f"column.cast('{whole}')" in refused.value.hint
        assert column.cast(whole).to_pylist() == [0, odd]
    with sink.local() as out:
        out.write(pa.table({"at": pa.array([first, last], whole).view(kind)}))
    assert pf.read(tmp_path).to_table()["at"].cast(whole).to_pylist() == [first, last]


@pytest.mark.parametrize("name", ["parquet", "orc", "avro"])
def test_files_of_sessions_in_several_zones_are_one_dataset(name: str, tmp_path: Path) -> None:
    """Every instant is in UTC, at the top and nested; a zone that there is not does no harm."""
    sink = pf.FileSink(tmp_path, uid="u", format=name, on_schema_change="fail")
    for number, zone in enumerate(("Etc/UTC", "Europe/Berlin", "+02:00", "Mars/Gale")):
        at = pa.array([number], pa.timestamp("us", zone))
        with sink.local() as out:
            out.write(pa.table({"at": at, "all": pa.ListArray.from_arrays([0, 1], at)}))
    found = pf.read(tmp_path).to_table().sort_by("at")
    # pyarrow reads every instant of ORC in nanoseconds.
    utc = pa.timestamp("ns" if name == "orc" else "us", "UTC")
    assert found.schema.types == [utc, pa.list_(utc)]
    assert found["at"].cast(pa.timestamp("us", "UTC")).cast("int64").to_pylist() == [0, 1, 2, 3]
    if name == "parquet":
        assert len(pl.read_parquet(f"{tmp_path}/part-*.parquet")) == 4


@pytest.mark.parametrize("name", ["parquet", "orc", "avro", "json"])
@pytest.mark.parametrize("place", _around(pa.date64()))
@pytest.mark.parametrize("ticks", [(1 << 31) * 86_400_000, 86_400_001], ids=["too far", "no whole day"])
def test_milliseconds_that_are_no_day_are_refused_with_their_batch(
    ticks: int, place: str, name: str, memory_part: Any
) -> None:
    """Arrow's Parquet writer would write another day, without a word."""
    wrong = pa.array([ticks], pa.int64()).view(pa.date64())
    batch = pa.record_batch([_nested(place, wrong)], names=["day"])
    form = resolve_format(name)
    opened = StagingFormat(form) if isinstance(form, BulkFormat) else form
    opened.check(batch.schema)
    writer = opened.open(memory_part(), batch.schema)
    with pytest.raises(ConfigError, match=r"Column 'day' .*date64"):
        writer.write(batch)


def _nested(place: str, values: Any) -> Any:
    """One row of one value, as a column of that type."""
    structs = pa.StructArray.from_arrays([values], names=["f"])
    return {
        "top": lambda: values,
        "list": lambda: pa.ListArray.from_arrays([0, 1], values),
        "large list": lambda: pa.LargeListArray.from_arrays([0, 1], values),
        "fixed list": lambda: pa.FixedSizeListArray.from_arrays(values, 1),
        "struct": lambda: structs,
        "map": lambda: pa.MapArray.from_arrays([0, 1], pa.array(["k"]), values),
        "list of structs": lambda: pa.ListArray.from_arrays([0, 1], structs),
    }[place]()
