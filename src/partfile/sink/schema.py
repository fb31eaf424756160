"""The schema of a sink's rows: what a checkpoint holds of it, and which changes a sink lets pass. Pure.

The rules of widening follow those of Iceberg's schema evolution and Delta's type widening, as far as no value changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyarrow import types

from partfile.errors import CheckpointMismatch, ConfigError, SnapshotCorrupt, UnsupportedTypeError
from partfile.sink.states import RowSchema
from partfile.writers.columns import plain_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import JsonValue

OnSchemaChange = Literal["roll", "fail", "evolve"]


def schema_of(schema: object) -> pa.Schema | None:
    """The schema that a user passes; names with types, as ``{"id": "int64"}``, will do.

    Raises:
        ConfigError: It is none.
    """
    if schema is None or isinstance(schema, pa.Schema):
        return schema
    words = ""
    if isinstance(schema, Mapping) and schema:
        try:
            return pa.schema(list(schema.items()))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            words = f": {error}"
    raise ConfigError(
        f"schema={schema!r} is no schema{words}",
        hint="Write for instance schema={'id': 'int64'}; types with parameters are pyarrow's: "
        "schema=pa.schema({'at': pa.timestamp('us', 'UTC')}).",
    )


class ChangeKind(Enum):
    """How a column differs from what the checkpoint holds."""

    ADDED = "added"
    GONE = "gone"
    WIDER = "wider"
    """The new type holds every value of the old one."""
    NARROWER = "narrower"
    """The new type does not, but there is one that holds the values of both."""
    OTHER = "other"
    """No type holds the values of both."""
    MOVED = "moved"
    """It stands at another place in CSV, where readers go by the place."""


_EVOLVES = {ChangeKind.ADDED, ChangeKind.WIDER}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the rows and the checkpoint."""

    kind: ChangeKind
    column: str
    """The column."""
    within: str = ""
    """The place within it, as ``.b``, ``[].b`` or ``.value``."""
    known: pa.DataType | None = None
    """The type by the checkpoint; None for a new column."""
    new: pa.DataType | None = None
    """The type of the rows; None for a column that is gone."""

    def __str__(self) -> str:
        path = repr(f"{self.column}{self.within}")
        if self.kind is ChangeKind.ADDED:
            return f"{path} ({self.new}) is new"
        if self.kind is ChangeKind.GONE:
            return f"{path} ({self.known}) is gone"
        if self.kind is ChangeKind.MOVED:
            return f"{path} stands at another place"
        return f"{path} was {self.known} and is {self.new}"


_MOST_LEVELS = 64
"""Of nesting, as Arrow's C interface has it; of more than twice as many Arrow reads no schema back."""


def plain_rows(schema: pa.Schema) -> pa.Schema:
    """The schema of rows by which changes are judged.

    It has no metadata, every column may be null, every instant is in UTC, and of types that differ in the width of
    their offsets or numbers alone it has one. What differs in these is no change: Spark finds out anew with each query
    which columns are never null, its sessions differ in their zones, and libraries in their offsets.

    Raises:
        UnsupportedTypeError: A column is nested so deeply that no reader of Arrow gets its type back.
    """
    for field in schema:
        _check_depth(field)
    plain = plain_schema(schema.remove_metadata())
    return pa.schema([pa.field(field.name, _judged(field.type)) for field in plain])


def _check_depth(field: pa.Field[Any]) -> None:
    level: list[Any] = [field.type]
    for _ in range(_MOST_LEVELS):
        level = [kind.field(at).type for kind in level for at in range(kind.num_fields)]
        if not level:
            return
    raise UnsupportedTypeError(
        f"Column {field.name!r} is nested more than {_MOST_LEVELS} levels deep.",
        hint="Write what lies deeper as text, for instance by to_json(COLUMN).",
    )


def _judged(kind: Any) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _judged(field.type)) for field in _fields_of(kind)])
    if types.is_map(kind):
        return pa.map_(_judged(kind.key_type), _judged(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_judged(kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_judged(kind.value_type))
    return _judged_scalar(kind)


def _judged_scalar(kind: Any) -> pa.DataType:
    if types.is_decimal(kind) and not types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


@dataclass(frozen=True, slots=True)
class _Place:
    """A column, and a place within it."""

    column: str
    within: str = ""

    def below(self, step: str) -> _Place:
        return _Place(self.column, self.within + step)


def merged(known: pa.Schema, new: pa.Schema) -> tuple[pa.Schema, tuple[Change, ...]]:
    """The schema that reads rows of both, and how the new one differs.

    Where no type holds the values of both, it has the new one. Rows that have only nulls in a column, and say so, are
    no change.

    Args:
        known: As of ``plain_rows``.
        new: Likewise.
    """
    changes: list[Change] = []
    fields = _merged_fields(known, new, _Place, changes)
    return pa.schema(fields), tuple(changes)


def _fields_of(kind: Any) -> list[pa.Field[Any]]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _merged_fields(
    known: Iterable[pa.Field[Any]],
    new: Iterable[pa.Field[Any]],
    place_of: Callable[[str], _Place],
    changes: list[Change],
) -> list[tuple[str, pa.DataType]]:
    fields: dict[str, pa.DataType] = {}
    of_new = {field.name: field.type for field in new}
    for field in known:
        at = place_of(field.name)
        if field.name in of_new:
            fields[field.name] = _merged_type(at, field.type, of_new[field.name], changes)
        else:
            fields[field.name] = field.type
            changes.append(Change(ChangeKind.GONE, at.column, at.within, known=field.type))
    for name, kind in of_new.items():
        if name not in fields:
            fields[name] = kind
            at = place_of(name)
            changes.append(Change(ChangeKind.ADDED, at.column, at.within, new=kind))
    return list(fields.items())


def _merged_type(at: _Place, known: Any, new: Any, changes: list[Change]) -> pa.DataType:
    if known == new or types.is_null(new):
        return known
    if types.is_struct(known) and types.is_struct(new):
        inside = _merged_fields(_fields_of(known), _fields_of(new), lambda name: at.below(f".{name}"), changes)
        return pa.struct(inside)
    if types.is_map(known) and types.is_map(new):
        return pa.map_(
            _merged_type(at.below(".key"), known.key_type, new.key_type, changes),
            _merged_type(at.below(".value"), known.item_type, new.item_type, changes),
        )
    if _is_list(known) and _is_list(new):
        item = _merged_type(at.below("[]"), known.value_type, new.value_type, changes)
        sizes = [kind.list_size if types.is_fixed_size_list(kind) else None for kind in (known, new)]
        if sizes[0] == sizes[1]:
            return pa.list_(item) if sizes[0] is None else pa.list_(item, sizes[0])
        kind = ChangeKind.WIDER if sizes[1] is None else ChangeKind.NARROWER
        changes.append(Change(kind, at.column, at.within, known, new))
        return pa.list_(item)
    wide = wider(known, new)
    kind = ChangeKind.OTHER if wide is None else ChangeKind.WIDER if wide == new else ChangeKind.NARROWER
    changes.append(Change(kind, at.column, at.within, known, new))
    return new if wide is None else wide


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind))


_MOST_DIGITS = 76
_DIGITS_OF_DECIMAL128 = 38


def wider(one: Any, other: Any) -> pa.DataType | None:
    """The narrowest type that holds every value of two types without a change; None where there is none.

    Args:
        one: A type as of ``plain_rows`` that is not nested.
        other: Likewise.
    """
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    binaries = (types.is_binary, types.is_fixed_size_binary)
    if all(any(is_binary(kind) for is_binary in binaries) for kind in (one, other)):
        return pa.binary()
    return _wider_number(one, other)


def _wider_number(one: Any, other: Any) -> pa.DataType | None:
    if types.is_integer(one) and types.is_integer(other):
        return _wider_integer(one, other)
    if types.is_decimal(one) and types.is_decimal(other):
        return _wider_decimal(one, other)
    if types.is_floating(one) and types.is_floating(other):
        return max(one, other, key=lambda kind: int(kind.bit_width))
    for number, integer in ((one, other), (other, one)):
        if types.is_floating(number) and types.is_integer(integer):
            fitting = [kind for kind in (number, pa.float64()) if integer.bit_width <= _INTEGER_BITS[kind.bit_width]]
            return next(iter(fitting), None)
    return None


_INTEGER_BITS = {16: 8, 32: 16, 64: 32}
"""The widest integers that a floating point number of so many bits holds."""


def _wider_decimal(one: Any, other: Any) -> pa.DataType | None:
    scale = max(one.scale, other.scale)
    digits = max(one.precision - one.scale, other.precision - other.scale) + scale
    if digits > _MOST_DIGITS:
        return None
    is_wide = digits > _DIGITS_OF_DECIMAL128 or types.is_decimal256(one) or types.is_decimal256(other)
    return pa.decimal256(digits, scale) if is_wide else pa.decimal128(digits, scale)


def _wider_integer(one: Any, other: Any) -> pa.DataType | None:
    is_signed = types.is_signed_integer(one), types.is_signed_integer(other)
    if is_signed[0] is is_signed[1]:
        return max(one, other, key=lambda kind: int(kind.bit_width))
    signed, unsigned = (one, other) if is_signed[0] else (other, one)
    signed_of = {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}
    least = signed_of.get(unsigned.bit_width)
    return None if least is None else max(signed, least, key=lambda kind: int(kind.bit_width))


def row_schema_after(
    known: RowSchema | None,
    schema: pa.Schema,
    *,
    path_columns: Iterable[str],
    format: Mapping[str, JsonValue],
    on_change: OnSchemaChange,
    uid: str,
) -> RowSchema:
    """What the next checkpoint holds of the schema of the rows.

    Args:
        known: What the newest checkpoint holds; None before the first rows.
        schema: Of the rows that come now.
        path_columns: Columns whose values are in the directories alone.
        format: Format spec of the file; empty for a format of the user's own.
        on_change: ``roll`` lets every change pass, ``fail`` none, ``evolve`` new columns and wider types.
        uid: Of the sink, for the message.

    Returns:
        The same object where nothing has changed.

    Raises:
        CheckpointMismatch: A change that ``on_change`` does not let pass; names each column.
        UnsupportedTypeError: A column is nested too deeply.
    """
    rows = plain_rows(schema)
    after = RowSchema(arrow=rows.serialize().to_pybytes(), path_columns=tuple(path_columns), format=dict(format))
    if known is None:
        return after
    both, changes = _with_places(known, after)
    refused = [change for change in changes if on_change == "fail" or change.kind not in _EVOLVES]
    if refused and on_change != "roll":
        raise CheckpointMismatch(
            f"{uid}: the columns are not those of the rows before: {'; '.join(map(str, refused))}",
            hint=_HINTS[on_change],
        )
    return known if both == known else both


def _with_places(known: RowSchema, new: RowSchema) -> tuple[RowSchema, tuple[Change, ...]]:
    """What is to be held of the rows of both, and how the new ones differ; directories are those of the new ones."""
    before, rows = schema_in(known), schema_in(new)
    both, changes = merged(before, rows)
    others = [change.column for change in changes if change.kind is ChangeKind.OTHER]
    there = [name for name in before.names if name not in known.path_columns]
    here = [name for name in rows.names if name not in new.path_columns]
    is_csv = "csv" in {known.format.get("format"), new.format.get("format")}
    has_header = new.format.get("header", True) is True and known.format.get("header", True) is True
    apart = next((one for one, other in zip(here, there, strict=False) if one != other), None)
    if is_csv and apart is not None:
        changes += (Change(ChangeKind.MOVED, apart),)
    is_shifted = is_csv and (apart is not None or (not has_header and here != there))
    return (
        RowSchema(
            arrow=both.serialize().to_pybytes(),
            path_columns=new.path_columns,
            mixed=tuple(dict.fromkeys((*known.mixed, *new.mixed, *others))),
            is_shifted=known.is_shifted or new.is_shifted or is_shifted,
            format=_format_of_both(known.format, new.format),
        ),
        changes,
    )


_READING = {"csv": ("header", "separator", "null_value"), "json": ("non_finite",)}
"""Options of a format without which its files are read wrongly."""


def _format_of_both(known: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The format spec by which the files of both are read; of CSV that was written in two ways the name alone."""
    name = str(new.get("format"))
    if known.get("format") != name:
        return dict(new)
    differ = [option for option in _READING.get(name, ()) if known.get(option) != new.get(option)]
    if not differ:
        return dict(new)
    # JSON in quotes is read in either form, by the reader of that one.
    return {**new, "non_finite": "string"} if name == "json" else {"format": name}


_HINTS = {
    "fail": "Let the query write the columns it wrote before; or set "
    'on_schema_change="evolve", by which columns may be added and types widened, or "roll", by which '
    "new rows go to new files whatever they are.",
    "evolve": "Columns may be added and types widened. Cast the column, or add it with nulls; or set "
    'on_schema_change="roll", by which new rows go to new files whatever they are.',
}


def schema_in(held: RowSchema) -> pa.Schema:
    """The schema that a checkpoint holds.

    Raises:
        SnapshotCorrupt: It is none.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(held.arrow))
    except (pa.ArrowException, OSError) as error:
        raise SnapshotCorrupt(f"the schema of the rows in the checkpoint cannot be read: {error}") from error


def united(held: Iterable[RowSchema]) -> RowSchema | None:
    """The schema that reads the rows of several writers; None of none."""
    found: RowSchema | None = None
    for one in held:
        if found is None:
            found = one
            continue
        both, _ = _with_places(found, one)
        is_one_format = found.format.get("format") == one.format.get("format")
        found = both.model_copy(
            update={
                "path_columns": tuple(dict.fromkeys((*found.path_columns, *one.path_columns))),
                "format": both.format if is_one_format else {},
            }
        )
    return found
