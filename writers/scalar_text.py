"""One text form for each scalar Arrow type, shared by JSON lines and CSV. docs/FORMATS.md is the table of them.

Nulls stay null here; quoting and escaping are the format's business. None of these texts needs any escaping.
"""

from __future__ import annotations

from binascii import b2a_base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types

from partfile.writers.temporal_text import date_text, duration_text, time_text, timestamp_text
from partfile.writers.text_columns import TEXT, is_any, join, kernels, literal, nulls_of, replace_where, used_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_GROUP = 3
_GROUP_TEXT = 4
_END = 1 << 62


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How the three values that have no digits are written."""

    nan: str = "NaN"
    infinity: str = "Infinity"
    minus_infinity: str = "-Infinity"


def is_number(kind: pa.DataType) -> bool:
    """Tell whether values of this type are written without quotes in JSON."""
    return bool(types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind))


def scalar_text(column: Any, non_finite: NonFinite) -> Any:
    """Write each value of a column as text. The type has been checked before.

    Args:
        column: An array of a scalar type; strings pass through as they are.
        non_finite: The words for NaN and the infinities.
    """
    if types.is_floating(column.type):
        return _float_text(column, non_finite)
    for is_kind, encode in _ENCODERS:
        if is_kind(column.type):
            return encode(column)
    return column.cast(TEXT)


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of this type are characters."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Tell whether values of this type are bytes."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _float_text(column: Any, words: NonFinite) -> Any:
    """Shortest text that reads back to the same value; ``1`` and ``-0`` get ``.0``, or they would read as integers."""
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    text = column.cast(TEXT)
    integral = kernels.equal(kernels.trunc(column), column)
    if is_any(integral):
        text = replace_where(text, integral, _with_point)
    if not kernels.all(kernels.is_finite(column)).as_py():
        odd = kernels.invert(kernels.is_finite(column))
        text = replace_where(text, odd, lambda found: _words(found, words))
    return text


def _with_point(text: Any) -> Any:
    # Arrow goes over to an exponent for large values, and those are floats to every reader as they are.
    bare = kernels.invert(kernels.match_substring_regex(text, "[en]"))
    return kernels.if_else(bare, join([text, literal(".0")]), text)


def _words(text: Any, words: NonFinite) -> Any:
    signed = kernels.if_else(
        kernels.equal(text, literal("inf")), literal(words.infinity), literal(words.minus_infinity)
    )
    return kernels.if_else(kernels.equal(text, literal("nan")), literal(words.nan), signed)


def _decimal_text(column: Any) -> Any:
    """Digits with the point in its place, never an exponent: ``0.000000000000000000``, not Arrow's ``0E-18``."""
    text = column.cast(TEXT)
    with_exponent = kernels.match_substring(text, pattern="E")
    if not is_any(with_exponent):
        return text
    kind = column.type
    integer = getattr(pa, f"decimal{kind.bit_width}")(kind.precision, 0)
    unscaled = pa.Array.from_buffers(integer, len(column), column.buffers(), offset=column.offset)
    digits = unscaled.filter(kernels.fill_null(with_exponent, fill_value=False)).cast(TEXT)
    return replace_where(text, with_exponent, lambda _: _pointed(digits, kind.scale))


def _pointed(digits: Any, scale: int) -> Any:
    sign = kernels.if_else(kernels.starts_with(digits, pattern="-"), literal("-"), literal(""))
    padded = kernels.ascii_lpad(kernels.ascii_ltrim(digits, characters="-"), width=scale + 1, padding="0")
    return join([sign, kernels.binary_replace_slice(padded, start=-scale, stop=-scale, replacement=".")])


def _base64_text(column: Any) -> Any:
    """RFC 4648 base64 with padding.

    Arrow has no kernel for it, and one call a value would be a Python loop. So each value is filled up to whole groups
    of three bytes, the bytes of all values are encoded by one call, and the fill shows as ``A`` where ``=`` belongs.
    """
    values = kernels.fill_null(column.cast(pa.large_binary()), b"")
    length = kernels.binary_length(values)
    missing = kernels.subtract(
        kernels.multiply(kernels.divide(kernels.add(length, _GROUP - 1), _GROUP), _GROUP), length
    )
    fill = kernels.take(pa.array([b"", b"\0", b"\0\0"], pa.large_binary()), missing)
    filled = kernels.binary_join_element_wise(values, fill, pa.scalar(b"", pa.large_binary()))
    encoded = pa.py_buffer(b2a_base64(used_bytes(filled), newline=False))
    starts = pa.Int64Array.from_buffers(pa.int64(), len(filled) + 1, [None, filled.buffers()[1]], offset=filled.offset)
    offsets = kernels.multiply(kernels.divide(starts, _GROUP), _GROUP_TEXT)
    text = pa.LargeStringArray.from_buffers(len(filled), offsets.buffers()[1], encoded)
    text = replace_where(text, kernels.equal(missing, 1), lambda found: _padded(found, "="))
    text = replace_where(text, kernels.equal(missing, 2), lambda found: _padded(found, "=="))
    return nulls_of(column, text)


def _padded(text: Any, padding: str) -> Any:
    return kernels.binary_replace_slice(text, start=-len(padding), stop=_END, replacement=padding)


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (types.is_timestamp, timestamp_text),
    (types.is_date, date_text),
    (types.is_time, time_text),
    (types.is_duration, duration_text),
    (types.is_decimal, _decimal_text),
    (is_binary, _base64_text),
)
