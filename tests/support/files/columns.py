"""Columns that are hard on formats: every type of Arrow and of Spark with its edges, and what files make of it."""

from __future__ import annotations

import datetime as dt
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from partfile.writers.columns import plain_schema
from partfile.writers.scalars import is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession


# Columns that are hard on formats: each Arrow type with its edges, and which format refuses which of them.
#
# Every column has rows of its own; ``table_of`` repeats them to one length, so that any of them stand side by side.

_ZONES = (None, "UTC", "America/New_York", "+05:30")
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_TEXTS = [
    "",
    " ",
    None,
    "é漢😀 👩‍👩‍👧‍👦 e\u0301",
    "q\"uo,te\\ '",
    "line\nfeed\r\ncarriage\rreturn",
    "\x00\x01\x7f\u2028\ufeff",
    "null",
    "NaN",
    "x" * 300,
]
_WORDS = ["a", None, "", "a", "😀" * 20]
_BYTES = [b"", None, b"\x00\xff", bytes(range(256)), b"a,b\n"]
_FLOATS = [float("nan"), None, float("inf"), float("-inf"), -0.0, 0.0, 0.5]
_FIRST_DAY = dt.date(1582, 10, 15)
"""Of the calendar that ORC is sure of."""


def _moments(kind: Any, *values: int | None) -> Any:
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def _timestamps() -> dict[str, Any]:
    columns = {}
    for unit, zone in itertools.product(_TICKS, _ZONES):
        second, kind = _TICKS[unit], pa.timestamp(unit, zone)
        name = f"at_{unit}_{_ZONES.index(zone)}"
        columns[name] = _moments(
            kind, 0, None, 1, -5 * second, 1_709_168_523 * second + 7 % second, -9 * 10**9 * second
        )
        # The year 1, or as far as nanoseconds reach; and the smallest step before 1970.
        # pyarrow reads no earlier nanoseconds from text.
        early = -62_135_596_800 * second if unit != "ns" else -9_223_372_036 * second
        columns[f"{name}_early"] = _moments(kind, early, None, -1, 2**63 - 1 if unit == "ns" else 253_402_300_799)
    return columns


def _decimals() -> dict[str, Any]:
    digits = {
        "decimal": (pa.decimal128(38, 18), ["1.000000000000000001", None, "-0.000000000000000001", "0", "9" * 20]),
        "decimal_whole": (pa.decimal128(38, 0), ["9" * 38, None, "-" + "9" * 38, "0"]),
        "decimal_part": (pa.decimal128(38, 38), ["0." + "9" * 38, None, "-0." + "0" * 37 + "1"]),
        "decimal_one": (pa.decimal128(1, 0), ["9", None, "-9"]),
        "decimal_32": (pa.decimal32(9, 2), ["1234567.89", None, "-0.01"]),
        "decimal_64": (pa.decimal64(18, 0), ["9" * 18, None, "-1"]),
        "decimal_huge": (pa.decimal256(76, 6), ["9" * 70 + ".000001", None, "-1.5"]),
    }
    return {name: pa.array(values).cast(kind) for name, (kind, values) in digits.items()}


def _nested() -> dict[str, Any]:
    point = pa.struct(
        {"x": pa.float64(), "in": pa.struct({"at": pa.timestamp("us", "UTC"), "none": pa.list_(pa.int8())})}
    )
    when = dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC)
    points: list[Any] = [
        {"x": -0.0, "in": {"at": when, "none": []}},
        None,
        {"x": None, "in": None},
        {"x": float("nan"), "in": {"at": None, "none": [None, 1]}},
    ]
    text, number = pa.string(), pa.int64()
    return {
        "list": pa.array([[1, None], None, [], [2**62]], pa.list_(number)),
        "list_large": pa.array([[_TEXTS[3], None], None, []], pa.large_list(text)),
        "list_fixed": pa.array([[1, None], None, [3, 4]], pa.list_(number, 2)),
        "list_deep": pa.array([[[["a"], None], []], None, [None], []], pa.list_(pa.list_(pa.list_(text)))),
        "struct": pa.array(points, point),
        "structs": pa.array([points, None, [], [None]], pa.list_(point)),
        "map": pa.array([[("k", 1), ("", None)], None, []], pa.map_(text, number)),
        "map_deep": pa.array(
            [[("é", [{"m": [("a", None), ("b", [1])]}, None])], None, [("", None)]],
            pa.map_(text, pa.list_(pa.struct({"m": pa.map_(text, pa.list_(number))}))),
        ),
        "maps": pa.array([[[("a", 1)], None, []], None, []], pa.list_(pa.map_(text, number))),
        "struct_of_words": pa.StructArray.from_arrays(
            [pa.array(_WORDS).dictionary_encode(), pa.array(_WORDS, pa.string_view())],
            names=["word", "view"],
            mask=pa.array([False, True, False, False, False]),
        ),
        "list_of_nothing": pa.array([[None, None], None, []], pa.list_(pa.null())),
        "list_all_null": pa.nulls(3, pa.list_(point)),
    }


COLUMNS: dict[str, Any] = {
    "truth": pa.array([True, None, False]),
    **{
        f"int{bits}": pa.array([-(2 ** (bits - 1)), None, 2 ** (bits - 1) - 1], f"int{bits}")
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": pa.array([2**bits - 1, None, 0], f"uint{bits}") for bits in (8, 16, 32, 64)},
    "half": pa.array([*_FLOATS, 65504.0], pa.float16()),
    "single": pa.array([*_FLOATS, 3.4028234663852886e38, 1e-45], pa.float32()),
    "double": pa.array([*_FLOATS, 1.7976931348623157e308, 5e-324, 0.1], pa.float64()),
    "text": pa.array(_TEXTS),
    "text_large": pa.array(_TEXTS, pa.large_string()),
    "text_view": pa.array(_TEXTS, pa.string_view()),
    "word": pa.array(_WORDS).dictionary_encode(),
    "run": pc.run_end_encode(pa.array(["a", "a", None, "b"])),
    "raw": pa.array(_BYTES, pa.binary()),
    "raw_large": pa.array(_BYTES, pa.large_binary()),
    "raw_view": pa.array(_BYTES, pa.binary_view()),
    "raw_fixed": pa.array([b"ab", None, b"\x00\xff"], pa.binary(2)),
    "day": pa.array([_FIRST_DAY, None, dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "day_early": pa.array([dt.date(1582, 10, 4), None, dt.date(1, 1, 1)]),
    "day64": pa.array([_FIRST_DAY, None, dt.date(2024, 2, 29)], pa.date64()),
    "clock_s": _moments(pa.time32("s"), 0, None, 86_399),
    "clock_ms": _moments(pa.time32("ms"), 1, None, 86_399_999),
    "clock_us": _moments(pa.time64("us"), 1, None, 86_399_999_999),
    "clock_ns": _moments(pa.time64("ns"), 1000, None, 86_399_999_999_000),
    **{f"span_{unit}": _moments(pa.duration(unit), -1000, None, 90_061_000, 0) for unit in _TICKS},
    **_timestamps(),
    **_decimals(),
    "nothing": pa.nulls(3),
    "number_all_null": pa.nulls(3, pa.int64()),
    "text_all_null": pa.nulls(3, pa.string()),
    **_nested(),
}
"""Each column by a name that Avro takes as well."""


def _named(*starts: str) -> set[str]:
    return {name for name in COLUMNS if name.startswith(starts)}


_EARLY = {name for name in COLUMNS if name.endswith("_early")}
_UNSIGNED = {"uint8", "uint16", "uint32", "uint64"}
_NESTED = set(_nested())

REFUSED: dict[str, set[str]] = {
    "parquet": set(),
    "orc": {
        *_UNSIGNED,
        "half",
        "nothing",
        "list_of_nothing",
        "decimal_huge",
        *_named("clock", "span"),
        *_EARLY,
        "decimal_32",
        "decimal_64",
    },
    "avro": {"uint64"},
    "json": set(),
    "csv": set(_NESTED),
}
"""What a format refuses, as docs/FORMATS.md says."""


def accepted_by(format: str) -> list[str]:
    """The columns that a format takes."""
    return [name for name in COLUMNS if name not in REFUSED[format]]


def column_of(name: str, rows: int) -> Any:
    """So many rows of a column, repeated."""
    values = COLUMNS[name]
    return pa.concat_arrays([values] * -(-rows // len(values))).slice(0, rows)


def batch_of(names: Iterable[str], rows: int) -> pa.RecordBatch:
    """Rows of some columns side by side."""
    return pa.record_batch({name: column_of(name, rows) for name in names})


# Which Arrow type a column has when a file of a format is read back, as docs/FORMATS.md says.


def type_in(format: str, kind: Any) -> Any:
    """The type that a column of some type has in Parquet, ORC or Avro."""
    plain: Any = plain_schema(pa.schema({"x": kind})).field(0).type
    if types.is_struct(plain):
        return pa.struct([(each.name, type_in(format, each.type)) for each in plain])
    if types.is_map(plain):
        return pa.map_(plain.key_type, type_in(format, plain.item_type))
    if types.is_nested(plain):
        return _list(format, plain, type_in(format, plain.value_type))
    return _SCALARS[format](plain)


def _list(format: str, kind: Any, item: Any) -> Any:
    if format != "parquet":
        return pa.list_(item)
    if types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)


def _in_parquet(kind: Any) -> Any:
    """Days, and milliseconds instead of seconds."""
    if types.is_date64(kind):
        return pa.date32()
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.time32("ms") if types.is_time32(kind) else kind


def _in_orc(kind: Any) -> Any:
    """Instants in nanoseconds of UTC, days, and no difference between large and small."""
    if types.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz and "UTC")
    return pa.date32() if types.is_date64(kind) else _small(kind)


def _in_avro(kind: Any) -> Any:
    """Two widths of integers, two of decimals, microseconds; seconds become milliseconds."""
    if types.is_integer(kind):
        return pa.int32() if kind.bit_width < 32 or types.is_int32(kind) else pa.int64()
    if types.is_float16(kind):
        return pa.float32()
    if types.is_timestamp(kind):
        return pa.timestamp("ms" if kind.unit == "s" else kind.unit, kind.tz and "UTC")
    if types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    for matches, found in _AVRO_MOMENTS:
        if matches(kind):
            return found
    return _small(kind)


_AVRO_MOMENTS: tuple[tuple[Any, Any], ...] = (
    (types.is_time32, pa.time32("ms")),
    (types.is_time64, pa.time64("us")),
    (types.is_duration, pa.duration("us")),
    (types.is_date, pa.date32()),
)


def _small(kind: Any) -> Any:
    if is_text(kind):
        return pa.string()
    return pa.binary() if is_binary(kind) else kind


_SCALARS = {"parquet": _in_parquet, "orc": _in_orc, "avro": _in_avro}


# One small table with a column of every type that Spark sends to a sink, and the values at the edges of each.

_SCALAR_COLUMNS = (
    "number bigint, truth boolean, tiny tinyint, small smallint, whole int, single float, double double, "
    "price decimal(38,18), big decimal(38,0), text string, raw binary, day date, instant timestamp, "
    "local timestamp_ntz, clock time(6), span interval day to second"
)
SCALARS = dict(column.split(" ", 1) for column in _SCALAR_COLUMNS.split(", "))
NESTED = {
    "list": "array<int>",
    "tags": "map<string,double>",
    "point": "struct<x:double,at:timestamp,name:string,price:decimal(10,2)>",
    "deep": "array<struct<a:array<map<string,int>>,s:string>>",
}
_ROWS = r"""
(0L, true, 1Y, 2S, 3, 0.1F, 0.1D, 1.000000000000000001, 7,
 concat('q"b\\\\c,;', char(9), char(10), 'é漢😀', char(1)), X'ff00',
 date'2024-02-29', timestamp'2024-07-01 12:00:00.123456 UTC', timestamp_ntz'2024-07-01 12:00:00', time'01:02:03.456789',
 interval '1 02:03:04.000005' day to second, array(1, null), map('a"', 1.5D, 'b', null),
 struct(1.5D, timestamp'2024-07-01 00:00:00 UTC', 'n', 1.10), array(struct(array(map('k', 1), map()), 'x'), null)),
(9223372036854775807L, false, -128Y, -32768S, -2147483648, float('NaN'), double('-Infinity'),
 -12345678901234567890.123456789012345678, 99999999999999999999999999999999999999, '', X'',
 date'0001-01-01', timestamp'0001-01-01 00:00:00 UTC', timestamp_ntz'9999-12-31 23:59:59.999999',
 time'23:59:59.999999', interval '-1 02:03:04.000005' day to second, array(), map(),
 struct(double('NaN'), null, '', null), array()),
(9007199254740993L, null, 0Y, 0S, 0, float('-0.0'), double('-0.0'), 1E-18, 0, ' \\N ', X'000102',
 date'9999-12-31', timestamp'9999-12-31 23:59:59.999999 UTC', timestamp_ntz'0001-01-01 00:00:00', time'00:00:00',
 interval '0 00:00:00' day to second, null, map('n', double('Infinity')), struct(-0.0D, null, null, -0.05),
 array(struct(null, null))),
(1L, true, 1Y, 1S, 1, float('3.4028235E38'), 1E300D, 0, -1, 'null', X'ff', date'1969-12-31',
 timestamp'1969-12-31 23:59:59.999999 UTC', timestamp_ntz'1969-12-31 23:59:59.999999', time'12:00:00.5',
 interval '-0 00:00:00.000001' day to second, array(2147483647), map('m', 5E-324D), struct(1.0D, null, 'é', 0),
 array(struct(array(), 'y')))
"""


@contextmanager
def table_of_every_type(spark: SparkSession) -> Iterator[DataFrame]:
    """The table, with a row of nulls, in a session whose zone is not UTC."""
    settings = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.timeType.enabled": "true"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    kinds = SCALARS | NESTED
    columns = ", ".join(f"cast(_{at} as {kind}) as {name}" for at, (name, kind) in enumerate(kinds.items(), 1))
    names = ", ".join(f"_{at}" for at in range(1, len(kinds) + 1))
    nulls = ", ".join(["null"] * len(kinds))
    yield spark.sql(f"select {columns} from values {_ROWS}, ({nulls}) as t({names})").coalesce(1)  # noqa: S608
    for name, earlier in before.items():
        spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)
