"""Hive buckets against what Spark's partitionBy was measured to do."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import BucketValueError, ConfigError

NULL = "__HIVE_DEFAULT_PARTITION__"
CONTEXT = pf.BucketContext(batch_time_ms=0)
WITH_FALLBACK = pf.BucketContext(batch_time_ms=0, on_bad_bucket="c=bad")


def of(column: pa.Array[Any], context: pf.BucketContext = CONTEXT) -> list[str]:
    batch = pa.RecordBatch.from_arrays([column, pa.nulls(len(column))], ["c", "rest"])
    bucketer = pf.HiveBucketer("c")
    bucketer.check(batch.schema)
    return [str(path) for path in bucketer.bucket_of(batch, context).to_pylist()]


MEASURED: list[tuple[Any, pa.DataType, str]] = [
    (Decimal(0), pa.decimal128(38, 18), "0.000000000000000000"),
    (Decimal("1E-18"), pa.decimal128(38, 18), "0.000000000000000001"),
    (Decimal("-12345678901234567890.5"), pa.decimal128(38, 10), "-12345678901234567890.5000000000"),
    (Decimal(7), pa.decimal128(5, 0), "7"),
    (date(1, 1, 1), pa.date32(), "0001-01-01"),
    (date(9999, 12, 31), pa.date32(), "9999-12-31"),
    (datetime(2013, 1, 1), pa.timestamp("us"), "2013-01-01 00%3A00%3A00"),  # noqa: DTZ001 - without a zone
    (datetime(2013, 1, 1, 1, 2, 3, 1), pa.timestamp("us"), "2013-01-01 01%3A02%3A03.000001"),  # noqa: DTZ001
    (datetime(1, 1, 1, 0, 0, 0, 100_000), pa.timestamp("us"), "0001-01-01 00%3A00%3A00.1"),  # noqa: DTZ001
    (-5364662400_000000, pa.timestamp("us", "America/New_York"), "1799-12-31 19%3A03%3A58"),
    (1383456600_000000, pa.timestamp("us", "America/New_York"), "2013-11-03 01%3A30%3A00"),
    (1383460200_000000, pa.timestamp("us", "America/New_York"), "2013-11-03 01%3A30%3A00"),
    (-1, pa.timestamp("us", "America/New_York"), "1969-12-31 18%3A59%3A59.999999"),
    (-128, pa.int8(), "-128"),
    (2**63 - 1, pa.int64(), "9223372036854775807"),
    (True, pa.bool_(), "true"),
    ("", pa.string(), NULL),
    (NULL, pa.string(), NULL),
    (None, pa.string(), NULL),
    ("_x", pa.string(), "_x"),
    (".x", pa.string(), ".x"),
    (" lead", pa.string(), " lead"),
    ("trail ", pa.string(), "trail "),
    ("a%2Fb", pa.string(), "a%252Fb"),
    ("|<>~`$&;,()!@+", pa.string(), "|<>~`$&;,()!@+"),
    ("\x80\x9f\u2028", pa.string(), "\x80\x9f\u2028"),
]


@pytest.mark.parametrize(("value", "kind", "wanted"), MEASURED)
def test_values_are_written_as_spark_4_3_writes_them(value: Any, kind: pa.DataType, wanted: str) -> None:
    """The directories that Spark 4.3's partitionBy made of these values, measured 2026-11-21 (Java 17, ANSI mode)."""
    column = pa.array([value], kind)
    assert of(column) == [f"c={wanted}"]
    if not pa.types.is_boolean(kind):
        assert of(column.dictionary_encode()) == [f"c={wanted}"]


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "UTC")])
def test_dates_and_times_that_python_cannot_hold_are_bad_values(kind: pa.DataType) -> None:
    """Years beyond 9999 neither crash nor take the other rows with them."""
    number = pa.int32() if kind == pa.date32() else pa.int64()
    far = 4_000_000 if kind == pa.date32() else 4_000_000 * 86_400 * (1 if kind == pa.timestamp("s") else 1000)
    far *= 1000 if kind == pa.timestamp("us", "UTC") else 1
    column = pa.array([far, 0, None], number).cast(kind)
    bad, good, null = of(column, WITH_FALLBACK)
    assert (bad, good[:12], null) == ("c=bad", "c=1970-01-01", f"c={NULL}")
    with pytest.raises(BucketValueError, match="'c' holds a date or time outside the years 1 to 9999"):
        of(column)


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.binary(), pa.timestamp("ns"), pa.time64("us"), pa.list_(pa.int8())]
)
def test_types_without_one_text_form_are_refused_by_name(kind: pa.DataType) -> None:
    """The message names the column, its type and the types that work."""
    schema = pa.schema([("c", kind), ("rest", pa.int8())])
    with pytest.raises(ConfigError, match=r"(?s)column 'c' of type .*Use a text, integer"):
        pf.HiveBucketer("c").check(schema)


def test_a_column_name_cannot_hide_its_directory() -> None:
    """Names are escaped like values, a leading '_' or '.' too; one that no directory can have is refused at once."""
    batch = pa.RecordBatch.from_pydict({"_y": [1], ".m": [2], "a/b": [3], "rest": [0]})
    assert pf.HiveBucketer("_y", ".m", "a/b").bucket_of(batch, CONTEXT).to_pylist() == ["%5Fy=1/%2Em=2/a%2Fb=3"]
    with pytest.raises(ConfigError, match="300 bytes"):
        pf.HiveBucketer("c" * 300)


@pytest.mark.parametrize("columns", [(), ("a", "a"), ("",), (["a", "b"],), (None,)])
def test_columns_that_are_no_names_are_refused_when_made(columns: Any) -> None:
    """None, one twice, an empty one, a list: each is told how to name columns."""
    with pytest.raises(ConfigError, match=r"(?s)one or more different columns.*HiveBucketer\('y', 'm'\)"):
        pf.HiveBucketer(*columns)


def test_a_column_that_comes_twice_is_refused() -> None:
    """Which of the two should name the bucket is not guessed."""
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["c", "c"])
    with pytest.raises(ConfigError, match="several of that name"):
        pf.HiveBucketer("c", keep_columns=True).check(batch.schema)


def test_levels_longer_than_a_path_may_be_are_a_bad_value() -> None:
    """Six levels of 200 bytes fit one by one, but not together: to the fallback, or an error."""
    batch = pa.RecordBatch.from_pydict({name: ["x" * 200, "y"] for name in "abcdefg"})
    bucketer = pf.HiveBucketer(*"abcdef")
    assert bucketer.bucket_of(batch, WITH_FALLBACK).to_pylist() == ["c=bad", "a=y/b=y/c=y/d=y/e=y/f=y"]
    with pytest.raises(BucketValueError, match="longer than 1024 bytes"):
        bucketer.bucket_of(batch, CONTEXT)


def test_values_of_a_dictionary_that_no_row_has_do_not_matter() -> None:
    """A filtered or sliced dictionary may hold a value that names no bucket."""
    column = pa.DictionaryArray.from_arrays(pa.array([1, 1, None], pa.int8()), pa.array(["x" * 300, "ok", "unused"]))
    assert of(column) == ["c=ok", "c=ok", f"c={NULL}"]


def test_a_dictionary_may_hold_a_value_twice_or_null() -> None:
    """Equal values are one bucket whatever their codes, and a null value is null."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint8()), pa.array(["a", "a", None]))
    assert of(column) == ["c=a", "c=a", f"c={NULL}"]
