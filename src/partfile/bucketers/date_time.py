"""Buckets by time: of a column, or of the batch; any strftime format, any zone, each distinct time formatted once."""

from __future__ import annotations

import re
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.base import Bucketer, HashKey, escape_path
from partfile.bucketers.paths import all_rows_in, column_field, is_name, named, value_type, with_fallback
from partfile.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.bucketers.base import BucketContext


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SHORT_FORMS = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "h": "%b"}
_SHOWN: dict[str, Callable[[datetime], str]] = {
    "%": lambda _: "%",
    # strftime pads the years before 1000 on some platforms and not on others.
    "Y": lambda time: f"{time.year:04d}",
    "y": lambda time: f"{time.year % 100:02d}",
    "C": lambda time: f"{time.year // 100:02d}",
    "m": lambda time: f"{time.month:02d}",
    "B": lambda time: _MONTHS[time.month - 1],
    "b": lambda time: _MONTHS[time.month - 1][:3],
    "d": lambda time: f"{time.day:02d}",
    "e": lambda time: f"{time.day:2d}",
    "j": lambda time: f"{time.timetuple().tm_yday:03d}",
    "A": lambda time: _DAYS[time.weekday()],
    "a": lambda time: _DAYS[time.weekday()][:3],
    "u": lambda time: str(time.isoweekday()),
    "w": lambda time: str(time.isoweekday() % 7),
    "G": lambda time: f"{time.isocalendar().year:04d}",
    "g": lambda time: f"{time.isocalendar().year % 100:02d}",
    "V": lambda time: f"{time.isocalendar().week:02d}",
    "W": lambda time: f"{(time.timetuple().tm_yday + 6 - time.weekday()) // 7:02d}",
    "U": lambda time: f"{(time.timetuple().tm_yday + 6 - time.isoweekday() % 7) // 7:02d}",
    "H": lambda time: f"{time.hour:02d}",
    "I": lambda time: f"{(time.hour + 11) % 12 + 1:02d}",
    "p": lambda time: "PM" if time.hour >= 12 else "AM",  # noqa: PLR2004 - noon
    "M": lambda time: f"{time.minute:02d}",
    "S": lambda time: f"{time.second:02d}",
}
# Finest first: the finest directive decides how far times are rounded down before they are told apart.
_NEEDS = (("second", "S"), ("minute", "M"), ("hour", "HIp"), ("day", "dejaAuwUWVGg"), ("month", "mbB"), ("year", "YyC"))
_ROUNDED_TO = {"second": 1, "minute": 60, "hour": 3600}
_DAY_SECONDS = 86400
# What a directive pins down once all coarser units are known; %j pins down two at once.
_PINS = {"year": "Y", "month": "mbBj", "day": "dej", "hour": "H", "minute": "M", "second": "S"}
_DIRECTIVE = re.compile("%(.?)", re.DOTALL)


class TimeFormat:
    """A checked strftime format.

    Args:
        format: Literal text and directives; ``/`` makes nested directories.

    Raises:
        ConfigError: It has an unknown directive, shows no time, or cannot give a path.
    """

    def __init__(self, format: str) -> None:
        self.text = format
        self._pattern = _DIRECTIVE.sub(lambda match: _SHORT_FORMS.get(match[1], match[0]), format)
        letters = set(_DIRECTIVE.findall(self._pattern))
        unknown = sorted(letters - _SHOWN.keys())
        if unknown or letters <= {"%"}:
            problem = f"has an unknown directive %{unknown[0]}" if unknown else "shows no time"
            raise ConfigError(
                f"DateTimeBucketer: format {format!r} {problem}",
                hint=(
                    "Use strftime directives, as in DateTimeBucketer(format='%Y/%m/%d/%H'); those that depend on "
                    "locale or machine (%c, %x, %X, %r, %s, %z, %Z) and fractions of a second (%f) cannot name "
                    "buckets."
                ),
            )
        self.finest_unit = next(unit for unit, own in _NEEDS if letters & set(own))
        """``year``, ``month``, ``day``, ``hour``, ``minute`` or ``second``."""
        self.span_seconds = _ROUNDED_TO.get(self.finest_unit, _DAY_SECONDS)
        """Times within one such span since the epoch are shown alike."""
        units = list(_PINS)
        down_to_finest = units[: units.index(self.finest_unit) + 1]
        self.tells_all_times_apart = all(letters & set(_PINS[unit]) for unit in down_to_finest)
        """Whether one text means one span; not so for ``%H``, which every day has."""
        try:
            self.path(datetime(9999, 12, 31, 23, 59, 59))  # noqa: DTZ001 - wall time
        except BucketValueError as error:
            raise ConfigError(
                f"DateTimeBucketer: format {format!r} gives no path: {error.message}",
                hint=(
                    "Each directory between two '/' needs a name of at most 255 bytes, as in "
                    "DateTimeBucketer(format='%Y/%m/%d')."
                ),
            ) from error

    def path(self, wall_time: datetime) -> str:
        """The time as a bucket path, escaped.

        Raises:
            BucketValueError: The path is too long.
        """
        return _path(self._pattern, wall_time)


@lru_cache(maxsize=10_000)
def _path(pattern: str, wall_time: datetime) -> str:
    return escape_path(_DIRECTIVE.sub(lambda match: _SHOWN[match[1]](wall_time), pattern))


_DAY = 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Beyond these Python cannot be asked, since the answer might be out of its range; the offset is the same there.
_FIRST = -62_135_596_800 + 2 * _DAY
_LAST = 253_402_300_799 - 2 * _DAY


def wall_seconds(instants: pa.Array[Any], zone: ZoneInfo) -> pa.Array[Any]:
    """Turn seconds since 1970 (int64) into seconds of the zone's wall clock.

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


_EPOCH_date_time = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time in the bucketer's zone
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UTC = "UTC"


class DateTimeBucketer(Bucketer):
    """One directory a span of time, named by a strftime format.

    Args:
        column: A timestamp or date column; None takes the time of the batch. A timestamp with a zone is an instant
            and is shown in ``time_zone``; one without is taken as wall time already, and so is a date.
        format: A strftime format; ``/`` in it makes nested directories. Names of days and months are English, and
            years have four digits, in every process.
        time_zone: An IANA zone name.

    Raises:
        ConfigError: The format or the zone cannot be used.
    """

    def __init__(self, column: str | None = None, format: str = "%Y-%m-%d--%H", time_zone: str = _UTC) -> None:
        if column is not None and not is_name(column):
            raise ConfigError(
                f"DateTimeBucketer needs the name of one column, or None, got {column!r}",
                hint="Write DateTimeBucketer('time', '%Y-%m-%d'); without a column the time of the batch counts.",
            )
        self._column = column
        self._format = TimeFormat(format)
        self._zone = _zone_of(time_zone)

    def __repr__(self) -> str:
        return f"DateTimeBucketer({self._column!r}, {self._format.text!r}, time_zone={self._zone.key!r})"

    @property
    def hash_key(self) -> HashKey | None:
        """The column cut to the finest unit of the format, if no two spans share a bucket."""
        if self._column is None or not self._format.tells_all_times_apart:
            return None
        return HashKey(columns=(self._column,), truncate_to=self._format.finest_unit, time_zone=self._zone.key)

    def check(self, schema: pa.Schema) -> None:
        """Refuse a missing column, or one that holds no time."""
        if self._column is None:
            return
        field = column_field(schema, self._column, "DateTimeBucketer")
        if not (pa.types.is_timestamp(value_type(field.type)) or pa.types.is_date(value_type(field.type))):
            raise ConfigError(
                f"DateTimeBucketer needs a timestamp or date column, but {self._column!r} is {field.type}; the columns "
                f"are {', '.join(schema.names)}",
                hint="Cast it in Spark with to_timestamp(COLUMN), or in Arrow with column.cast(pa.timestamp('us')).",
            )

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """Round the times down to the finest unit of the format, and format each distinct one."""
        if self._column is None:
            now = pa.array([context.batch_time_ms], pa.timestamp("ms", _UTC))
            return all_rows_in(str(self._buckets(now, context)[0].as_py()), len(batch))
        self.check(batch.schema)
        times = batch.column(self._column)
        return self._buckets(times.dictionary_decode() if pa.types.is_dictionary(times.type) else times, context)

    def _buckets(self, times: pa.Array[Any], context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        return with_fallback(named(self._spans(times), self._path, context), context)

    def _path(self, span: int | None) -> str:
        source = "the batch time" if self._column is None else f"column {self._column!r}"
        if span is None:
            raise BucketValueError(f"{source} is null in a row, and null is not a time")
        try:
            wall_time = _EPOCH_date_time + timedelta(seconds=span * self._format.span_seconds)
        except OverflowError as error:
            raise BucketValueError(f"{source} holds a time outside the years 1 to 9999") from error
        return self._format.path(wall_time)

    def _spans(self, times: pa.Array[Any]) -> pa.Array[Any]:
        """The number of whole spans since the epoch, by the wall clock of the zone."""
        span_seconds = self._format.span_seconds
        if pa.types.is_date32(times.type):
            return floor_divide(pc.multiply(times.cast(pa.int32()).cast(pa.int64()), 86400), span_seconds)
        if pa.types.is_date64(times.type):
            times = times.cast(pa.timestamp("ms"))
        per_second = _PER_SECOND[times.type.unit]
        numbers = times.cast(pa.int64())
        if times.type.tz is None or self._zone.key == _UTC:
            return floor_divide(numbers, span_seconds * per_second)
        # Seconds before the offset is added: nanoseconds would run over in 1677 and 2262.
        return floor_divide(wall_seconds(floor_divide(numbers, per_second), self._zone), span_seconds)


def _zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise ConfigError(
            f"DateTimeBucketer: unknown time zone {name!r}",
            hint="Use an IANA name, as time_zone='Europe/Berlin'; where the machine has no zones: pip install tzdata",
        ) from error
