"""The schema of a sink's rows: what a checkpoint holds of it, and which changes a sink lets pass. Pure.

The rules of widening follow those of Iceberg's schema evolution and Delta's type widening, as far as no value changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyarrow import types

from partfile.errors import CheckpointMismatch, SnapshotCorrupt
from partfile.sink.states import RowSchema
from partfile.writers.columns import plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import JsonValue

OnSchemaChange = Literal["roll", "fail", "evolve"]


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
    """It stands elsewhere, in a file that tells columns apart by their place."""


_EVOLVES = {ChangeKind.ADDED, ChangeKind.WIDER}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between the rows and the checkpoint."""

    kind: ChangeKind
    path: str
    """The column and the place within it, as ``a``, ``a.b``, ``a[].b`` or ``a.value``."""
    known: pa.DataType | None = None
    """The type by the checkpoint; None for a new column."""
    new: pa.DataType | None = None
    """The type of the rows; None for a column that is gone."""

    @property
    def column(self) -> str:
        """The column at the top, as far as its name has no dot or bracket."""
        return self.path.split(".")[0].removesuffix("[]")

    def __str__(self) -> str:
        if self.kind is ChangeKind.ADDED:
            return f"{self.path!r} ({self.new}) is new"
        if self.kind is ChangeKind.GONE:
            return f"{self.path!r} ({self.known}) is gone"
        if self.kind is ChangeKind.MOVED:
            return f"{self.path!r} stands elsewhere"
        return f"{self.path!r} was {self.known} and is {self.new}"


def plain_rows(schema: pa.Schema) -> pa.Schema:
    """The schema of rows by which changes are judged.

    It has no metadata, every column may be null, and every instant is in UTC: what differs in these alone is no change.
    Spark finds out anew with each query which columns are never null, and its sessions differ in their zones.
    """
    plain = plain_schema(schema.remove_metadata())
    return pa.schema([pa.field(field.name, _judged(field.type)) for field in plain])


def _judged(kind: Any) -> pa.DataType:
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(field.name, _judged(field.type)) for field in fields])
    if types.is_map(kind):
        return pa.map_(_judged(kind.key_type), _judged(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_judged(kind.value_type), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_judged(kind.value_type))
    return pa.large_list(_judged(kind.value_type)) if types.is_large_list(kind) else kind


def merged(known: pa.Schema, new: pa.Schema, *, by_place: bool = False) -> tuple[pa.Schema, tuple[Change, ...]]:
    """The schema that reads rows of both, and how the new one differs.

    Where no type holds the values of both, it has the new one.

    Args:
        known: As of ``plain_rows``.
        new: Likewise.
        by_place: Whether the file tells columns apart by their place, as CSV without a header does.
    """
    changes: list[Change] = []
    kind = _merged_type("", pa.struct(list(known)), pa.struct(list(new)), changes)
    both = pa.schema(_fields_of(kind))
    if by_place:
        here = [name for name in new.names if name in known.names]
        there = [name for name in known.names if name in new.names]
        moved = [name for name, other in zip(here, there, strict=True) if name != other]
        in_front = new.names[: len(here)] != here
        changes += [Change(ChangeKind.MOVED, name) for name in (moved or here[-1:] * in_front)]
    return both, tuple(changes)


def _fields_of(kind: Any) -> list[pa.Field[Any]]:
    return [kind.field(at) for at in range(kind.num_fields)]


def _merged_type(path: str, known: Any, new: Any, changes: list[Change]) -> pa.DataType:
    if known == new:
        return new
    if types.is_struct(known) and types.is_struct(new):
        return _merged_struct(path, known, new, changes)
    if types.is_map(known) and types.is_map(new):
        return pa.map_(
            _merged_type(f"{path}.key", known.key_type, new.key_type, changes),
            _merged_type(f"{path}.value", known.item_type, new.item_type, changes),
        )
    if _is_list(known) and _is_list(new):
        item = _merged_type(f"{path}[]", known.value_type, new.value_type, changes)
        is_large = types.is_large_list(known) or types.is_large_list(new)
        return pa.large_list(item) if is_large else pa.list_(item)
    wide = wider(known, new)
    kind = ChangeKind.OTHER if wide is None else ChangeKind.WIDER if wide == new else ChangeKind.NARROWER
    changes.append(Change(kind, path, known, new))
    return new if wide is None else wide


def _merged_struct(path: str, known: Any, new: Any, changes: list[Change]) -> pa.DataType:
    fields: dict[str, pa.DataType] = {}
    of_new = {field.name: field.type for field in _fields_of(new)}
    for field in _fields_of(known):
        at = f"{path}.{field.name}" if path else field.name
        if field.name in of_new:
            fields[field.name] = _merged_type(at, field.type, of_new[field.name], changes)
        else:
            fields[field.name] = field.type
            changes.append(Change(ChangeKind.GONE, at, field.type))
    for name, kind in of_new.items():
        if name not in fields:
            fields[name] = kind
            changes.append(Change(ChangeKind.ADDED, f"{path}.{name}" if path else name, None, kind))
    return pa.struct(list(fields.items()))


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


_MOST_DIGITS = 76
_DIGITS_OF_DECIMAL128 = 38


def wider(one: Any, other: Any) -> pa.DataType | None:
    """The narrowest type that holds every value of two types without a change; None where there is none.

    Args:
        one: A type that is not nested.
        other: Likewise.
    """
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    for found in (_wider_number(one, other), _wider_bytes(one, other)):
        if found is not None:
            return found
    return None


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


def _wider_bytes(one: Any, other: Any) -> pa.DataType | None:
    texts = (types.is_string, types.is_large_string)
    if all(any(is_text(kind) for is_text in texts) for kind in (one, other)):
        return pa.large_string()
    binaries = (types.is_binary, types.is_fixed_size_binary, types.is_large_binary)
    if all(any(is_binary(kind) for is_binary in binaries) for kind in (one, other)):
        return pa.large_binary() if types.is_large_binary(one) or types.is_large_binary(other) else pa.binary()
    return None


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
    """
    rows, in_path = plain_rows(schema), tuple(path_columns)
    if known is None:
        return _held(rows, in_path, format=format)
    by_place = format.get("header") is False
    before = schema_in(known)
    both, changes = merged(before, rows, by_place=by_place)
    refused = [change for change in changes if on_change == "fail" or change.kind not in _EVOLVES]
    if refused and on_change != "roll":
        raise CheckpointMismatch(
            f"{uid}: the columns are not those of the rows before: {'; '.join(map(str, refused))}",
            hint=_HINTS[on_change],
        )
    other = [change.column for change in changes if change.kind is ChangeKind.OTHER]
    if by_place and any(change.kind in _SHIFTS for change in changes):
        other = both.names
    mixed = tuple(dict.fromkeys((*known.mixed, *other)))
    after = _held(both, in_path, mixed, format)
    return known if after == known else after


_SHIFTS = {ChangeKind.ADDED, ChangeKind.GONE, ChangeKind.MOVED}
"""Changes after which a column that is told by its place stands elsewhere, or its line has fewer."""
_HINTS = {
    "fail": "Let the query write the columns it wrote before; or set "
    'on_schema_change="evolve", by which columns may be added and types widened, or "roll", by which '
    "new rows go to new files whatever they are.",
    "evolve": "Columns may be added and types widened. Cast the column, or add it with nulls; or set "
    'on_schema_change="roll", by which new rows go to new files whatever they are.',
}


def _held(
    schema: pa.Schema,
    path_columns: tuple[str, ...],
    mixed: tuple[str, ...] = (),
    format: Mapping[str, JsonValue] = MappingProxyType({}),
) -> RowSchema:
    arrow = schema.serialize().to_pybytes()
    return RowSchema(arrow=arrow, path_columns=path_columns, mixed=mixed, format=dict(format))


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
        both, changes = merged(schema_in(found), schema_in(one))
        other = (change.column for change in changes if change.kind is ChangeKind.OTHER)
        mixed = tuple(dict.fromkeys((*found.mixed, *one.mixed, *other)))
        format = found.format if found.format == one.format else {}
        found = _held(both, tuple(dict.fromkeys((*found.path_columns, *one.path_columns))), mixed, format)
    return found
