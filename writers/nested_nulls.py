"""Nested columns whose children are null wherever what holds them is, and that lie in memory of their own.

Arrow leaves open what a field holds where its struct is null. Arrow 26 writes such a field to ORC as if it counted, and
takes the children of a slice of structs for those of the slice: other rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from partfile.writers.plain_columns import map_entries
from partfile.writers.text_columns import kernels


def settled(table: pa.Table) -> pa.Table:
    """The same rows, copied where a column is nested."""
    columns = [_settled(column) if types.is_nested(column.type) else column for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _settled(column: Any) -> Any:
    chunks = [_with_nulls_below(chunk.take(pa.array(np.arange(len(chunk))))) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type)


def _with_nulls_below(column: Any) -> Any:
    kind = column.type
    if types.is_struct(kind):
        children = [_with_nulls_below(child) for child in column.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if types.is_map(kind):
        pairs = map_entries(column)
        keys, items = pairs.flatten().flatten()
        return pa.MapArray.from_arrays(_offsets(pairs, pa.int32()), keys, _with_nulls_below(items), type=kind)
    if types.is_list(kind):
        values = _with_nulls_below(column.flatten())
        return pa.ListArray.from_arrays(_offsets(column, pa.int32()), values, type=kind)
    if types.is_large_list(kind):
        values = _with_nulls_below(column.flatten())
        return pa.LargeListArray.from_arrays(_offsets(column, pa.int64()), values, type=kind)
    if types.is_fixed_size_list(kind):
        return _with_nulls_below(column.cast(pa.list_(kind.value_field))).cast(kind)
    return column


def _offsets(column: Any, kind: pa.DataType) -> Any:
    """Where the values of each row end once those of null rows are gone; null for a null row."""
    lengths = kernels.fill_null(kernels.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    is_null = np.append(column.is_null().to_numpy(zero_copy_only=False), [False])
    return pa.array(ends, kind, mask=is_null)
