"""One row of any schema, without a null in it, to try out whether a format can write such rows at all."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types


def sample_row(schema: pa.Schema) -> pa.Table:
    """One row, or none where Arrow cannot make a value of some type."""
    try:
        columns = [pa.array([_value(field.type)], field.type) for field in schema]
    except (pa.ArrowException, TypeError, ValueError):
        return schema.empty_table()
    return pa.Table.from_arrays(columns, schema=schema)


def _value(kind: Any) -> Any:
    if types.is_struct(kind):
        return {kind.field(index).name: _value(kind.field(index).type) for index in range(kind.num_fields)}
    if types.is_map(kind):
        return [(_value(kind.key_type), _value(kind.item_type))]
    if types.is_fixed_size_list(kind):
        return [_value(kind.value_type)] * kind.list_size
    if types.is_list(kind) or types.is_large_list(kind):
        return [_value(kind.value_type)]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _value(kind.value_type)
    return _single_value(kind)


def _single_value(kind: Any) -> Any:
    if types.is_null(kind):
        return None
    if types.is_boolean(kind):
        return False
    if types.is_decimal(kind):
        return Decimal(0)
    if types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    # Bytes are taken for text as well.
    return (0.0 if types.is_floating(kind) else 0) if types.is_primitive(kind) else b""
