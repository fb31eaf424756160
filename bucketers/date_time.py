"""Buckets by time: of a column, or of the batch; any strftime format, any zone, each distinct time formatted once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.naming import all_rows_in, column_field, is_name, named, value_type, with_fallback
from partfile.bucketers.port import Bucketer, HashKey
from partfile.bucketers.time_format import TimeFormat
from partfile.bucketers.wall_time import floor_divide, wall_seconds
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from partfile.bucketers.port import BucketContext

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall time in the bucketer's zone
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
            raise ConfigError(f"DateTimeBucketer needs the name of one column, or None, got {column!r}")
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
                hint="Cast it, for instance with to_timestamp.",
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
            raise BucketValueError(f"{source} is null in a row, and null is no time")
        try:
            wall_time = _EPOCH + timedelta(seconds=span * self._format.span_seconds)
        except OverflowError as error:
            raise BucketValueError(f"{source} holds a time outside the years 1 to 9999") from error
        return self._format.path(wall_time)

    def _spans(self, times: pa.Array[Any]) -> pa.Array[Any]:
        """How many whole spans since the epoch, by the wall clock of the zone."""
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
            hint="Use an IANA name such as Europe/Berlin; where the machine has no zones, install tzdata.",
        ) from error
