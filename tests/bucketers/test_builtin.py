"""Bucketers that come with the package: what each does with rows; functions, compositions, the fallback bucket."""

from __future__ import annotations

import functools
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pydantic
import pytest
from pyspark import cloudpickle

import partfile as pf
from partfile.bucketers.base import HashKey
from partfile.bucketers.builtin import resolve_bucketer
from partfile.bucketers.paths import split
from partfile.errors import BucketValueError, ConfigError

# What each bucketer does with rows.

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


# Functions, compositions and the fallback bucket.

EARLY_CONTEXT = pf.BucketContext(batch_time_ms=7)
WITH_FALLBACK = pf.BucketContext(batch_time_ms=7, on_bad_bucket="bad/rows")
ROWS = pa.RecordBatch.from_pydict({"c": ["a", "b"], "n": [1, 2]})
NOT_UTF8 = pa.array([b"a\xff", b"a"], pa.binary()).view(pa.string())


def buckets_of(bucketer: Any, batch: pa.RecordBatch = ROWS, context: pf.BucketContext = EARLY_CONTEXT) -> list[str]:
    return [str(path) for path in resolve_bucketer(bucketer).bucket_of(batch, context).to_pylist()]


class Keyed(pf.Bucketer):
    """A bucketer of a user's own that cuts two columns differently."""

    hash_key = HashKey(columns=("n",), truncate_to="day")

    def check(self, schema: pa.Schema) -> None:
        """Anything goes."""

    def bucket_of(self, batch: pa.RecordBatch, context: pf.BucketContext) -> pa.DictionaryArray[Any, Any]:
        """What the test asks for."""
        return pa.array([context.on_bad_bucket] * len(batch)).dictionary_encode()


def test_t_a12_custom_buckets() -> None:
    """20 rows with key i % 4 go to 4 buckets, each with its rows in order."""
    batch = pa.RecordBatch.from_pydict({"i": list(range(20))})
    by_key = resolve_bucketer(lambda rows: [str(i % 4) for i in rows.column("i").to_pylist()])
    order, slices = split(batch.num_rows, by_key.bucket_of(batch, EARLY_CONTEXT))
    assert order is not None
    found = {bucket: order.to_pylist()[start:stop] for bucket, start, stop in slices}
    assert found == {str(key): list(range(key, 20, 4)) for key in range(4)}


def test_t_b07_numbers_name_buckets_as_text() -> None:
    """A bucket id that is a number becomes a directory as text; a function must say so itself."""
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, 3, 4]})
    assert buckets_of(lambda rows: rows.column("k").cast(pa.string()), batch) == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match=r"(?s)4 values of type int64 for 4 rows.*one string a row"):
        buckets_of(lambda rows: rows.column("k"), batch)


def test_a_function_that_looks_up_what_is_not_there_is_named_with_the_columns() -> None:
    """A column of another name, or a key without a default; other errors of the function stay what they are."""
    batch = pa.RecordBatch.from_pydict({"k": ["a", "b"], "n": [1, 2]})
    with pytest.raises(ConfigError, match=r"(?s)KeyError: .*country.*the columns are k, n.*batch\['k'\]"):
        buckets_of(lambda rows: rows["country"], batch)
    with pytest.raises(ZeroDivisionError):
        buckets_of(lambda rows: [str(1 // 0)] * len(rows), batch)


def test_t_b33_the_base_path_is_the_base_itself() -> None:
    """The bucket is the empty path, without any child."""
    assert buckets_of(pf.BasePathBucketer()) == ["", ""]
    assert split(2, pf.BasePathBucketer().bucket_of(ROWS, EARLY_CONTEXT)) == (None, [("", 0, 2)])


class Callables:
    """Things that can be called with a batch."""

    def method(self, rows: pa.RecordBatch) -> list[str]:
        """A bound method."""
        return ["m"] * len(rows)

    def __call__(self, rows: pa.RecordBatch, context: pf.BucketContext) -> list[str]:
        """An object that can be called."""
        return [str(context.batch_time_ms)] * len(rows)


def positional(rows: pa.RecordBatch, context: pf.BucketContext) -> list[str]:
    return [str(context.batch_time_ms)] * len(rows)


def with_default(rows: pa.RecordBatch, context: pf.BucketContext | None = None) -> list[str]:
    return [str(context and context.batch_time_ms)] * len(rows)


def by_name(rows: pa.RecordBatch, *, context: pf.BucketContext) -> list[str]:
    return [str(context.batch_time_ms)] * len(rows)


def starred(rows: pa.RecordBatch, *more: Any, **options: Any) -> list[str]:
    return [f"{len(more)}{len(options)}"] * len(rows)


def configured(rows: pa.RecordBatch, *, text: str) -> list[str]:
    return [text] * len(rows)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (positional, "7"),
        (with_default, "7"),
        (by_name, "7"),
        (starred, "00"),
        (functools.partial(configured, text="p"), "p"),
        (lambda rows, n=3: [str(n)] * len(rows), "3"),
        (Callables().method, "m"),
        (Callables(), "7"),
    ],
)
def test_only_who_asks_for_the_context_gets_it(function: Any, wanted: str) -> None:
    """A second parameter without a default, or one called context; what a lambda captured is left alone."""
    assert buckets_of(function) == [wanted, wanted]


@pytest.mark.parametrize("function", [lambda: ["x"], lambda a, b, c: [a, b, c], lambda rows, *, zone: [rows, zone]])
def test_what_cannot_be_called_so_is_refused_when_made(function: Any) -> None:
    """No parameter, three, or a required keyword: found before any row comes."""
    with pytest.raises(ConfigError, match=r"neither as f\(batch\)"):
        resolve_bucketer(function)


@pytest.mark.parametrize("thing", ["y", 3, None, pf.HiveBucketer])
def test_what_is_no_bucketer_is_refused(thing: Any) -> None:
    """A name, a number, or the class in place of an object."""
    with pytest.raises(ConfigError, match="neither a bucketer nor a function"):
        resolve_bucketer(thing)


@pytest.mark.parametrize("result", ["ab", b"ab", None, 3, ["a"], ["a"] * 3, [1, "a"], [1, 2], [["a"], ["b"]]])
def test_a_result_that_is_not_one_text_a_row_is_refused(result: Any) -> None:
    """Wrong length, wrong type, no array at all, one text of just as many letters."""
    with pytest.raises(ConfigError, match="one string a row"):
        buckets_of(lambda _rows: result)


def test_any_sequence_of_texts_will_do() -> None:
    """Tuples, generators, large and dictionary arrays, chunks and slices."""
    for result in (
        ("p", "q"),
        (text for text in "pq"),
        pa.array(["p", "q"], pa.large_string()),
        pa.array(["p", "q"], pa.large_string()).dictionary_encode(),
        pa.array(["z", "p", "q"]).dictionary_encode().slice(1),
        pa.chunked_array([["p"], ["q"]]),
    ):
        assert buckets_of(lambda _rows, result=result: result) == ["p", "q"]


def test_an_empty_batch_has_no_buckets() -> None:
    """Every bucketer answers with an array of no rows, of the type it always has."""
    empty = pa.RecordBatch.from_pydict({"c": pa.array([], pa.string()), "t": pa.array([], pa.timestamp("us", "UTC"))})
    by_time = pf.DateTimeBucketer("t", time_zone="Asia/Tokyo")
    for bucketer in (
        pf.BasePathBucketer(),
        pf.HiveBucketer("c"),
        by_time,
        pf.DateTimeBucketer(),
        pf.CompositeBucketer(pf.HiveBucketer("c"), by_time),
        resolve_bucketer(lambda _rows: []),
    ):
        buckets = bucketer.bucket_of(empty, EARLY_CONTEXT)
        assert (len(buckets), buckets.type) == (0, pa.dictionary(pa.int32(), pa.string()))
        assert split(0, buckets) == (None, [])


def test_buckets_are_distinct_int32_codes() -> None:
    """What two values or two bad rows share is one dictionary entry, so that it is one slice."""
    batch = pa.RecordBatch.from_pydict({"c": [None, "", "x" * 300, "y" * 300], "n": [1, 2, 3, 4]})
    buckets = pf.HiveBucketer("c").bucket_of(batch, WITH_FALLBACK)
    assert buckets.type == pa.dictionary(pa.int32(), pa.string())
    assert buckets.dictionary.to_pylist() == ["c=__HIVE_DEFAULT_PARTITION__", "bad/rows"]
    assert buckets.indices.to_pylist() == [0, 0, 1, 1]


@pytest.mark.fault("T7")
def test_text_that_is_no_utf8_is_a_bad_value() -> None:
    """Spark's strings may hold any bytes; lone surrogates come from Python. Neither crashes, neither shares a path."""
    batch = pa.RecordBatch.from_arrays([NOT_UTF8, pa.array([1, 2])], ["c", "n"])
    assert buckets_of(pf.HiveBucketer("c"), batch, WITH_FALLBACK) == ["bad/rows", "c=a"]
    assert buckets_of(lambda rows: rows.column("c"), batch, WITH_FALLBACK) == ["bad/rows", "a"]
    assert buckets_of(lambda _rows: ["\ud800", "a"], batch, WITH_FALLBACK) == ["bad/rows", "a"]
    large = pa.RecordBatch.from_arrays(
        [NOT_UTF8.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string())], ["c"]
    )
    assert buckets_of(lambda rows: rows.column("c"), large, WITH_FALLBACK) == ["bad/rows", "a"]
    for bucketer in (pf.HiveBucketer("c"), lambda _rows: ["\ud800", "a"]):
        with pytest.raises(BucketValueError, match=r"(?s)UTF-8.*on_bad_bucket"):
            buckets_of(bucketer, batch)


def test_a_bad_level_sends_the_whole_row_to_the_fallback() -> None:
    """In a composition, nested or not, as in a HiveBucketer of several columns: the fallback is one bucket."""
    batch = pa.RecordBatch.from_pydict({"c": ["a", "b"], "t": pa.array([None, 0], pa.timestamp("s")), "n": [1, 2]})
    levels = (pf.HiveBucketer("c"), pf.DateTimeBucketer("t", "%Y"))
    for bucketer in (pf.CompositeBucketer(*levels), pf.CompositeBucketer(pf.CompositeBucketer(*levels))):
        assert buckets_of(bucketer, batch, WITH_FALLBACK) == ["bad/rows", "c=b/1970"]
        with pytest.raises(BucketValueError, match="'t' is null"):
            buckets_of(bucketer, batch)


def test_a_composed_path_that_is_too_long_is_a_bad_value() -> None:
    """Each level fits, the whole does not."""
    levels = [lambda _rows: ["x" * 250, "y"]] * 5
    assert buckets_of(pf.CompositeBucketer(*levels), ROWS, WITH_FALLBACK) == ["bad/rows", "y/y/y/y/y"]


def test_a_composition_skips_empty_levels() -> None:
    """The base path adds no directory."""
    assert buckets_of(pf.CompositeBucketer(pf.BasePathBucketer(), lambda _rows: ["", "x"], pf.HiveBucketer("c"))) == [
        "c=a",
        "x/c=b",
    ]


def test_a_composition_must_leave_a_column_and_drop_none_twice() -> None:
    """Two Hive levels may not empty the file between them, nor name one column twice."""
    both = pf.CompositeBucketer(pf.HiveBucketer("c"), pf.HiveBucketer("n"))
    both.check(pa.schema([("c", pa.string()), ("n", pa.int64()), ("rest", pa.int8())]))
    with pytest.raises(ConfigError, match="leaves no column for the file: c, n"):
        both.check(ROWS.schema)
    with pytest.raises(ConfigError, match="column 'c' into the path twice"):
        pf.CompositeBucketer(pf.HiveBucketer("c"), pf.HiveBucketer("c"))
    with pytest.raises(ConfigError, match="at least one"):
        pf.CompositeBucketer()


def test_a_composition_has_a_hash_key_only_of_plain_columns() -> None:
    """A cut time or a bucketer without a key leaves it to the bucketer itself."""
    hive = pf.HiveBucketer("c"), pf.HiveBucketer("n")
    assert pf.CompositeBucketer(*hive).hash_key == HashKey(columns=("c", "n"))
    assert pf.CompositeBucketer(hive[0], Keyed()).hash_key is None
    assert pf.CompositeBucketer(hive[0], lambda _rows: ["", ""]).hash_key is None


@pytest.mark.parametrize("fallback", ["../up", "/etc", "_partfile", ".hidden", "a//b", "a/", "\n", "x" * 300, "\ud800"])
def test_a_fallback_that_is_not_safe_is_refused_with_the_context(fallback: str) -> None:
    """Checked before any row is bad."""
    with pytest.raises(pydantic.ValidationError, match="cannot stand as a path"):
        pf.BucketContext(batch_time_ms=0, on_bad_bucket=fallback)


@pytest.mark.parametrize("fallback", ["", "bad", "bad/rows", "c=bad"])
def test_a_fallback_is_taken_as_it_stands(fallback: str) -> None:
    """The base itself, nested, and in Hive's form, so that readers see one partition column."""
    context = pf.BucketContext(batch_time_ms=0, on_bad_bucket=fallback)
    assert buckets_of(lambda _rows: [None, "ok"], ROWS, context) == [fallback, "ok"]


@pytest.mark.parametrize(
    "bucketer",
    [
        pf.DateTimeBucketer("t", "%Y/%B", "Europe/Berlin"),
        pf.HiveBucketer("c", keep_columns=True),
        pf.CompositeBucketer(pf.HiveBucketer("c"), pf.DateTimeBucketer("t")),
        resolve_bucketer(lambda rows: ["x"] * len(rows)),
    ],
)
def test_a_bucketer_gives_the_same_buckets_after_travelling(bucketer: pf.Bucketer) -> None:
    """What comes out in Spark's worker does what the driver's does."""
    batch = pa.RecordBatch.from_pydict({"c": ["a", "b"], "t": pa.array([0, 10**9], pa.timestamp("s", "UTC"))})
    closures: Any = cloudpickle
    copy = closures.loads(closures.dumps(bucketer))
    assert buckets_of(copy, batch) == buckets_of(bucketer, batch)
    assert (copy.hash_key, copy.dropped_columns) == (bucketer.hash_key, bucketer.dropped_columns)
