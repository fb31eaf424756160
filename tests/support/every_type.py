"""One small table with a column of every type that Spark sends to a sink, and the values at the edges of each."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

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
