"""Avro schemas as Arrow's: what each column is, and how its values lie while Python holds them. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.filesystems.errors import UnsupportedTypeError

if TYPE_CHECKING:
    from collections.abc import Iterator

_PRIMITIVE: dict[str, Any] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], Any] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_SPARK_TYPE = "spark.sql.catalyst.type"
_SPARK_DURATION = "interval day to second"
_MOST_DECIMAL128_DIGITS = 38


def arrow_schema(schema: Any) -> pa.Schema:
    """The columns of a file.

    Args:
        schema: Of the file, every named type written out where it is used.

    Raises:
        UnsupportedTypeError: Its values are no records, or a column is a union of several types, or holds itself.
    """
    if not isinstance(schema, dict) or schema.get("type") not in {"record", "error"}:
        raise UnsupportedTypeError("An Avro file whose values are no records has no columns.")
    return pa.schema([_field(each["name"], each["type"], each["name"]) for each in schema["fields"]])


def held_type(kind: Any) -> pa.DataType:
    """What values of an Arrow type lie in before they are of that type: numbers, bytes, and pairs instead of maps."""
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, held_type(each.type)) for each in fields])
    if types.is_nested(kind):
        return pa.list_(held_type(entries_of(kind) if types.is_map(kind) else kind.value_type))
    if types.is_decimal(kind):
        return pa.binary()
    if types.is_temporal(kind):
        return pa.int32() if types.is_date(kind) or types.is_time32(kind) else pa.int64()
    held: pa.DataType = kind
    return held


def entries_of(kind: Any) -> pa.StructType:
    """The pairs that a map consists of."""
    return pa.struct([kind.key_field, kind.item_field])


def held_schema(schema: Any) -> Any:
    """A schema of the same bytes by which Python gets numbers and bytes alone.

    Logical types go, since Python's dates end with the year 9999 and its clocks at the microsecond; and a map becomes
    an array of pairs, which is how it lies in the file, since Python's would drop keys that occur twice.

    Args:
        schema: As a parser has checked it, with full names.
    """
    return _held(schema, itertools.count())


def _held(schema: Any, numbers: Iterator[int]) -> Any:
    if isinstance(schema, list):
        return [_held(each, numbers) for each in schema]
    if not isinstance(schema, dict) or schema["type"] in _PRIMITIVE:
        return _word(schema)
    kept = {name: schema[name] for name in ("type", "name", "symbols", "size") if name in schema}
    if "fields" in schema:
        kept["fields"] = [{"name": each["name"], "type": _held(each["type"], numbers)} for each in schema["fields"]]
    elif "items" in schema:
        kept["items"] = _held(schema["items"], numbers)
    elif "values" in schema:
        kept = {"type": "array", "items": _pair(_held(schema["values"], numbers), numbers)}
    return kept


def _pair(value: Any, numbers: Iterator[int]) -> dict[str, Any]:
    # Without a namespace it takes that of what it is in, so names inside mean what they meant.
    name = f"partfile_pair_{next(numbers)}"
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": value}],
    }


def _field(name: str, schema: Any, path: str) -> pa.Field[Any]:
    members = schema if isinstance(schema, list) else [schema]
    kinds = [member for member in members if _word(member) != "null"]
    if len(kinds) > 1:
        words = ", ".join(_word(member) for member in kinds)
        raise _refused(path, f"a union of {words}")
    if not kinds:
        return pa.field(name, pa.null())
    return pa.field(name, _type(kinds[0], path), nullable=len(members) > 1)


def _type(schema: Any, path: str) -> Any:
    kind = _word(schema)
    if kind in ("record", "error"):
        return pa.struct([_field(each["name"], each["type"], f"{path}.{each['name']}") for each in schema["fields"]])
    if kind == "array":
        return pa.list_(_field("item", schema["items"], f"{path}.item"))
    if kind == "map":
        return pa.map_(pa.string(), _field("value", schema["values"], f"{path}.value"))
    found = _scalar(kind, schema if isinstance(schema, dict) else {})
    if found is None:
        raise _refused(path, f"a type that holds itself, {kind},")
    return found


def _scalar(kind: str, properties: dict[str, Any]) -> Any:
    if properties.get("logicalType") == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(properties["precision"], properties.get("scale", 0))
    if properties.get(_SPARK_TYPE) == _SPARK_DURATION and kind == "long":
        return pa.duration("us")
    if kind == "fixed":
        return pa.binary(properties["size"])
    if kind == "enum":
        return pa.string()
    return _LOGICAL.get((kind, str(properties.get("logicalType"))), _PRIMITIVE.get(kind))


def _word(schema: Any) -> str:
    """The name of a type, whether it has properties or not."""
    while isinstance(schema, dict):
        schema = schema["type"]
    return "union" if isinstance(schema, list) else str(schema)


def _decimal(precision: int, scale: int) -> Any:
    return pa.decimal128(precision, scale) if precision <= _MOST_DECIMAL128_DIGITS else pa.decimal256(precision, scale)


def _refused(path: str, what: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"Column {path.split('.', maxsplit=1)[0]!r} cannot be read from Avro: {what} has no Arrow type at {path!r}.",
        hint="No sink writes such columns; read the file with fastavro.",
    )
