"""The text form of each scalar Arrow type, shared by JSON lines and CSV; docs/FORMATS.md has the table.

Nulls stay null here. Quoting and escaping belong to the format.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import TYPES_URL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


TEXT = pa.large_string()

kernels: Any = pyarrow.compute  # The stubs miss some kernels, and operands that every kernel takes.
# From buffers: pyarrow loads pandas for the first scalar that is made of a value, which doubles the time of an import.
_EMPTY = pa.Array.from_buffers(TEXT, 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
_BLOCK_BYTES = 1 << 16


class UnwritableValue(ConfigError):
    """A value that a format has no form for, in a column whose name is not known yet."""


@contextmanager
def in_column(name: str, form: str) -> Iterator[None]:
    """Name the column of what cannot be written.

    Args:
        name: Of the column at the top.
        form: What the message calls the format, as ``"JSON lines"``.

    Raises:
        ConfigError: In the place of ``UnwritableValue``.
    """
    try:
        yield
    except UnwritableValue as error:
        raise ConfigError(f"Column {name!r} cannot be written as {form}: {error.message}", hint=error.hint) from error


def literal(text: str) -> Any:
    """Make a constant that joins with text columns."""
    return pa.scalar(text, TEXT)


def join(parts: Sequence[Any], *, null: str | None = None) -> Any:
    """Join literals and text columns row by row; a null becomes ``null``, or the whole row null where that is None."""
    if null is None:
        return kernels.binary_join_element_wise(*parts, _EMPTY)
    return kernels.binary_join_element_wise(*parts, _EMPTY, null_handling="replace", null_replacement=null)


def replace_where(text: Any, mask: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to the rows where ``mask`` is true (null counts as false), and to no other row."""
    mask = kernels.fill_null(mask, fill_value=False)
    return kernels.replace_with_mask(text, mask, change(text.filter(mask)))


def is_any(mask: Any) -> bool:
    """Tell whether a mask is true anywhere."""
    return bool(kernels.any(mask).as_py())


def used_bytes(text: Any) -> pa.Buffer:
    """The bytes that the rows of a large_string or large_binary column lie in, without a copy, slices minded."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or data is None:
        return pa.py_buffer(b"")
    places = memoryview(offsets).cast("q")
    first, last = places[text.offset], places[text.offset + len(text)]
    used: pa.Buffer = data.slice(first, last - first)
    return used


def rows_with(text: Any, marks: bytes, *, below: int = 0) -> Any:
    """Mask of the rows of a large_string column that hold one of the bytes ``marks`` or one less than ``below``.

    Reads the column's bytes at memory speed, in blocks small enough that no page is mapped for a scratch array.

    Returns:
        A boolean array without nulls, or None if no row does. What lies under a null may count.
    """
    data = np.frombuffer(used_bytes(text), np.uint8)
    found = []
    for start in range(0, data.size, _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        marked = block < below
        for mark in marks:
            marked |= block == mark
        places = np.flatnonzero(marked)
        if places.size:
            found.append(places + start)
    if not found:
        return None
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text)]
    mask = np.zeros(len(text), np.bool_)
    # The last row that begins at or before a byte holds it: rows without bytes begin where the next one does.
    mask[np.searchsorted(offsets, np.concatenate(found) + offsets[0], side="right") - 1] = True
    return pa.array(mask)


def places_in_runs(column: Any) -> Any:
    """Where in the values of a column of runs the value of each row is; Arrow decodes runs of few types."""
    ends = column.run_ends.to_numpy()
    rows = np.arange(column.offset, column.offset + len(column))
    return pa.array(np.searchsorted(ends, rows, side="right"))


def replace(text: Any, old: str, new: str) -> Any:
    """Replace every ``old`` in each row."""
    return kernels.replace_substring(text, pattern=old, replacement=new)


def nulls_of(column: Any, text: Any) -> Any:
    """Make ``text`` null where ``column`` is."""
    return text if column.null_count == 0 else kernels.if_else(column.is_valid(), text, pa.scalar(None, TEXT))


_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_DATE_CHARACTERS = 10

# ISO 8601 has years 0 to 9999 as four digits. Of others Arrow prints no sign, and pyarrow and DuckDB read none.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896

_FIRST_READ_NS = -9_223_372_036 * 10**9
"""Nanoseconds since 1970 that pyarrow reads from text: it multiplies whole seconds, and refuses what overflows."""


def whole_days(column: Any) -> Any:
    """A column of ``date64`` as ``date32``, which is what every format holds of it.

    Raises:
        UnwritableValue: A value is no whole day, or too far away for one.
    """
    try:
        return column.cast(pa.date32())
    except pa.ArrowInvalid as error:
        raise UnwritableValue(
            f"A value of type {column.type} is no whole day, or too far away: {error}",
            hint="Write the column as instants: column.cast(pa.timestamp('ms')).",
        ) from error


def date_text(column: Any) -> Any:
    """``2024-02-29``.

    Raises:
        UnwritableValue: A value lies outside the years 0 to 9999, or is no whole day.
    """
    if pa.types.is_date64(column.type):
        column = whole_days(column)
    if _is_outside(column.view(pa.int32()).cast(pa.int64()), _FIRST_DAY, _LAST_DAY):
        raise _beyond_years(column.type)
    return column.cast(TEXT)


def _beyond_years(kind: pa.DataType) -> UnwritableValue:
    return UnwritableValue(
        f"A value of type {kind} lies outside the years 0 to 9999 in UTC, and most readers take no other from text.",
        hint=f"Mend the value, or write the column as a number: column.cast('int{kind.bit_width}').",
    )


def time_text(column: Any) -> Any:
    """``01:02:03.456789``, with as many decimals as the unit has.

    Raises:
        UnwritableValue: A value lies outside a day.
    """
    check_times(column)
    return column.cast(TEXT)


def check_times(column: Any) -> None:
    """Refuse times that are in no day.

    Raises:
        UnwritableValue: Arrow holds such values, no text of a time says them, and DuckDB fails on a file with one.
    """
    ticks = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())  # noqa: PLR2004 - bits
    if _is_outside(ticks, 0, _DAY_SECONDS * _UNITS[column.type.unit] - 1):
        raise UnwritableValue(
            f"A value of type {column.type} lies outside a day, which no reader takes for a time.",
            hint=f"Mend the value, or write the column as a number: column.cast('int{column.type.bit_width}').",
        )


def timestamp_text(column: Any) -> Any:
    """``2024-02-29T01:02:03.456789``, and a ``Z`` after it where the type has a zone: the instant is written in UTC.

    Raises:
        UnwritableValue: A value lies outside the years 0 to 9999 in UTC, which Spark alone reads; or in the second in
            which nanoseconds of 64 bits begin, which pyarrow does not read.
    """
    zone = "Z" if column.type.tz is not None else ""
    unit = column.type.unit
    ticks = column.view(pa.int64())
    day_ticks = _UNITS[unit] * _DAY_SECONDS
    if unit != "ns" and _is_outside(ticks, _FIRST_DAY * day_ticks, (_LAST_DAY + 1) * day_ticks - 1):
        raise _beyond_years(column.type)
    if unit == "ns" and _is_outside(ticks, _FIRST_READ_NS, 2**63 - 1):
        raise UnwritableValue(
            f"A value of type {column.type} lies before 1677-09-21T00:12:44, which pyarrow does not read from text.",
            hint="Mend the value, or write the column as a number: column.cast('int64').",
        )
    # Without its zone, since that cast looks the zone up for each row: 20 times slower, for a text in local time.
    text = _with_t(kernels.fill_null(ticks, 0).view(pa.timestamp(unit)).cast(TEXT), zone)
    return nulls_of(column, text)


def _with_t(text: Any, zone: str) -> Any:
    """Put the ``T`` between date and time and the zone behind: all rows are of one width, none is null."""
    rows = len(text)
    if rows == 0:
        return text
    before = np.frombuffer(used_bytes(text), np.uint8).reshape(rows, -1)
    width = before.shape[1] + len(zone)
    after = np.empty((rows, width), np.uint8)
    after[:, : before.shape[1]] = before
    after[:, before.shape[1] :] = np.frombuffer(zone.encode(), np.uint8)
    after[:, _DATE_CHARACTERS] = ord("T")
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    return pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(after))


def duration_text(column: Any) -> Any:
    """``1 02:03:04.000005``, or ``-1 02:03:04.000005`` for less than nothing: a day-time interval as Spark reads it."""
    unit = column.type.unit
    ticks = column.view(pa.int64())
    day_ticks = _UNITS[unit] * _DAY_SECONDS
    days = kernels.divide(ticks, day_ticks)
    rest = kernels.subtract(ticks, kernels.multiply(days, day_ticks))
    sign = kernels.if_else(kernels.less(ticks, 0), literal("-"), literal(""))
    return join([sign, kernels.abs(days).cast(TEXT), literal(" "), _clock_text(kernels.abs(rest), unit)])


def _is_outside(values: Any, first: int, last: int) -> bool:
    """Whether a value lies outside a range, which is nearly free to find out."""
    limits = kernels.min_max(values).as_py()
    return limits["min"] is not None and (limits["min"] < first or limits["max"] > last)


def _clock_text(ticks: Any, unit: Any) -> Any:
    if unit in {"s", "ms"}:
        return ticks.cast(pa.int32()).view(pa.time32(unit)).cast(TEXT)
    return ticks.view(pa.time64(unit)).cast(TEXT)


_GROUP = 3
_GROUP_TEXT = 4
_END = 1 << 62


@dataclass(frozen=True, slots=True)
class NonFinite:
    """The texts of the three values that have no digits."""

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


_VARIANT_HINT = "Cast it before the sink: to_json(v) for text, or variant_get for its fields."
_MARKED_HINT = "Cast it before the sink to text or to plain columns: column.cast('string')"


def check_columns(schema: pa.Schema, form: str, *, nested: bool) -> None:
    """Refuse a schema with a column that has no form in ``form``.

    Args:
        schema: The columns.
        form: What the message calls the format, as ``"JSON lines"``.
        nested: Whether lists, maps and structs have a form.

    Raises:
        UnsupportedTypeError: Names the first such column, the place within it, and the type.
    """
    _check_names([column.name for column in schema], "", form)
    for column in schema:
        for path, kind, hint in _refused(column.name, column, nested=nested):
            at = f" at {path!r}" if path != column.name else ""
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as {form}: {kind} has no form{at}.",
                hint=hint,
            )


def _check_names(names: list[str], path: str, form: str) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise UnsupportedTypeError(
                f"Column {path + name!r} is there {count} times, and {form} needs names that differ.",
                hint="Rename one of them: df.withColumnRenamed(OLD, NEW)",
            )


def _refused(path: str, field: pa.Field[Any], *, nested: bool) -> Iterator[tuple[str, str, str]]:
    """Yield the place, type and way out of each part of a column that has no form."""
    kind = field.type
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        yield from _refused(path, field.with_type(kind.value_type), nested=nested)
    elif types.is_decimal(kind) and kind.scale < 0:
        yield path, str(kind), "Cast it to a decimal whose scale is not negative."
    elif is_scalar(kind):
        return
    elif not nested:
        yield path, str(kind), "Use json or parquet, or turn the column into text with to_json."
    elif types.is_map(kind):
        yield from _refused_map(path, kind)
    elif is_list(kind):
        yield from _refused(f"{path}[]", kind.value_field, nested=True)
    elif types.is_struct(kind):
        yield from _refused_struct(path, kind)
    else:
        yield path, str(kind), f"Drop the column, or cast it to a type of {TYPES_URL}"


def _refused_map(path: str, kind: Any) -> Iterator[tuple[str, str, str]]:
    key = kind.key_type.value_type if types.is_dictionary(kind.key_type) else kind.key_type
    if not is_text(key):
        yield f"{path}.key", f"a map key of type {key}", "Keys of JSON objects are text: cast the keys to string."
    yield from _refused(f"{path}.value", kind.item_field, nested=True)


def _refused_struct(path: str, kind: pa.StructType) -> Iterator[tuple[str, str, str]]:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    for field in fields:
        # Spark sends a variant, a geometry and a geography as structs, and marks one of the fields.
        for mark in (field.metadata or {}).keys() & {b"variant", b"geometry", b"geography"}:
            word = mark.decode()
            yield path, f"Spark's {word}", _VARIANT_HINT if word == "variant" else _MARKED_HINT
    _check_names([field.name for field in fields], f"{path}.", "JSON")
    for field in fields:
        yield from _refused(f"{path}.{field.name}", field, nested=True)


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values are lists. List views are not among them: Arrow 26 casts them to broken lists."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_scalar(kind: pa.DataType) -> bool:
    """Tell whether a single text stands for a value of this type."""
    return bool(
        types.is_null(kind)
        or is_number(kind)
        or is_text(kind)
        or is_binary(kind)
        or types.is_decimal(kind)
        or types.is_date(kind)
        or types.is_time(kind)
        or types.is_timestamp(kind)
        or types.is_duration(kind)
    )
