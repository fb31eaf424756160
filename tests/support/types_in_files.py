"""Which Arrow type a column has when a file of a format is read back, as docs/FORMATS.md says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

from partfile.writers.columns import plain_schema
from partfile.writers.scalars import is_binary, is_text


def type_in(format: str, kind: Any) -> Any:
    """The type that a column of some type has in Parquet, ORC or Avro."""
    plain: Any = plain_schema(pa.schema({"x": kind})).field(0).type
    if types.is_struct(plain):
        return pa.struct([(each.name, type_in(format, each.type)) for each in plain])
    if types.is_map(plain):
        return pa.map_(plain.key_type, type_in(format, plain.item_type))
    if types.is_nested(plain):
        return _list(format, plain, type_in(format, plain.value_type))
    return _SCALARS[format](plain)


def _list(format: str, kind: Any, item: Any) -> Any:
    if format != "parquet":
        return pa.list_(item)
    if types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)


def _in_parquet(kind: Any) -> Any:
    """Days, and milliseconds instead of seconds."""
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if types.is_time32(kind) else kind


def _in_orc(kind: Any) -> Any:
    """Instants in nanoseconds of UTC, days, and no difference between large and small."""
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz and "UTC")
    return pa.date32() if types.is_date64(kind) else _small(kind)


def _in_avro(kind: Any) -> Any:
    """Two widths of integers, two of decimals, microseconds; seconds become milliseconds."""
    if types.is_integer(kind):
        return pa.int32() if kind.bit_width < 32 or types.is_int32(kind) else pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, kind.tz and "UTC")
    if types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    for matches, found in _AVRO_MOMENTS:
        if matches(kind):
            return found
    return _small(kind)


_AVRO_MOMENTS: tuple[tuple[Any, Any], ...] = (
    (types.is_time32, pa.time32("ms")),
    (types.is_time64, pa.time64("us")),
    (types.is_duration, pa.duration("us")),
    (types.is_date, pa.date32()),
)


def _small(kind: Any) -> Any:
    if is_text(kind):
        return pa.string()
    return pa.binary() if is_binary(kind) else kind


_SCALARS = {"parquet": _in_parquet, "orc": _in_orc, "avro": _in_avro}
