"""ISO 8601 text of dates, times and timestamps, and Spark's text of a day-time interval.

Arrow's own cast does the formatting. What is added: the ``T``, the ``Z``, and years that Arrow cannot print.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from partfile.writers.text_columns import TEXT, join, kernels, literal, nulls_of, replace_where, used_bytes

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_DATE_CHARACTERS = 10
_YEAR_CHARACTERS = 4

# Arrow prints years 0 to 9999 as four digits, others without the sign that ISO 8601 wants, and gives up at 32 767.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896

# The Gregorian calendar repeats after 400 years, so a day far away has the month and day of one nearby.
_ERA_YEARS = 400
_ERA_DAYS = 146_097


def date_text(column: Any) -> Any:
    """``2024-02-29``; years outside 0 to 9999 with a sign, ``+10000-01-01``."""
    if pa.types.is_date64(column.type):
        column = column.cast(pa.date32())
    days = column.view(pa.int32()).cast(pa.int64())
    outside = _outside(days, _FIRST_DAY, _LAST_DAY)
    if outside is None:
        return column.cast(TEXT)
    return replace_where(column.cast(TEXT), outside, lambda _: _far_date_text(days.filter(_true(outside))))


def time_text(column: Any) -> Any:
    """``01:02:03.456789``, with as many decimals as the unit has."""
    return column.cast(TEXT)


def timestamp_text(column: Any) -> Any:
    """``2024-02-29T01:02:03.456789``, and a ``Z`` after it where the type has a zone: the instant is written in UTC."""
    zone = "Z" if column.type.tz is not None else ""
    unit = column.type.unit
    ticks = column.view(pa.int64())
    day_ticks = _UNITS[unit] * _DAY_SECONDS
    outside = _outside(ticks, _FIRST_DAY * day_ticks, (_LAST_DAY + 1) * day_ticks - 1)
    near = kernels.fill_null(ticks if outside is None else kernels.if_else(outside, 0, ticks), 0)
    # Without its zone, since that cast looks the zone up for each row: 20 times slower, for a text in local time.
    text = _with_t(near.view(pa.timestamp(unit)).cast(TEXT), zone)
    if outside is not None:
        far = ticks.filter(_true(outside))
        text = replace_where(text, outside, lambda _: join([_far_timestamp_text(far, unit), literal(zone)]))
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


def _true(mask: Any) -> Any:
    return kernels.fill_null(mask, fill_value=False)


def _outside(values: Any, first: int, last: int) -> Any:
    """Mask of the values outside a range, or None if there is none, which is nearly free to find out."""
    limits = kernels.min_max(values).as_py()
    if limits["min"] is None or (limits["min"] >= first and limits["max"] <= last):
        return None
    return kernels.or_(kernels.less(values, first), kernels.greater(values, last))


def _clock_text(ticks: Any, unit: Any) -> Any:
    if unit in {"s", "ms"}:
        return ticks.cast(pa.int32()).view(pa.time32(unit)).cast(TEXT)
    return ticks.view(pa.time64(unit)).cast(TEXT)


def _floor_divide(values: Any, divisor: int) -> Any:
    towards_zero = kernels.divide(values, divisor)
    below = kernels.less(values, kernels.multiply_checked(towards_zero, divisor))
    return kernels.subtract(towards_zero, below.cast(pa.int64()))


def _far_timestamp_text(ticks: Any, unit: str) -> Any:
    day_ticks = _UNITS[unit] * _DAY_SECONDS
    days = _floor_divide(ticks, day_ticks)
    # The product may wrap around at the very end of 64 bits; the difference wraps back.
    clock = kernels.subtract(ticks, kernels.multiply(days, day_ticks))
    return join([_far_date_text(days), literal("T"), _clock_text(clock, unit)])


def _far_date_text(days: Any) -> Any:
    eras = _floor_divide(days, _ERA_DAYS)
    near = kernels.subtract(days, kernels.multiply(eras, _ERA_DAYS)).cast(pa.int32()).view(pa.date32())
    year = kernels.add(kernels.year(near), kernels.multiply(eras, _ERA_YEARS))
    digits = kernels.ascii_lpad(kernels.abs(year).cast(TEXT), width=_YEAR_CHARACTERS, padding="0")
    sign = kernels.if_else(kernels.less(year, 0), literal("-"), literal("+"))
    month_and_day = kernels.utf8_slice_codeunits(near.cast(TEXT), start=_YEAR_CHARACTERS)
    return join([sign, digits, month_and_day])
