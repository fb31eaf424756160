"""Columns as Avro's binary encoding: for each row the bytes of its field, made by whole-column operations.

A column becomes *pieces*: arrays of bytes, or one constant for all rows, that stand one after the other in each row. A
null in a piece stands for no bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from partfile.filesystems.errors import ConfigError
from partfile.writers.avro_schema import decimal_bytes
from partfile.writers.plain_columns import map_entries
from partfile.writers.scalar_text import is_binary, is_text
from partfile.writers.text_columns import kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BYTES = pa.large_binary()
_NOTHING = b""
_LONGEST_VARINT_BYTES = 10
_SEVEN_BITS = 7
_GOES_ON = 0x80


def row_bytes(schema: pa.Schema, columns: Sequence[Any], rows: int) -> Any:
    """The bytes of each row: its fields in order, as a large_binary array without nulls.

    Args:
        schema: Plain columns.
        columns: Their values.
        rows: How many there are.

    Raises:
        ConfigError: A null where the schema allows none, or a value that would lose digits.
    """
    return _joined(_fields(list(schema), columns), rows)


def varint(value: int) -> bytes:
    """One number as Avro writes a long."""
    return bytes(_varints(np.array([value], np.int64))[1])


def _fields(fields: Sequence[Any], columns: Sequence[Any]) -> list[Any]:
    return [piece for field, column in zip(fields, columns, strict=True) for piece in _field(field, column)]


def _field(field: Any, column: Any) -> list[Any]:
    """The pieces of a column, behind the branch of its union if nulls are allowed."""
    if types.is_null(column.type) or len(column) == 0:
        return []
    if not field.nullable:
        if column.null_count:
            raise ConfigError(f"Field {field.name!r} holds nulls, and its schema says that it holds none.")
        return _value(column)
    if column.null_count == 0:
        return [_constant(b"\x02"), *_value(column)]
    branches = kernels.if_else(column.is_valid(), _constant(b"\x02"), _constant(b"\x00"))
    return [branches, *_value(column)]


def _value(column: Any) -> list[Any]:
    """The pieces of the values; each is null, or without bytes, where the column is null."""
    for matches, encode in _ENCODERS:
        if matches(column.type):
            return encode(column)
    values = _numbers(column)
    return [_like(column, *_varints(values))]


def _numbers(column: Any) -> Any:
    """The 64-bit integers that stand for a column of integers, dates, times, timestamps or durations."""
    kind = column.type
    try:
        if types.is_date64(kind):
            column = column.cast(pa.date32())
        elif types.is_timestamp(kind) and kind.unit == "s":
            column = column.cast(pa.timestamp("ms", kind.tz))
        elif types.is_duration(kind):
            column = column.cast(pa.duration("us"))
        elif types.is_time(kind):
            column = column.cast(pa.time32("ms") if types.is_time32(kind) else pa.time64("us"))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"A value of type {kind} has no form in Avro without a loss: {error}",
            hint="Round it before the sink: Avro holds times and intervals to the microsecond.",
        ) from error
    if not types.is_integer(column.type):
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())  # noqa: PLR2004
    column = column.cast(pa.int64())
    if column.null_count:
        column = kernels.fill_null(column, 0)
    return column.to_numpy(zero_copy_only=False)


def _booleans(column: Any) -> list[Any]:
    return [kernels.if_else(column, _constant(b"\x01"), _constant(b"\x00"))]


def _floats(column: Any) -> list[Any]:
    column = column.cast(pa.float32()) if types.is_float16(column.type) else column
    width = column.type.bit_width // 8
    return [_fixed(column, np.frombuffer(column.buffers()[1], np.uint8), width)]


def _decimals(column: Any) -> list[Any]:
    if column.type.bit_width < 128:  # noqa: PLR2004
        column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    width = column.type.bit_width // 8
    size = decimal_bytes(column.type.precision)
    places = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + len(column)) * width]
    big_endian = places.reshape(-1, width)[:, size - 1 :: -1]
    return [_like(column, np.full(len(column), size), np.ascontiguousarray(big_endian).reshape(-1))]


def _fixed(column: Any, data: Any, width: int) -> Any:
    start = column.offset * width
    return _like(column, np.full(len(column), width), data[start : start + len(column) * width])


def _texts(column: Any) -> list[Any]:
    texts = column.cast(pa.large_string()).cast(BYTES) if is_text(column.type) else column.cast(BYTES)
    sizes = kernels.fill_null(kernels.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return [_like(column, *_varints(sizes)), texts]


def _structs(column: Any) -> list[Any]:
    fields = [column.type.field(index) for index in range(column.type.num_fields)]
    if column.null_count == 0:
        return _fields(fields, column.flatten())
    valid = column.is_valid()
    present = column.filter(valid)
    inner = _joined(_fields(fields, present.flatten()), len(present))
    return [_spread(inner, valid)]


def _spread(present: Any, valid: Any) -> Any:
    """Put the values for the valid rows at their places, with nulls between."""
    mask = valid.to_numpy(zero_copy_only=False)
    return present.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _lists(column: Any) -> list[Any]:
    lengths = kernels.fill_null(kernels.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    items = column.flatten()
    return _collection(column, lengths, _joined(_field(column.type.value_field, items), len(items)))


def _maps(column: Any) -> list[Any]:
    lists = map_entries(column)
    lengths = kernels.fill_null(kernels.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    pairs = lists.flatten()
    return _collection(lists, lengths, _joined(_fields(list(pairs.type), pairs.flatten()), len(pairs)))


def _collection(column: Any, lengths: Any, items: Any) -> list[Any]:
    """One block of all items, and the empty block that ends a collection."""
    counts = _like(column, *_varints(lengths.astype(np.int64)))
    counts = kernels.if_else(pa.array(lengths == 0), pa.scalar(None, BYTES), counts)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    body: Any = pa.scalar(_NOTHING, BYTES)
    if len(items):
        places = np.frombuffer(items.buffers()[1], np.int64)[items.offset : items.offset + len(items) + 1]
        buffers = [None, pa.py_buffer(places[ends]), items.buffers()[2]]
        body = pa.LargeBinaryArray.from_buffers(BYTES, len(column), buffers)
    return [counts, body, _like(column, np.ones(len(column), np.int64), np.zeros(len(column), np.uint8))]


def _varints(values: Any) -> tuple[Any, Any]:
    """The sizes and the bytes of numbers as Avro writes them: zigzag, seven bits a byte, the lowest first."""
    zigzag = ((values << 1) ^ (values >> 63)).view(np.uint64)
    largest = int(zigzag.max()) if len(zigzag) else 0
    width = max(1, -(-largest.bit_length() // _SEVEN_BITS))
    if width == 1:
        return np.ones(len(zigzag), np.int64), zigzag.astype(np.uint8)
    groups = np.empty((len(zigzag), width), np.uint8)
    used = np.empty((len(zigzag), width), np.bool_)
    for place in range(width):
        groups[:, place] = zigzag & 0x7F | _GOES_ON
        used[:, place] = zigzag != 0
        zigzag = zigzag >> np.uint64(_SEVEN_BITS)
    used[:, 0] = True
    sizes = used.sum(axis=1)
    groups[np.arange(len(zigzag)), sizes - 1] &= 0x7F
    return sizes, groups[used]


def _like(column: Any, sizes: Any, data: Any) -> Any:
    """Bytes of these sizes for the rows of a column, null where it is null."""
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    valid = _bits(column.is_valid()) if column.null_count else None
    return pa.LargeBinaryArray.from_buffers(
        BYTES, len(column), [valid, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _bits(mask: Any) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask.to_numpy(zero_copy_only=False), bitorder="little"))


def _joined(pieces: list[Any], rows: int) -> Any:
    if not any(isinstance(piece, pa.Array) for piece in pieces):
        constant = _NOTHING.join(piece.as_py() for piece in pieces)
        return pa.repeat(_constant(constant), rows)
    return kernels.binary_join_element_wise(
        *pieces, _constant(_NOTHING), null_handling="replace", null_replacement=_NOTHING
    )


def _constant(data: bytes) -> Any:
    return pa.scalar(data, BYTES)


_ENCODERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], list[Any]]], ...] = (
    (types.is_boolean, _booleans),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (lambda kind: is_text(kind) or is_binary(kind), _texts),
    (types.is_struct, _structs),
    (types.is_map, _maps),
    (types.is_nested, _lists),
)
