"""What each bucketer does with rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import partfile as pf
from partfile.bucketers.base import HashKey
from partfile.bucketers.builtin import resolve_bucketer
from partfile.errors import BucketValueError, ConfigError

CONTEXT = pf.BucketContext(batch_time_ms=1533363082011)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def of(bucketer: pf.Bucketer, rows: pa.RecordBatch) -> list[str]:
    bucketer.check(rows.schema)
    return [str(path) for path in bucketer.bucket_of(rows, CONTEXT).to_pylist()]


def test_t_a23_the_batch_time_in_a_zone() -> None:
    """Without a column the bucket is the batch time, shown in the zone."""
    rows = batch(x=[1, 2])
    assert of(pf.DateTimeBucketer(time_zone="America/Los_Angeles"), rows) == ["2018-08-03--23"] * 2
    assert of(pf.DateTimeBucketer(format="%Y-%m-%d-%H", time_zone="America/Los_Angeles"), rows) == ["2018-08-03-23"] * 2


def test_t_a11_time_buckets() -> None:
    """20 rows, one a second, in buckets of five seconds' rows."""
    times = [datetime(2020, 1, 1, 0, 0, second - second % 5, tzinfo=UTC) for second in range(20)]
    assert of(pf.DateTimeBucketer("t", "%S"), batch(t=times)) == [f"{s - s % 5:02d}" for s in range(20)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Europe/Berlin"])
def test_instants_are_shown_in_the_zone(unit: str, zone: str) -> None:
    """Any unit, half-hour zones, both sides of DST changes and of 1970: as Python's own zones say."""
    seconds = [0, -1, -86_401, 1362898799, 1362898800, 1383457000, 1383460600, 1364691599, 1364691600, 4102444800]
    instants = [datetime.fromtimestamp(second, UTC) for second in seconds]
    rows = batch(t=pa.array(instants, pa.timestamp(unit, "UTC")))
    wanted = [instant.astimezone(ZoneInfo(zone)).strftime("%Y/%m/%d/%H") for instant in instants]
    assert of(pf.DateTimeBucketer("t", "%Y/%m/%d/%H", zone), rows) == wanted


def test_wall_times_and_dates_are_taken_as_they_are() -> None:
    """A timestamp without a zone is wall time already, and so is a date."""
    rows = batch(t=pa.array([datetime(1969, 12, 31, 23, 59)], pa.timestamp("us")), d=[date(1969, 12, 31)])  # noqa: DTZ001
    assert of(pf.DateTimeBucketer("t", "%d--%H", "Asia/Kolkata"), rows) == ["31--23"]
    assert of(pf.DateTimeBucketer("d", "%Y-%m-%d", "Asia/Kolkata"), rows) == ["1969-12-31"]


def test_a_null_time_or_one_out_of_range_names_no_bucket() -> None:
    """Null and years beyond 9999 are refused by column, or go to the fallback."""
    far = pa.array([None, 400_000_000_000, 0], pa.timestamp("s", "UTC"))
    bucketer = pf.DateTimeBucketer("t", "%Y")
    for rows in (batch(t=far.slice(0, 1)), batch(t=far.slice(1, 1))):
        with pytest.raises(BucketValueError, match="'t'"):
            of(bucketer, rows)
    context = pf.BucketContext(batch_time_ms=0, on_bad_bucket="bad")
    assert bucketer.bucket_of(batch(t=far), context).to_pylist() == ["bad", "bad", "1970"]


@pytest.mark.parametrize(
    "options", [{"format": "yyyy-MM-dd"}, {"format": "%Q"}, {"format": "%"}, {"time_zone": "Mars/Base"}]
)
def test_a_format_or_zone_that_means_nothing_is_refused(options: dict[str, str]) -> None:
    """Refused when the bucketer is made, showing what was given."""
    with pytest.raises(ConfigError, match=next(iter(options.values())).replace("%", "%")):
        pf.DateTimeBucketer("t", **options)


def test_hive_values_are_written_as_spark_writes_them() -> None:
    """The paths that Spark 4.3's partitionBy made for the same values (UTC session)."""
    rows = batch(
        y=pa.array([2013, None, -1, 0], pa.int32()),
        s=["x/y", "", None, "%"],
        b=[True, False, None, True],
        d=[date(2013, 1, 9), date(1, 1, 1), None, date(9999, 12, 31)],
        t=pa.array(
            [
                datetime(2013, 1, 1, 1, 2, 3, 450000, tzinfo=UTC),
                datetime(2013, 1, 1, tzinfo=UTC),
                None,
                datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
            ],
            pa.timestamp("us", "UTC"),
        ),
        c=[Decimal("1.50"), Decimal("-0.10"), None, Decimal("100.00")],
        v=[1, 2, 3, 4],
    )
    null = "__HIVE_DEFAULT_PARTITION__"
    assert of(pf.HiveBucketer("y"), rows) == ["y=2013", f"y={null}", "y=-1", "y=0"]
    assert of(pf.HiveBucketer("s"), rows) == ["s=x%2Fy", f"s={null}", f"s={null}", "s=%25"]
    assert of(pf.HiveBucketer("b"), rows) == ["b=true", "b=false", f"b={null}", "b=true"]
    assert of(pf.HiveBucketer("d"), rows) == ["d=2013-01-09", "d=0001-01-01", f"d={null}", "d=9999-12-31"]
    assert of(pf.HiveBucketer("t"), rows) == [
        "t=2013-01-01 01%3A02%3A03.45",
        "t=2013-01-01 00%3A00%3A00",
        f"t={null}",
        "t=1969-12-31 23%3A59%3A59.000001",
    ]
    assert of(pf.HiveBucketer("c"), rows) == ["c=1.50", "c=-0.10", f"c={null}", "c=100.00"]
    assert of(pf.HiveBucketer("y", "b"), rows)[:2] == ["y=2013/b=true", f"y={null}/b=false"]


def test_hive_columns_are_dropped_unless_kept() -> None:
    """As with partitionBy the path holds the columns; keep_columns leaves them in the file as well."""
    assert pf.HiveBucketer("y", "m").dropped_columns == ("y", "m")
    assert pf.HiveBucketer("y", keep_columns=True).dropped_columns == ()
    with pytest.raises(ConfigError, match="no column"):
        pf.HiveBucketer("y").check(batch(y=[1]).schema)


@pytest.mark.parametrize(
    ("bucketer", "named"),
    [
        (pf.HiveBucketer("nope"), "'nope'.*columns are a, f"),
        (pf.HiveBucketer("f"), "'f' of type double"),
        (pf.DateTimeBucketer("a"), "'a' is int64"),
        (pf.CompositeBucketer(pf.HiveBucketer("a"), pf.DateTimeBucketer("nope")), "'nope'"),
    ],
)
def test_columns_that_do_not_fit_are_named(bucketer: pf.Bucketer, named: str) -> None:
    """A missing column or a wrong type is a ConfigError with the column, its type and what there is."""
    with pytest.raises(ConfigError, match=named):
        bucketer.check(batch(a=[1], f=[1.5]).schema)


def test_composition_joins_levels() -> None:
    """Outer before inner, only combinations that occur, and what any of them drops."""
    bucketer = pf.CompositeBucketer(
        pf.HiveBucketer("c"), pf.DateTimeBucketer("t", "%Y"), lambda rows: ["z"] * len(rows)
    )
    rows = batch(c=["a", "b", "a"], t=[datetime(2013, 1, 1, tzinfo=UTC)] * 2 + [datetime(2014, 1, 1, tzinfo=UTC)])
    assert of(bucketer, rows) == ["c=a/2013/z", "c=b/2013/z", "c=a/2014/z"]
    assert bucketer.dropped_columns == ("c",)


def test_functions_may_take_the_context_and_return_lists_or_arrays() -> None:
    """f(batch) and f(batch, context); a list, an array, a dictionary array; '' is the base path."""
    rows = batch(x=[1, 2])
    assert of(resolve_bucketer(lambda _rows: ["", "a/b"]), rows) == ["", "a/b"]
    assert of(resolve_bucketer(lambda _rows, context: [str(context.batch_time_ms)] * 2), rows) == ["1533363082011"] * 2
    assert of(resolve_bucketer(lambda _rows: pa.array(["p", "q"]).dictionary_encode()), rows) == ["p", "q"]
    assert of(resolve_bucketer(lambda _rows: pa.chunked_array([["p"], ["q"]])), rows) == ["p", "q"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", "a", None]),
        pa.array(["a", "b", "a", None], pa.large_string()),
        pa.array(["a", "b", "a", None]).dictionary_encode(),
        pa.array(["zz", "a", "b", "a", None]).slice(1),
        pa.array(["zz", "a", "b", "a", None]).dictionary_encode().slice(1),
    ],
)
def test_any_text_encoding_gives_the_same_buckets(column: pa.Array) -> None:
    """Plain, large, dictionary-encoded and sliced columns are bucketed alike."""
    rows = pa.RecordBatch.from_arrays([column, pa.array(range(4))], ["c", "x"])
    assert of(pf.HiveBucketer("c"), rows) == ["c=a", "c=b", "c=a", "c=__HIVE_DEFAULT_PARTITION__"]


def test_hash_keys_say_what_an_engine_can_shuffle_by() -> None:
    """Columns for Hive, the cut timestamp for times, nothing for functions and for the batch time."""
    assert pf.HiveBucketer("a", "b").hash_key == HashKey(columns=("a", "b"))
    assert pf.DateTimeBucketer("t", "%Y-%m-%d", "Asia/Tokyo").hash_key == HashKey(
        columns=("t",), truncate_to="day", time_zone="Asia/Tokyo"
    )
    assert pf.DateTimeBucketer().hash_key is None
    assert resolve_bucketer(lambda rows: [""] * len(rows)).hash_key is None


@pytest.mark.parametrize(
    "bucketer",
    [pf.BasePathBucketer(), pf.HiveBucketer("x"), pf.DateTimeBucketer("t"), pf.CompositeBucketer(pf.HiveBucketer("x"))],
)
def test_bucketers_travel_and_show_themselves(bucketer: pf.Bucketer) -> None:
    """A bucketer survives the way into Spark's closures, and its repr says how it was made."""
    closures: Any = cloudpickle
    assert repr(closures.loads(closures.dumps(bucketer))) == repr(bucketer)
    assert type(bucketer).__name__ in repr(bucketer)
