"""Arrow schemas as Avro schemas, and which columns have none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.filesystems.errors import UnsupportedTypeError
from partfile.writers.scalar_text import is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Callable

ROW_NAME = "row"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT_BITS = 32


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    """The schema of a file of these columns: a record, whose fields are unions with null where nulls are allowed.

    Args:
        schema: Plain columns (see ``plain_schema``).

    Raises:
        UnsupportedTypeError: Names the column, the place within it, its type, and what to do.
    """
    if len(schema) == 0:
        raise UnsupportedTypeError("Avro needs at least one column, and there is none.")
    _check_names(schema.names, "")
    return _record(ROW_NAME, None, list(schema), ROW_NAME)


def decimal_bytes(precision: int) -> int:
    """Bytes that hold each decimal of so many digits, as two's complement."""
    largest: int = 10**precision
    return largest.bit_length() // 8 + 1


def _record(name: str, namespace: str | None, fields: list[Any], path: str) -> dict[str, Any]:
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace is not None:
        record["namespace"] = namespace
    record["fields"] = [_field(field, f"{path}.{field.name}") for field in fields]
    return record


def _field(field: Any, path: str) -> dict[str, Any]:
    kind = _nullable(field, path)
    return {"name": field.name, "type": kind, **({"default": None} if isinstance(kind, list) else {})}


def _nullable(field: Any, path: str) -> Any:
    kind = _type(field.type, path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _type(kind: Any, path: str) -> Any:
    for matches, avro_type in _SIMPLE:
        if matches(kind):
            return avro_type(kind)
    if types.is_decimal(kind):
        return _decimal(kind, path)
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        _check_names([field.name for field in fields], path)
        namespace, _, name = path.rpartition(".")
        return _record(name, namespace, fields, path)
    if types.is_map(kind):
        if not is_text(kind.key_type):
            raise _refused(path, f"a map key of type {kind.key_type}", "Cast the keys to string.")
        return {"type": "map", "values": _nullable(kind.item_field, f"{path}.value")}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, f"{path}.item")}
    hint = "Cast it to decimal(20, 0)." if types.is_uint64(kind) else "Cast it to a type that docs/FORMATS.md lists."
    raise _refused(path, str(kind), hint)


def _decimal(kind: Any, path: str) -> dict[str, Any]:
    if not 0 <= kind.scale <= kind.precision:
        raise _refused(path, str(kind), "Cast it to a decimal whose scale is neither negative nor above its precision.")
    namespace, _, name = path.rpartition(".")
    fixed = {"type": "fixed", "name": name, "namespace": namespace, "size": decimal_bytes(kind.precision)}
    return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}


def _logical(base: str, name: str) -> dict[str, Any]:
    return {"type": base, "logicalType": name}


def _integer(kind: Any) -> str:
    small = kind.bit_width < _INT_BITS or types.is_int32(kind)
    return "int" if small else "long"


def _timestamp(kind: Any) -> dict[str, Any]:
    unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[kind.unit]
    return _logical("long", f"{'local-' if kind.tz is None else ''}timestamp-{unit}")


def _time(kind: Any) -> dict[str, Any]:
    return _logical("int", "time-millis") if types.is_time32(kind) else _logical("long", "time-micros")


_SIMPLE: tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...] = (
    (types.is_null, lambda _: "null"),
    (types.is_boolean, lambda _: "boolean"),
    (lambda kind: types.is_integer(kind) and not types.is_uint64(kind), _integer),
    (lambda kind: types.is_float16(kind) or types.is_float32(kind), lambda _: "float"),
    (types.is_float64, lambda _: "double"),
    (is_text, lambda _: "string"),
    (is_binary, lambda _: "bytes"),
    (types.is_date, lambda _: _logical("int", "date")),
    (types.is_time, _time),
    (types.is_timestamp, _timestamp),
    # As Spark writes it: microseconds, and the name of its own type.
    (types.is_duration, lambda _: {"type": "long", "spark.sql.catalyst.type": "interval day to second"}),
)


def _check_names(names: list[str], path: str) -> None:
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise _refused(f"{path}.{name}", "a name that is not made of letters, digits and _", "Rename the column.")
        if name in names[:index]:
            raise _refused(f"{path}.{name}", "a name that occurs twice", "Rename one of them.")


def _refused(path: str, what: str, hint: str) -> UnsupportedTypeError:
    shown = path.removeprefix(f"{ROW_NAME}.").removeprefix(".")
    return UnsupportedTypeError(
        f"Column {shown.split('.')[0]!r} cannot be written as Avro: {what} has no form at {shown!r}.", hint=hint
    )
