"""Functions, compositions and the fallback bucket."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa
import pydantic
import pytest
from pyspark import cloudpickle

import partfile as pf
from partfile.bucketers.base import HashKey
from partfile.bucketers.builtin import resolve_bucketer
from partfile.bucketers.paths import split
from partfile.errors import BucketValueError, ConfigError

CONTEXT = pf.BucketContext(batch_time_ms=7)
WITH_FALLBACK = pf.BucketContext(batch_time_ms=7, on_bad_bucket="bad/rows")
ROWS = pa.RecordBatch.from_pydict({"c": ["a", "b"], "n": [1, 2]})
NOT_UTF8 = pa.array([b"a\xff", b"a"], pa.binary()).view(pa.string())


def of(bucketer: Any, batch: pa.RecordBatch = ROWS, context: pf.BucketContext = CONTEXT) -> list[str]:
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
    order, slices = split(batch.num_rows, by_key.bucket_of(batch, CONTEXT))
    assert order is not None
    found = {bucket: order.to_pylist()[start:stop] for bucket, start, stop in slices}
    assert found == {str(key): list(range(key, 20, 4)) for key in range(4)}


def test_t_b07_numbers_name_buckets_as_text() -> None:
    """A bucket id that is a number becomes a directory as text; a function must say so itself."""
    batch = pa.RecordBatch.from_pydict({"k": [1, 2, 3, 4]})
    assert of(lambda rows: rows.column("k").cast(pa.string()), batch) == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match=r"4 values of type int64 for 4 rows.*one string a row"):
        of(lambda rows: rows.column("k"), batch)


def test_t_b33_the_base_path_is_the_base_itself() -> None:
    """The bucket is the empty path, without any child."""
    assert of(pf.BasePathBucketer()) == ["", ""]
    assert split(2, pf.BasePathBucketer().bucket_of(ROWS, CONTEXT)) == (None, [("", 0, 2)])


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
    assert of(function) == [wanted, wanted]


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
        of(lambda _rows: result)


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
        assert of(lambda _rows, result=result: result) == ["p", "q"]


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
        buckets = bucketer.bucket_of(empty, CONTEXT)
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
    assert of(pf.HiveBucketer("c"), batch, WITH_FALLBACK) == ["bad/rows", "c=a"]
    assert of(lambda rows: rows.column("c"), batch, WITH_FALLBACK) == ["bad/rows", "a"]
    assert of(lambda _rows: ["\ud800", "a"], batch, WITH_FALLBACK) == ["bad/rows", "a"]
    large = pa.RecordBatch.from_arrays(
        [NOT_UTF8.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string())], ["c"]
    )
    assert of(lambda rows: rows.column("c"), large, WITH_FALLBACK) == ["bad/rows", "a"]
    for bucketer in (pf.HiveBucketer("c"), lambda _rows: ["\ud800", "a"]):
        with pytest.raises(BucketValueError, match=r"UTF-8.*on_bad_bucket"):
            of(bucketer, batch)


def test_a_bad_level_sends_the_whole_row_to_the_fallback() -> None:
    """In a composition, nested or not, as in a HiveBucketer of several columns: the fallback is one bucket."""
    batch = pa.RecordBatch.from_pydict({"c": ["a", "b"], "t": pa.array([None, 0], pa.timestamp("s")), "n": [1, 2]})
    levels = (pf.HiveBucketer("c"), pf.DateTimeBucketer("t", "%Y"))
    for bucketer in (pf.CompositeBucketer(*levels), pf.CompositeBucketer(pf.CompositeBucketer(*levels))):
        assert of(bucketer, batch, WITH_FALLBACK) == ["bad/rows", "c=b/1970"]
        with pytest.raises(BucketValueError, match="'t' is null"):
            of(bucketer, batch)


def test_a_composed_path_that_is_too_long_is_a_bad_value() -> None:
    """Each level fits, the whole does not."""
    levels = [lambda _rows: ["x" * 250, "y"]] * 5
    assert of(pf.CompositeBucketer(*levels), ROWS, WITH_FALLBACK) == ["bad/rows", "y/y/y/y/y"]


def test_a_composition_skips_empty_levels() -> None:
    """The base path adds no directory."""
    assert of(pf.CompositeBucketer(pf.BasePathBucketer(), lambda _rows: ["", "x"], pf.HiveBucketer("c"))) == [
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
    assert of(lambda _rows: [None, "ok"], ROWS, context) == [fallback, "ok"]


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
    assert of(copy, batch) == of(bucketer, batch)
    assert (copy.hash_key, copy.dropped_columns) == (bucketer.hash_key, bucketer.dropped_columns)
