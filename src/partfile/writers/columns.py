"""Columns in their plain form: the values of dictionaries, runs and views, which every reader knows.

A stream of dictionaries repeats them with each batch, and a slice of views keeps all of its text.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.errors import UnsupportedTypeError
from partfile.writers.scalars import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of the plain columns, with all metadata.

    What lies below a struct that may be null may be null as well: Spark hands a null over with nulls in all of its
    fields, also in those that are never null in a struct, and Arrow would write no such column.
    """
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def as_plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a batch with plain columns.

    Args:
        batch: Any rows.
        schema: What ``plain_schema`` makes of their schema.
    """
    if batch.schema.types == schema.types:
        return batch
    columns = [
        column if column.type == field.type else _plain_column(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def map_entries(column: Any) -> Any:
    """A column of maps as lists of structs: the keys and items of a slice of maps are those of the whole column."""
    entries = pa.struct([column.type.key_field, column.type.item_field])
    return column.cast(pa.list_(pa.field("entries", entries, nullable=False)))


def nested_values(column: Any) -> Iterator[Any]:
    """The columns of single values in a column, itself or all that is nested in it but for what lies below a null."""
    kind = column.type
    if types.is_struct(kind):
        for child in column.flatten():
            yield from nested_values(child)
    elif types.is_map(kind):
        yield from nested_values(map_entries(column))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from nested_values(column.flatten())
    else:
        yield column


def check_types(schema: pa.Schema, form: str) -> None:
    """Refuse types that Arrow takes and then writes so that no reader gets them back, or that end the process.

    These are unions, structs with a name twice, and decimals of a negative scale, at the top and nested.

    Args:
        schema: Plain columns.
        form: What the message calls the format.

    Raises:
        UnsupportedTypeError: Names the column, the place within it, and its type.
    """
    for column in schema:
        for path, what, hint in _unwritable(column.name, column.type):
            at = f" at {path!r}" if path != column.name else ""
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as {form}: {what} has no form{at}.",
                hint=hint,
            )


def _unwritable(path: str, kind: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the place, name and way out of each part of a column that cannot be written."""
    if types.is_union(kind):
        yield path, "a union", "Make it a struct with a field for each of its types, or drop it."
    elif types.is_decimal(kind) and kind.scale < 0:
        yield path, str(kind), "Cast it to a decimal whose scale is not negative."
    elif types.is_map(kind):
        yield from _unwritable(f"{path}.key", kind.key_type)
        yield from _unwritable(f"{path}.value", kind.item_type)
    elif types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        for name, count in Counter(field.name for field in fields).items():
            if count > 1:
                yield f"{path}.{name}", "a name that occurs twice", "Rename one of them."
        for field in fields:
            yield from _unwritable(f"{path}.{field.name}", field.type)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _unwritable(f"{path}[]", kind.value_type)


def _plain_field(field: pa.Field[Any], *, may_be_null: bool = False) -> pa.Field[Any]:
    is_nullable = field.nullable or may_be_null
    return field.with_type(_plain_type(field.type, may_be_null=is_nullable)).with_nullable(is_nullable)


def _plain_type(kind: Any, *, may_be_null: bool) -> pa.DataType:
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type, may_be_null=may_be_null)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    return _plain_nested(kind, may_be_null=may_be_null) if types.is_nested(kind) else kind


def _plain_nested(kind: Any, *, may_be_null: bool) -> pa.DataType:
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([_plain_field(field, may_be_null=may_be_null) for field in fields])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return pa.large_list(_plain_field(kind.value_field)) if types.is_large_list(kind) else kind


def _plain_column(column: Any, kind: pa.DataType) -> Any:
    if types.is_run_end_encoded(column.type):
        column = kernels.run_end_decode(column)
    if types.is_struct(column.type):
        children = [_plain_column(child, kind.field(at).type) for at, child in enumerate(column.flatten())]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    try:
        return column.cast(kind)
    except pa.ArrowIndexError:
        # Arrow looks up the index below a null, also in a dictionary of nothing.
        return pa.array(column.to_pylist(), kind)


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
