"""Hive-style buckets: ``y=2013/m=1``, the columns left out of the file, as Spark's partitionBy does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.bucketers.base import Bucketer, HashKey, check_segment, escape_segment, escape_value
from partfile.bucketers.paths import UNREADABLE, column_field, is_name, joined, named, value_type, with_fallback
from partfile.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.bucketers.base import BucketContext


NULL = "__HIVE_DEFAULT_PARTITION__"


class HiveBucketer(Bucketer):
    """One directory level a column, named ``column=value``.

    Values are written as Spark writes them, and share its three blind spots, where two values get one directory and
    readers cannot tell them apart unless ``keep_columns`` is set: null, the empty string and the very text
    ``__HIVE_DEFAULT_PARTITION__``, which all read back as null; and the two instants that one wall time means when
    clocks are set back.

    Args:
        *columns: The columns, outermost first: text, integer, boolean, date, timestamp or decimal.
        keep_columns: Leave the columns in the file as well.

    Raises:
        ConfigError: No column, one twice, or a name that no directory can have.
    """

    def __init__(self, *columns: str, keep_columns: bool = False) -> None:
        named_well = all(is_name(name) for name in columns)
        if not columns or not named_well or len(set(columns)) < len(columns):
            raise ConfigError(
                f"HiveBucketer needs one or more different columns, got {columns!r}",
                hint="Name them one by one: HiveBucketer('y', 'm').",
            )
        for name in columns:
            _prefix(name)
        self._columns = columns
        self._keep_columns = keep_columns

    def __repr__(self) -> str:
        keep = ", keep_columns=True" if self._keep_columns else ""
        return f"HiveBucketer({', '.join(map(repr, self._columns))}{keep})"

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """The columns, since the path holds them, unless they are kept."""
        return () if self._keep_columns else self._columns

    @property
    def hash_key(self) -> HashKey:
        """The columns themselves."""
        return HashKey(columns=self._columns)

    def check(self, schema: pa.Schema) -> None:
        """Refuse missing columns and types without one text form."""
        for name in self._columns:
            _text_of(column_field(schema, name, "HiveBucketer"))
        if not self._keep_columns and len(schema) == len(self._columns):
            raise ConfigError(
                f"HiveBucketer leaves no column for the file: {', '.join(schema.names)} are all in the path",
                hint="Write HiveBucketer(..., keep_columns=True), or add a column.",
            )

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """One ``column=value`` segment a column."""
        levels = [self._level(batch, name, context) for name in self._columns]
        return with_fallback(joined(levels, context), context)

    def _level(self, batch: pa.RecordBatch, name: str, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        text = _text_of(column_field(batch.schema, name, "HiveBucketer"))
        prefix = _prefix(name)

        def segment(value: Any) -> str:
            if value is UNREADABLE:
                raise BucketValueError(f"column {name!r} holds a date or time outside the years 1 to 9999")
            shown = "" if value is None else text(value)
            return check_segment(f"{prefix}={escape_value(shown) if shown else NULL}")

        return named(batch.column(name), segment, context)


def _prefix(name: str) -> str:
    """The column name as it stands in the path, escaped, so that it hides no directory either."""
    try:
        return escape_segment(name)
    except BucketValueError as error:
        raise ConfigError(
            f"HiveBucketer cannot name directories by column {name[:60]!r}: {error.message}",
            hint="Rename it before the sink: df.withColumnRenamed(OLD, NEW).",
        ) from error


def _text_of(field: pa.Field[Any]) -> Callable[[Any], str]:
    """The function that writes a value of the field as Spark writes it."""
    kind = value_type(field.type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind):
        return str
    if pa.types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pa.types.is_date(kind):
        return lambda value: str(value.isoformat())
    if pa.types.is_decimal(kind):
        return lambda value: f"{value:f}"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _timestamp_text
    raise ConfigError(
        f"HiveBucketer cannot name directories by column {field.name!r} of type {field.type}",
        hint=(
            "Use a text, integer, boolean, date, decimal or timestamp (at most microseconds) column, or derive "
            "one: df.withColumn(NAME, VALUE)"
        ),
    )


def _timestamp_text(value: Any) -> str:
    text = value.strftime("%H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{value.date().isoformat()} {text}"
