"""Values of JSON and CSV in the types that they had before: what ``docs/FORMATS.md`` says of each form, backwards.

pyarrow reads most types by itself. What it has no reader for comes as text, or for maps by Python's reader of JSON, and
is then turned into its type here.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pacsv
import pyarrow.dataset as ds
import pyarrow.json
from pyarrow import types

from partfile.errors import PartDamaged
from partfile.readers.lines import BLOCK_BYTES, is_too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_kernels: Any = pyarrow.compute
_DAY = "1970-01-01T"
_SECONDS_A_DAY = 24 * 60 * 60
_MOST_BLOCK_BYTES = (1 << 31) - 1
"""Of pyarrow's readers."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DURATION = re.compile(r"(-?)(\d+) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class TextForm:
    """How a sink has written JSON or CSV, as far as a reader has to know it.

    Args:
        format: ``json`` or ``csv``.
        header: Whether a file of CSV begins with the names of its columns.
        separator: Between the values of CSV.
        null_value: What stands for a null in CSV.
        non_finite: ``literal``, or ``string`` where JSON has NaN and the infinities in quotes.
    """

    format: str
    header: bool = True
    separator: str = ","
    null_value: str = ""
    non_finite: str = "literal"

    @classmethod
    def of(cls, format: str, spec: Mapping[str, Any]) -> TextForm:
        """The form that a format spec describes; the default form where it is one of another format."""
        if spec.get("format") != format:
            return cls(format)
        names = ("header", "separator", "null_value", "non_finite")
        return cls(format, **{name: spec[name] for name in names if name in spec})

    def is_read_by_pyarrow(self, schema: pa.Schema) -> bool:
        """Whether pyarrow's own reader gives every column its type."""
        return all(_wire(field.type, self.format) == field.type for field in schema) and not self._is_parsed(schema)

    def csv_format(self, columns: Sequence[str]) -> ds.CsvFileFormat:
        """The pyarrow format of CSV; the columns are those of a file that does not name them."""
        return ds.CsvFileFormat(
            parse_options=self._csv_layout,
            read_options=pacsv.ReadOptions(block_size=BLOCK_BYTES, column_names=None if self.header else list(columns)),
            convert_options=pacsv.ConvertOptions(**self._csv_nulls),
        )

    def as_arrow_file(self, data: bytes, path: str, schema: pa.Schema) -> bytes:
        """The rows of a file as a file of Arrow.

        Args:
            data: The whole file, decompressed.
            path: For messages.
            schema: The columns to read; others in the file are left out, and one that the file has not is null.

        Raises:
            PartDamaged: A value is not in the form of its type.
        """
        wire = pa.schema([pa.field(field.name, _wire(field.type, self.format)) for field in schema])
        try:
            rows = self._json_rows(data, wire) if self.format == "json" else self._csv_rows(data, wire)
            columns = [_typed(rows.column(field.name).combine_chunks(), field.type) for field in schema]
        except (pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise other_types(path, error) from error
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        return bytes(sink.getvalue())

    @property
    def _csv_layout(self) -> pacsv.ParseOptions:
        return pacsv.ParseOptions(delimiter=self.separator, newlines_in_values=True)

    @property
    def _csv_nulls(self) -> dict[str, Any]:
        return {
            "null_values": [self.null_value],
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": False,
        }

    def _is_parsed(self, schema: pa.Schema) -> bool:
        """Whether Python's reader of JSON is needed: for maps, and for numbers that may be texts."""
        return self.format == "json" and any(
            _holds(kind, types.is_map) or (self.non_finite == "string" and _holds(kind, types.is_floating))
            for kind in schema.types
        )

    def _json_rows(self, data: bytes, wire: pa.Schema) -> pa.Table:
        if self._is_parsed(wire):
            return _parsed_rows(data, wire)
        # pyarrow reads a first line that is longer than a block as nulls.
        is_long = data.find(b"\n", 0, BLOCK_BYTES) < 0
        for block_bytes in (BLOCK_BYTES, min(len(data) + 1, _MOST_BLOCK_BYTES))[is_long:]:
            try:
                return pyarrow.json.read_json(
                    pa.BufferReader(data),
                    read_options=pyarrow.json.ReadOptions(block_size=block_bytes),
                    parse_options=pyarrow.json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore"),
                )
            except pa.ArrowInvalid as error:
                if not is_too_long(error) or block_bytes != BLOCK_BYTES:
                    raise
        raise AssertionError("the last block holds the whole file")

    def _csv_rows(self, data: bytes, wire: pa.Schema) -> pa.Table:
        names = None if self.header else wire.names
        return pacsv.read_csv(
            pa.BufferReader(data),
            parse_options=self._csv_layout,
            read_options=pacsv.ReadOptions(block_size=min(len(data) + 1, _MOST_BLOCK_BYTES), column_names=names),
            convert_options=pacsv.ConvertOptions(
                column_types=wire, include_columns=wire.names, include_missing_columns=True, **self._csv_nulls
            ),
        )


def other_types(path: str, error: Exception) -> PartDamaged:
    """The error for a file whose values are not of the types that they are read as."""
    return PartDamaged(
        f"{path!r} holds values of other types than the schema says: {error}",
        hint=(
            "Where the file is cut or damaged, put it back from a copy. Where it has other types, pass those: "
            "schema=pa.schema({'id': 'string'}); or read each line as it is: partfile.read(PATH, format='text')"
        ),
        path=path,
    )


def may_be_read_as(guess: Any, known: Any) -> bool:
    """Whether values that pyarrow takes for one type, by a look at a file, can be of another that is known.

    Numbers and truth values have one form each; the form of all other values is text, of which a look tells little.
    """
    if types.is_null(guess):
        return True
    if types.is_integer(known):
        # The largest numbers of 64 bits without a sign are taken for fractions.
        return bool(types.is_integer(guess) or (types.is_uint64(known) and types.is_floating(guess)))
    if types.is_boolean(known):
        return bool(types.is_boolean(guess))
    if types.is_floating(known):
        # NaN in quotes is a text.
        return bool(types.is_integer(guess) or types.is_floating(guess) or types.is_string(guess))
    return True


def _wire(kind: Any, format: str) -> pa.DataType:
    """The type as which a column is read from the file."""
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, _wire(field.type, format)) for field in fields])
    if types.is_map(kind):
        # pyarrow makes structs of objects; Python's reader hands these over.
        return pa.map_(pa.string(), _wire(kind.item_type, format))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_wire(kind.value_type, format))
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind) and not types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale)
    is_text = types.is_large_string(kind) or _is_bytes(kind) or types.is_duration(kind)
    if format == "json":
        is_text = is_text or types.is_date(kind) or types.is_time(kind)
    else:
        is_text = is_text or types.is_decimal256(kind)
    return pa.string() if is_text else kind


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _holds(kind: Any, is_kind: Callable[[Any], bool]) -> bool:
    """Whether a type is of some kind, or anything nested in it is."""
    if types.is_map(kind):
        return is_kind(kind) or _holds(kind.item_type, is_kind)
    if types.is_struct(kind):
        return any(_holds(kind.field(at).type, is_kind) for at in range(kind.num_fields))
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return _holds(kind.value_type, is_kind) if is_list else is_kind(kind)


def _parsed_rows(data: bytes, wire: pa.Schema) -> pa.Table:
    """The rows by Python's reader, which keeps the keys of maps, those that occur twice too."""
    rows = [json.loads(line, object_pairs_hook=list, parse_float=float) for line in data.split(b"\n") if line.strip()]
    found = [dict(row) for row in rows]
    columns = [
        pa.array([_shaped(row.get(field.name), field.type) for row in found], field.type)
        for field in wire  # a line at a time would be ten times as slow
    ]
    return pa.Table.from_arrays(columns, schema=wire)


def _shaped(value: Any, kind: Any) -> Any:
    """A value as pyarrow takes it, from one whose objects are lists of pairs."""
    if value is None:
        return None
    if types.is_integer(kind) and type(value) is not int:
        # pyarrow would keep the whole part of a fraction.
        raise ValueError(f"{value!r} is no integer")
    if types.is_struct(kind):
        known = dict(value)
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return {field.name: _shaped(known.get(field.name), field.type) for field in fields}
    if types.is_map(kind):
        return [(key, _shaped(item, kind.item_type)) for key, item in value]
    if types.is_list(kind):
        return [_shaped(item, kind.value_type) for item in value]
    if types.is_floating(kind):
        return float(value)
    is_text = types.is_decimal(kind) or types.is_timestamp(kind)
    return pa.scalar(value).cast(kind) if is_text else value


def _typed(column: Any, kind: Any) -> Any:
    """A column that was read as its wire type, as what it is."""
    if column.type == kind:
        return column
    if types.is_struct(kind):
        children = [_typed(child, kind.field(at).type) for at, child in enumerate(column.flatten())]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if types.is_map(kind):
        keys, items = column.keys, column.items
        made = pa.MapArray.from_arrays(column.offsets, _typed(keys, kind.key_type), _typed(items, kind.item_type))
        return _with_nulls(made, column).cast(kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        values = _typed(column.values, kind.value_type)
        made = pa.ListArray.from_arrays(column.offsets, values)
        return _with_nulls(made, column).cast(kind)
    return _typed_values(column, kind)


def _with_nulls(made: Any, column: Any) -> Any:
    """The same lists, null where a column is: offsets alone do not say it."""
    if not column.null_count:
        return made
    offsets = _kernels.if_else(column.is_null(), None, column.offsets[:-1])
    whole = pa.concat_arrays([offsets, column.offsets[-1:]])
    if types.is_map(made.type):
        return pa.MapArray.from_arrays(whole, made.keys, made.items)
    return pa.ListArray.from_arrays(whole, made.values)


def _typed_values(column: Any, kind: Any) -> Any:
    if _is_bytes(kind):
        return _each(column, kind, lambda text: base64.b64decode(text, validate=True))
    if types.is_duration(kind):
        per_second = _PER_SECOND[kind.unit]
        return _each(column, pa.int64(), lambda text: _duration(text, per_second)).cast(kind)
    if types.is_time(kind):
        behind = _kernels.binary_join_element_wise(pa.scalar(_DAY), column, pa.scalar(""))
        return behind.cast(pa.timestamp(kind.unit)).cast(kind)
    if types.is_date(kind):
        return column.cast(pa.date32()).cast(kind)
    return column.cast(kind)


def _each(column: Any, kind: pa.DataType, value_of: Callable[[str], Any]) -> Any:
    texts: Iterable[str | None] = column.to_pylist()
    return pa.array([None if text is None else value_of(text) for text in texts], kind)


def _duration(text: str, per_second: int) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no interval such as '1 02:03:04.000005'")
    sign, days, hours, minutes, seconds, fraction = found.groups()
    whole = int(days) * _SECONDS_A_DAY + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    value = whole * per_second + int((fraction or "").ljust(9, "0")) * per_second // 10**9
    return -value if sign else value
