"""Columns in their plain form, which every reader knows: values of dictionaries, runs and views; instants in UTC.

A stream of dictionaries repeats them with each batch, and a slice of views keeps all of its text.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import TYPES_URL
from partfile.writers.scalars import kernels, places_in_runs

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

    Raises:
        ConfigError: Arrow cannot make plain values of a column; names it.
    """
    if batch.schema.types == schema.types:
        return batch
    columns = [_named_column(field, column) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _named_column(field: pa.Field[Any], column: Any) -> Any:
    if column.type == field.type:
        return column
    try:
        return _plain_column(column, field.type)
    except pa.ArrowException as error:
        raise ConfigError(
            f"Column {field.name!r} of type {column.type} cannot be written as {field.type}: {error}",
            hint=f"Write its plain values, or cast it to a type of {TYPES_URL}",
        ) from error


def map_entries(column: Any) -> Any:
    """A column of maps as lists of structs: the keys and items of a slice of maps are those of the whole column."""
    # Not by a cast: Arrow 26 makes of a slice with columns of nothing an array that ends the process.
    entries = pa.StructArray.from_arrays(
        [column.keys, column.items], fields=[column.type.key_field, column.type.item_field]
    )
    kind = pa.list_(pa.field("entries", entries.type, nullable=False))
    return pa.Array.from_buffers(kind, len(column), column.buffers()[:2], offset=column.offset, children=[entries])


def list_offsets(column: Any, kind: pa.DataType) -> Any:
    """The end of the values of each row once those of null rows are gone; null for a null row."""
    lengths = kernels.fill_null(kernels.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    is_null = np.append(column.is_null().to_numpy(zero_copy_only=False), [False])
    return pa.array(ends, kind, mask=is_null)


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

    These are unions, structs with a name twice, and decimals of a negative scale, at the top and nested; in Parquet
    also lists of no items.

    Args:
        schema: Plain columns.
        form: What the message calls the format.

    Raises:
        UnsupportedTypeError: Names the column, the place within it, and its type.
    """
    for column in schema:
        for path, what, hint in _unwritable(column.name, column.type, form):
            at = f" at {path!r}" if path != column.name else ""
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as {form}: {what} has no form{at}.",
                hint=hint,
            )


def _unwritable(path: str, kind: Any, form: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, name and way out of each part of a column that cannot be written."""
    if types.is_union(kind):
        yield path, "a union", "Make it a struct with a field for each of its types, or drop it."
    elif types.is_decimal(kind) and kind.scale < 0:
        yield path, str(kind), "Cast it to a decimal whose scale is not negative."
    elif types.is_fixed_size_list(kind) and kind.list_size == 0 and form == "Parquet":
        yield (
            path,
            "a list of no items, which pyarrow does not read back where it is null,",
            "Drop the column, or write format='json'.",
        )
    elif types.is_map(kind):
        yield from _unwritable(f"{path}.key", kind.key_type, form)
        yield from _unwritable(f"{path}.value", kind.item_type, form)
    elif types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        for name, count in Counter(field.name for field in fields).items():
            if count > 1:
                yield f"{path}.{name}", "a name that occurs twice", "Rename one of them."
        for field in fields:
            yield from _unwritable(f"{path}.{field.name}", field.type, form)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _unwritable(f"{path}[]", kind.value_type, form)


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
    if types.is_timestamp(kind) and kind.tz is not None:
        # Many readers take no tree whose files have several zones, and a session of Spark's has one of its own.
        return pa.timestamp(kind.unit, "UTC")
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


def _plain_column(column: Any, kind: Any) -> Any:
    own = column.type
    if own == kind:
        return column
    if types.is_run_end_encoded(own):
        return _plain_column(column.values, kind).take(places_in_runs(column))
    if types.is_dictionary(own):
        # Not by a cast, which looks up the index below a null, also in a dictionary of nothing.
        return _plain_column(column.dictionary, kind).take(column.indices)
    return _plain_nested_column(column, kind) if types.is_nested(own) else column.cast(kind)


def _plain_nested_column(column: Any, kind: Any) -> Any:
    """Made from its parts, as Arrow 26 casts slices of what holds columns of nothing to arrays beyond their end."""
    own = column.type
    if types.is_struct(own):
        children = [_plain_column(child, kind.field(at).type) for at, child in enumerate(column.flatten())]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if types.is_map(own):
        pairs = map_entries(column)
        keys, items = pairs.flatten().flatten()
        keys, items = _plain_column(keys, kind.key_type), _plain_column(items, kind.item_type)
        return pa.MapArray.from_arrays(list_offsets(pairs, pa.int32()), keys, items, type=kind)
    if types.is_fixed_size_list(own) and own.list_size:
        values = column.values.slice(column.offset * own.list_size, len(column) * own.list_size)
        mask = column.is_null() if column.null_count else None
        return pa.FixedSizeListArray.from_arrays(_plain_column(values, kind.value_type), type=kind, mask=mask)
    if types.is_list(own):
        values = _plain_column(column.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(list_offsets(column, pa.int32()), values, type=kind)
    if types.is_large_list(own):
        values = _plain_column(column.flatten(), kind.value_type)
        return pa.LargeListArray.from_arrays(list_offsets(column, pa.int64()), values, type=kind)
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
