"""Every Arrow type with its edges, in every place and format: refused with its first batch, or read back equal.

The rows that are read back went through a process that was killed and another that went on.
"""

from __future__ import annotations

import io
import os
import signal
from decimal import Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import duckdb
import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc, types

import partfile as pf
from partfile.errors import PartfileError
from partfile.sink.layout import RowLayouts
from partfile.writers.arrow_staging import StagingFormat
from partfile.writers.base import BulkFormat
from partfile.writers.registry import resolve_format
from support.files.edges import EDGES, PLACES, columns_in, exact, float_text, missing_types, nanoseconds
from support.processes.command_line import told
from support.sinks.life_cycle import LONG, in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS, DURABLE = 12, 8
FORMATS = ["parquet", "orc", "avro", "json", "csv"]
SINGLE = {"top", "dictionary", "runs"}
"""The places that CSV knows."""
CASES = [(format, place) for format in FORMATS for place in PLACES if format != "csv" or place in SINGLE]


def test_every_type_of_this_pyarrow_has_a_column() -> None:
    """A type that is new in Arrow fails here until it has its edges, and thereby its place in each format."""
    assert missing_types() == set()


class _Nowhere:
    """A part that is thrown away."""

    position = 0

    def write(self, data: bytes | memoryview) -> None:
        self.position += len(data)


@cache
def refusals(format: str, place: str) -> dict[str, str]:
    """What a format says of each column that it refuses, asked without a sink."""
    form = resolve_format(format)
    opened = StagingFormat(form) if isinstance(form, BulkFormat) else form
    layouts = RowLayouts(pf.BasePathBucketer(), form, opened if opened is not form else None)
    found = {}
    for name, column in columns_in(place, ROWS).items():
        batch = pa.record_batch({name: column, "row": range(ROWS)})
        try:
            layout = layouts.of(batch.schema)
            opened.open(_Nowhere(), layout.schema).write(layout.rows(batch))
        except PartfileError as error:
            found[name] = str(error)
    return found


def accepted(format: str, place: str) -> dict[str, Any]:
    """The columns that a format takes."""
    refused = refusals(format, place)
    return {name: column for name, column in columns_in(place, ROWS).items() if name not in refused}


def live(base: Path, format: str, columns: dict[str, Any]) -> None:
    """Write some rows in a process that is killed behind a checkpoint, and the rest in another."""
    rows = pa.record_batch({**columns, "row": range(ROWS)})
    sink = pf.FileSink(base, uid="edges", format=format, rolling=LONG)

    def die() -> None:
        out = sink.local().open()
        out.write(rows.slice(0, DURABLE), position=DURABLE)
        out.checkpoint()
        out.write(rows.slice(DURABLE))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    with sink.local() as out:
        assert out.position == DURABLE
        out.write(rows.slice(DURABLE))


def differing(found: pa.Table, columns: dict[str, Any]) -> list[str]:
    """The columns whose values are not those that were written."""
    order = found["row"].to_pylist()
    assert sorted(order) == list(range(ROWS))
    return [
        name
        for name, column in columns.items()
        if dict(zip(order, exact(found[name]), strict=True)) != dict(enumerate(exact(column)))
    ]


# What reads each format, and the columns that it has no equal value for, as docs/FORMATS.md says.


def partfile_reads(base: Path, names: list[str]) -> pa.Table:
    return pf.read(base).to_table(columns=[*names, "row"])


def arrow_reads(base: Path, names: list[str]) -> pa.Table:
    read: Callable[[Path], pa.Table] = orc.read_table if list(base.glob("*.orc")) else _parquet
    return pa.concat_tables([read(path) for path in sorted(base.glob("part-*"))]).select([*names, "row"])


def _parquet(path: Path) -> pa.Table:
    return pq.ParquetFile(path).read()


def duckdb_reads(base: Path, names: list[str]) -> pa.Table:
    columns = ", ".join(f'"{name}"' for name in [*names, "row"])
    found: Any = duckdb.sql(f"select {columns} from read_parquet('{base}/part-*.parquet')")  # noqa: S608
    return found.to_arrow_table()


def fastavro_reads(base: Path, names: list[str]) -> pa.Table:
    """Its own values hold neither all years nor nanoseconds: it is shown no logical types, and numbers are compared."""
    found = partfile_reads(base, names)
    records: list[Any] = []
    for path in sorted(base.glob("part-*")):
        data = path.read_bytes().replace(b'"logicalType"', b'"notLogical_"')
        records += fastavro.reader(io.BytesIO(data))
    by_row = {record["row"]: record for record in records}
    ours = {name: dict(zip(found["row"].to_pylist(), exact(found[name]), strict=True)) for name in names}
    for name in names:
        kind = found.schema.field(name).type
        assert ours[name] == {row: _of_avro(by_row[row][name], kind) for row in by_row}, name
    return found


def _of_avro(value: Any, kind: Any) -> Any:
    """A value of fastavro as ``exact`` makes it."""
    if value is not None and types.is_struct(kind):
        return tuple(_of_avro(value[kind.field(at).name], kind.field(at).type) for at in range(kind.num_fields))
    if value is not None and types.is_map(kind):
        return [(key, _of_avro(item, kind.item_type)) for key, item in value.items()]
    if value is not None and types.is_nested(kind):
        return [_of_avro(item, kind.value_type) for item in value]
    return value if value is None else _single_of_avro(value, kind)


def _single_of_avro(value: Any, kind: Any) -> Any:
    if types.is_decimal(kind):
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-kind.scale, EXACTLY)
    if types.is_floating(kind):
        return float_text(value)
    return value * (nanoseconds(kind) or 1) if isinstance(value, int) and not isinstance(value, bool) else value


EXACTLY = Context(prec=80)
_TWICE = {"map_twice"}
"""Python has no mapping with a key twice."""
_NO_ORC = {name for name in EDGES if name.endswith(("_9999", "_10000"))}
"""pyarrow reads nanoseconds, which end in 2262; Spark reads them."""
_NO_DUCKDB = {
    "decimal_huge",
    "uuid",
    *(name for name in EDGES if name.startswith(("span_", "at_ms_local_", "at_ms_utc_"))),
}
"""Digits, spans and years that it has no type for; and a text in the place of a UUID."""
READERS: dict[str, list[tuple[Callable[[Path, list[str]], pa.Table], set[str]]]] = {
    "parquet": [(partfile_reads, set()), (arrow_reads, set()), (duckdb_reads, _NO_DUCKDB)],
    "orc": [(partfile_reads, _NO_ORC), (arrow_reads, _NO_ORC)],
    "avro": [(partfile_reads, set()), (fastavro_reads, _TWICE)],
    "json": [(partfile_reads, set())],
    "csv": [(partfile_reads, set())],
}
UNREAD = {"orc": _NO_ORC}
"""Beside these pyarrow would read nothing of a file."""


@pytest.mark.drawn(25)
@pytest.mark.fault("K3")
@pytest.mark.parametrize(("format", "place"), CASES)
def test_what_is_taken_reads_back_equal(tmp_path: Path, format: str, place: str) -> None:
    """By partfile.read, and by each other reader of the format that runs in Python."""
    columns = {
        name: column for name, column in accepted(format, place).items() if name not in UNREAD.get(format, set())
    }
    live(tmp_path, format, columns)
    for read, lacks in READERS[format]:
        kept = {name: column for name, column in columns.items() if name not in lacks}
        assert len(kept) > len(columns) * 2 // 3
        assert differing(read(tmp_path, list(kept)), kept) == [], read.__name__


# Engines that read a tree of some columns not at all, and not only without these.


def polars_reads(base: Path, names: list[str]) -> pa.Table:
    columns = [*names, "row"]
    if list(base.glob("*.avro")):
        return pl.concat([pl.read_avro(path, columns=columns) for path in base.glob("part-*")]).to_arrow()
    return pl.read_parquet(base / "part-*.parquet", columns=columns).to_arrow()


def duckdb_reads_by_statement(base: Path, names: list[str]) -> pa.Table:
    (statement,) = told("sql", base).split(";\n")[:-1]
    found: Any = duckdb.sql(statement)
    return found.to_arrow_table().select([*names, "row"])


_SPANS = {name for name in EDGES if name.startswith("span_")}
_NO_STATEMENT = _SPANS | {"decimal_huge", "struct_none", "map_twice", "at_ns_local_9999"}
_NO_STATEMENT |= {name for name in EDGES if name.startswith("at_ns") and name.endswith(("_early", "_last"))}
_NO_STATEMENT |= {
    name
    for name, column in EDGES.items()
    if types.is_timestamp(column.type) and column.type.unit == "ns" and column.type.tz
}
"""No type of DuckDB's; spans it hands over in another one. Nanoseconds end at the edge of its range."""
_NO_POLARS = {"decimal_huge", "list_view", "list_view_large", "span_s_far", "map_twice"}
"""Digits, views and seconds that it has no type for, one key twice in a map."""
_NO_POLARS_AVRO = _NO_POLARS | _SPANS | {name for name in EDGES if name.startswith("map") or "nothing" in name}
ENGINES: dict[str, tuple[Callable[[Path, list[str]], pa.Table], set[str]]] = {
    "parquet": (polars_reads, _NO_POLARS),
    "avro": (polars_reads, _NO_POLARS_AVRO),
    "json": (duckdb_reads_by_statement, _NO_STATEMENT),
    "csv": (duckdb_reads_by_statement, _NO_STATEMENT),
}


@pytest.mark.drawn(12)
@pytest.mark.fault("K3")
@pytest.mark.parametrize(
    ("format", "place"), [case for case in CASES if case[0] in ENGINES and (case[0] != "avro" or "map" not in case[1])]
)
def test_engines_read_what_is_taken(tmp_path: Path, format: str, place: str) -> None:
    """Polars, and DuckDB by the statement of ``partfile sql``, read each column for whose values they have a type."""
    read, lacks = ENGINES[format]
    taken = accepted(format, place)
    columns = {name: column for name, column in taken.items() if name not in lacks}
    assert len(columns) > len(taken) // 2
    live(tmp_path, format, columns)
    assert differing(read(tmp_path, list(columns)), columns) == []


@pytest.mark.parametrize(("format", "place"), CASES)
def test_what_is_refused_is_refused_by_the_sink_with_its_batch(tmp_path: Path, format: str, place: str) -> None:
    """By an error that names the column and says what to do; nothing of it is ever published."""
    columns = columns_in(place, ROWS)
    sink = pf.FileSink(tmp_path, uid="edges", format=format, rolling=LONG)
    out = sink.local().open()
    # One sink for all: by ``write`` each refusal would close it.
    operator = out._operator
    operator.advance(out._context(0))
    for name in refusals(format, place):
        with pytest.raises(PartfileError, match=rf"'{name}['.\[]") as caught:
            operator.write(pa.record_batch({name: columns[name], "row": range(ROWS)}))
        assert caught.value.hint, name
        assert form_of(format) in caught.value.message
    out.close()
    with sink.local():
        pass
    assert list(tmp_path.glob("part-*")) == []


def form_of(format: str) -> str:
    """What errors call a format."""
    return {"parquet": "Parquet", "orc": "ORC", "avro": "Avro", "json": "JSON", "csv": "CSV"}[format]


NESTED_REFUSALS = {"parquet": {"json", "opaque", "tensor", "truth8", "uuid"}}
"""Arrow writes extension types as Parquet at the top alone."""


@pytest.mark.parametrize(("format", "place"), CASES)
def test_a_type_is_refused_in_every_place_or_in_none(format: str, place: str) -> None:
    """What goes into a column goes into a list; of a format at least half of all columns are taken."""
    nested = NESTED_REFUSALS.get(format, set()) if place not in SINGLE else set()
    assert set(refusals(format, place)) == columns_in(place, ROWS).keys() & (refusals(format, "top").keys() | nested)
    assert len(accepted(format, place)) > 60
