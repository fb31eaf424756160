"""JSON lines: one object a row, with every key in every row, and a line feed after each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError
from partfile.writers.base import EncodedRows, resolve_options
from partfile.writers.scalars import (
    TEXT,
    NonFinite,
    check_columns,
    in_column,
    is_list,
    is_number,
    is_text,
    join,
    kernels,
    literal,
    nulls_of,
    places_in_runs,
    replace,
    replace_where,
    rows_with,
    scalar_text,
    used_bytes,
)
from partfile.writers.text import LineFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_SPACE = 0x20


class _Text(NamedTuple):
    """A column of JSON text; ``bare`` values still lack their quotes, which then go into the literals around them."""

    text: Any
    bare: bool


def escaped(text: Any) -> Any:
    """Escape what RFC 8259 wants escaped, and nothing else. Most rows hold none of it, which costs one look."""
    rows = rows_with(text, b'\\"', below=_SPACE)
    return text if rows is None else replace_where(text, rows, _with_escapes)


def _with_escapes(text: Any) -> Any:
    characters = used_bytes(text).to_pybytes()
    for special in ("\\", '"'):
        if special.encode() in characters:
            text = replace(text, special, "\\" + special)
    for code in range(_SPACE):
        if code in characters:
            text = replace(text, chr(code), json.dumps(chr(code))[1:-1])
    return text


def object_text(names: Sequence[str], values: Sequence[_Text], *, end: str = "}") -> Any:
    """Write each row of some columns as an object with every key, null values included.

    Args:
        names: The keys.
        values: The text of one array a key, all of one length, at least one.
        end: What ends a row: the brace, and after it what separates rows.
    """
    parts: list[Any] = []
    before = "{"
    for name, value in zip(names, values, strict=True):
        quote = '"' if value.bare else ""
        parts += [literal(f"{before}{json.dumps(name, ensure_ascii=False)}:{quote}"), value.text]
        before = f"{quote},"
    parts.append(literal(before[:-1] + end))
    return join(parts, null="null")


def _quotable(column: Any, non_finite: NonFinite) -> _Text:
    kind = column.type
    if types.is_run_end_encoded(kind):
        return _Text(_json_text(column.values, non_finite).take(places_in_runs(column)), bare=False)
    for is_kind, encode in _COMPOSED:
        if is_kind(kind):
            return _Text(encode(column, non_finite), bare=False)
    text = scalar_text(column, non_finite)
    if is_text(kind):
        text = escaped(text)
    if is_number(kind) or text.null_count:
        # A null must not come out between quotes, so where there are some, quotes go around the values alone.
        return _Text(text if is_number(kind) else _in_quotes(text), bare=False)
    return _Text(text, bare=True)


def _json_text(column: Any, non_finite: NonFinite) -> Any:
    value = _quotable(column, non_finite)
    return _in_quotes(value.text) if value.bare else value.text


def _in_quotes(text: Any) -> Any:
    return join([literal('"'), text, literal('"')])


def _dictionary_text(column: Any, non_finite: NonFinite) -> Any:
    return _json_text(column.dictionary, non_finite).take(column.indices)


def _struct_text(column: Any, non_finite: NonFinite) -> Any:
    names = [column.type.field(index).name for index in range(column.type.num_fields)]
    if not names:
        return nulls_of(column, pa.repeat(literal("{}"), len(column)))
    # field() minds the slice, but not the nulls of the struct itself; those are put back at the end.
    fields = [_quotable(column.field(index), non_finite) for index in range(len(names))]
    return nulls_of(column, object_text(names, fields))


def _list_text(column: Any, non_finite: NonFinite) -> Any:
    kind = column.type
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        values = column.values.slice(column.offset * size, len(column) * size)
        offsets = pa.array(range(0, (len(column) + 1) * size, size) if size else [0] * (len(column) + 1), pa.int64())
        return _bracketed(column, _joined(_json_text(values, non_finite), offsets), "[]")
    first, offsets = _offsets(column)
    values = column.values.slice(first, offsets[-1].as_py())
    return _bracketed(column, _joined(_json_text(values, non_finite), offsets), "[]")


def _map_text(column: Any, non_finite: NonFinite) -> Any:
    first, offsets = _offsets(column)
    size = offsets[-1].as_py()
    keys = column.keys.slice(first, size)
    if types.is_dictionary(keys.type):
        keys = keys.dictionary.cast(TEXT).take(keys.indices)
    keys = escaped(keys.cast(TEXT))
    values = kernels.fill_null(_json_text(column.items.slice(first, size), non_finite), "null")
    return _bracketed(column, _joined(join([literal('"'), keys, literal('":'), values]), offsets), "{}")


def _offsets(column: Any) -> tuple[int, Any]:
    """The first offset of the values of a (sliced) list column, and its offsets counted from there."""
    offsets = column.offsets.cast(pa.int64())
    first = offsets[0].as_py()
    return first, kernels.subtract(offsets, first) if first else offsets


def _joined(values: Any, offsets: Any) -> Any:
    filled = kernels.fill_null(values, "null") if values.null_count else values
    return kernels.binary_join(pa.LargeListArray.from_arrays(offsets, filled), literal(","))


def _bracketed(column: Any, text: Any, brackets: str) -> Any:
    return nulls_of(column, join([literal(brackets[0]), text, literal(brackets[1])]))


_COMPOSED: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, NonFinite], Any]], ...] = (
    (types.is_dictionary, _dictionary_text),
    (types.is_map, _map_text),
    (is_list, _list_text),
    (types.is_struct, _struct_text),
)


_NON_FINITE = {
    "literal": NonFinite(),
    "string": NonFinite('"NaN"', '"Infinity"', '"-Infinity"'),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """Rows as JSON objects, one a line. Nulls are written, so that every line has every key.

    Args:
        compression: How parts are compressed.
        non_finite: ``"literal"`` writes NaN and the infinities as bare ``NaN``, ``Infinity`` and ``-Infinity``: Spark,
            DuckDB and pyarrow read them, though RFC 8259 has no such words. ``"string"`` puts them in quotes, which
            is strict JSON and what Spark itself writes; pyarrow cannot read that.

    Raises:
        ConfigError: An unknown ``non_finite``.
    """

    non_finite: str = "literal"

    def __post_init__(self) -> None:
        resolve_options(self, JsonLinesFormat)
        if self.non_finite not in _NON_FINITE:
            raise ConfigError(
                f"non_finite={self.non_finite!r} is not known.",
                hint="Write non_finite='literal' or non_finite='string'.",
            )

    @property
    def suffix(self) -> str:
        """``.json``, and the compression's."""
        return ".json" + self.compression.suffix

    def check(self, schema: pa.Schema) -> None:
        """Refuse types without a JSON form, map keys that are not text, and names that occur twice.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """
        check_columns(schema, "JSON lines", nested=True)

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch; a batch without columns gives ``{}`` for each row.

        Raises:
            ConfigError: A time lies outside a day, or a ``date64`` is no whole day; names the column.
        """
        if batch.num_columns == 0:
            return EncodedRows.of(pa.repeat(literal("{}\n"), batch.num_rows))
        words = _NON_FINITE[self.non_finite]
        values = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            with in_column(name, "JSON lines"):
                values.append(_quotable(column, words))
        return EncodedRows.of(object_text(batch.schema.names, values, end="}\n"))
