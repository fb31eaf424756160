"""From instants to the wall clock of a zone, a whole column at a time."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_DAY = 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Beyond these Python cannot be asked, since the answer might be out of its range; the offset is the same there.
_FIRST = -62_135_596_800 + 2 * _DAY
_LAST = 253_402_300_799 - 2 * _DAY


def wall_seconds(instants: pa.Array[Any], zone: ZoneInfo) -> pa.Array[Any]:
    """Turn seconds since the epoch (int64) into seconds of the zone's wall clock.

    Python's zones are asked about both ends of each distinct day, not Arrow about each row: Arrow (26) forgets
    daylight saving from 2038 on. No zone has ever changed its offset twice in one UTC day.
    """
    days = floor_divide(instants, _DAY).dictionary_encode()
    offsets = [_offsets(day, zone) for day in days.dictionary.to_pylist()]
    if not offsets:
        return instants
    before, change, after = (
        pc.take(pa.array(column, pa.int64()), days.indices) for column in zip(*offsets, strict=True)
    )
    return pc.add(instants, pc.if_else(pc.less(instants, change), before, after))


def floor_divide(numbers: pa.Array[Any], divisor: int) -> pa.Array[Any]:
    """Divide int64s and round down: Arrow rounds towards zero, which is up for times before 1970."""
    quotient = pc.divide(numbers, divisor)
    too_high = pc.greater(pc.multiply(quotient, divisor), numbers)
    return pc.subtract(quotient, too_high.cast(pa.int64()))


def _offsets(day: int, zone: ZoneInfo) -> tuple[int, int, int]:
    """The offset at the beginning of a UTC day, the second since the epoch it changes at, and the offset from then."""
    first, last = day * _DAY, day * _DAY + _DAY - 1
    before, after = _offset(first, zone), _offset(last, zone)
    if before == after:
        return before, 0, after
    change = bisect_left(range(first, last), 1, key=lambda second: int(_offset(second, zone) != before))
    return before, first + change, after


def _offset(second: int, zone: ZoneInfo) -> int:
    offset = (_EPOCH + timedelta(seconds=min(max(second, _FIRST), _LAST))).astimezone(zone).utcoffset()
    return int(offset.total_seconds()) if offset else 0
