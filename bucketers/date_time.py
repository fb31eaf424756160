"""Buckets by time: of a column, or of the batch; any strftime format, any zone, each distinct time formatted once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import escape_path
from partfile.bucketers.naming import column_field, named, with_fallback
from partfile.bucketers.port import Bucketer, HashKey
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from partfile.bucketers.port import BucketContext

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time in the bucketer's zone
# Finest first; within a format the finest unit decides how far times are rounded down before they are told apart.
_UNITS = (("second", "STXcrs", 1), ("minute", "MR", 60), ("hour", "HIp", 3600), ("day", "dejaAuwUVWDFx", 86400))
_COARSE = {"month": "mbBh", "year": "YyGgC"}
_DIRECTIVES = re.compile(r"%(.?)")
_KNOWN = "%" + "".join(letters for _, letters, _ in _UNITS) + "".join(_COARSE.values())


class DateTimeBucketer(Bucketer):
    """One directory a span of time, named by a strftime format.

    Args:
        column: A timestamp or date column; None takes the time of the batch. A timestamp with a zone is an instant
            and is shown in ``time_zone``; one without is taken as wall time already.
        format: A strftime format; ``/`` in it makes nested directories.
        time_zone: An IANA zone name.

    Raises:
        ConfigError: The format or the zone cannot be used.
    """

    def __init__(self, column: str | None = None, format: str = "%Y-%m-%d--%H", time_zone: str = "UTC") -> None:
        self._column = column
        self._format = format
        self._zone_name = time_zone
        self._unit, self._seconds = _finest_unit(format)
        _zone(time_zone)

    def __repr__(self) -> str:
        return f"DateTimeBucketer({self._column!r}, {self._format!r}, time_zone={self._zone_name!r})"

    @property
    def hash_key(self) -> HashKey | None:
        """The column cut to the finest unit of the format."""
        if self._column is None:
            return None
        return HashKey(columns=(self._column,), truncate_to=self._unit, time_zone=self._zone_name)

    def check(self, schema: pa.Schema) -> None:
        """Refuse a missing column, or one that holds no time."""
        if self._column is None:
            return
        kind = column_field(schema, self._column, "DateTimeBucketer").type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise ConfigError(
                f"DateTimeBucketer needs a timestamp or date column, but {self._column!r} is {kind}",
                hint="Cast it, for instance with to_timestamp.",
            )

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """Round the times down to the finest unit of the format, and format each distinct one."""
        if self._column is None:
            instant = datetime.fromtimestamp(context.batch_time_ms / 1000, UTC).astimezone(_zone(self._zone_name))
            path = escape_path(instant.strftime(self._format))
            return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(batch)), pa.array([path]))
        spans = self._spans(batch.column(self._column))
        return with_fallback(named(spans, self._path, context), context)

    def _spans(self, times: pa.Array[Any]) -> pa.Array[Any]:
        """How many whole units since the epoch, by the wall clock of the zone."""
        if pa.types.is_date32(times.type):
            return _floor_divide(pc.multiply(times.cast(pa.int32()).cast(pa.int64()), 86400), self._seconds)
        if pa.types.is_date64(times.type):
            times = times.cast(pa.timestamp("ms"))
        if times.type.tz is not None and self._zone_name != "UTC":
            times = pc.local_timestamp(times.cast(pa.timestamp(times.type.unit, self._zone_name)))
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[times.type.unit]
        return _floor_divide(times.cast(pa.int64()), self._seconds * per_second)

    def _path(self, span: int | None) -> str:
        if span is None:
            raise BucketValueError(f"column {self._column!r} is null in a row, and null is no time")
        try:
            wall = _EPOCH + timedelta(seconds=span * self._seconds)
        except OverflowError as error:
            raise BucketValueError(f"column {self._column!r} holds a time outside the years 1 to 9999") from error
        return escape_path(wall.strftime(self._format))


def _floor_divide(numbers: pa.Array[Any], divisor: int) -> pa.Array[Any]:
    # Arrow's division truncates towards zero; times before 1970 must round down too.
    quotient = pc.divide(numbers, divisor)
    too_high = pc.greater(pc.multiply(quotient, divisor), numbers)
    return pc.subtract(quotient, too_high.cast(pa.int64()))


def _finest_unit(format: str) -> tuple[str, int]:
    letters = _DIRECTIVES.findall(format)
    unknown = [letter for letter in letters if not letter or letter not in _KNOWN]
    if unknown or not [letter for letter in letters if letter != "%"]:
        raise ConfigError(
            f"DateTimeBucketer: format {format!r} "
            + (f"has an unknown directive %{unknown[0]}" if unknown else "shows no time"),
            hint="Use strftime directives such as %Y-%m-%d or %Y/%m/%d/%H.",
        )
    for unit, own, seconds in _UNITS:
        if any(letter in own for letter in letters):
            return unit, seconds
    return ("month" if any(letter in _COARSE["month"] for letter in letters) else "year"), 86400


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"DateTimeBucketer: unknown time zone {name!r}", hint="Use an IANA name: Europe/Berlin."
        ) from error
