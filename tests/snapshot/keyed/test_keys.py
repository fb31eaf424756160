"""Keys of keyed state: bytes and hashes one at a time and by columns, key groups, ranges and subtasks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, SnapshotCorrupt
from partfile.snapshot.key_hash import MARKS, groups_of_hashes, hashes_of
from partfile.snapshot.keyed.keys import (
    KEY_KINDS,
    KeyCodec,
    KeyGroupRange,
    check_max_parallelism,
    default_max_parallelism,
    end_of_piece,
    group_of_hash,
    group_range,
    length_head,
    subtask_of_group,
)

MICROSECOND_TYPES = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "uint64": pa.uint64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    **MICROSECOND_TYPES,
    "decimal(2)": pa.decimal128(38, 2),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "integer": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint64": st.integers(0, (1 << 64) - 1),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    "binary": st.binary(max_size=80),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(2)": st.decimals(min_value=-(10**30), max_value=10**30, places=2),
}


def as_keys(kinds: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[Any]:
    """Rows as keys: a value where there is one column, a tuple where there are more."""
    return [row[0] for row in rows] if len(kinds) == 1 else rows


@st.composite
def some_keys(draw: st.DrawFn) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Kinds of columns, and rows of them."""
    kinds = tuple(draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3)))
    rows = draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), min_size=1, max_size=20))
    return kinds, rows


@given(some_keys())
def test_a_key_has_the_same_bytes_and_hash_alone_and_in_columns(given_keys: tuple[Any, Any]) -> None:
    """So a row that is sent by the hash of its columns meets the state of its key, and deduplication agrees."""
    kinds, rows = given_keys
    codec = KeyCodec(*kinds)
    columns = [pa.array(column, TYPES[kind]) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    data, high = codec.locate_all(columns)
    assert [codec.locate(key) for key in as_keys(kinds, rows)] == list(zip(data, high.tolist(), strict=True))
    assert high.tolist() == hashes_of(columns).high.tolist()


@given(some_keys())
def test_a_key_comes_back_as_it_was(given_keys: tuple[Any, Any]) -> None:
    """Of each kind, alone and in tuples."""
    kinds, rows = given_keys
    codec = KeyCodec(*kinds)
    for key in as_keys(kinds, rows):
        back = codec.decode(codec.encode(key))
        assert back == key
        assert type(back) is type(key)


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=30))
def test_two_keys_never_have_the_same_bytes(keys: list[tuple[str, str]]) -> None:
    """``('a', 'bc')`` and ``('ab', 'c')`` are two keys."""
    codec = KeyCodec("string", "string")
    assert len({codec.encode(key) for key in keys}) == len(set(keys))


@pytest.mark.item("SB-03")
def test_what_is_equal_in_python_is_not_one_key() -> None:
    """``1``, ``1.0`` and ``True`` are equal in Python. An integer key is an integer."""
    integers = KeyCodec("integer")
    for key in (True, 1.0, "1", None):
        with pytest.raises(ConfigError, match="not of the kind integer"):
            integers.encode(key)
    with pytest.raises(ConfigError, match="not of the kind boolean"):
        KeyCodec("boolean").encode(1)
    assert KeyCodec("decimal(2)").encode(Decimal("1.1")) == KeyCodec("decimal(2)").encode(Decimal("1.10"))


def test_one_instant_is_one_key_in_each_zone() -> None:
    """A timestamp is an instant; a date with a time is no date."""
    codec = KeyCodec("timestamp")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert codec.encode(noon) == codec.encode(noon.astimezone(timezone(timedelta(hours=2))))
    with pytest.raises(ConfigError, match="it has no time zone"):
        codec.encode(noon.replace(tzinfo=None))
    with pytest.raises(ConfigError, match="it has a time zone"):
        KeyCodec("timestamp_ntz").encode(noon)
    with pytest.raises(ConfigError, match="is a datetime, not of the kind date"):
        KeyCodec("date").encode(noon)
    assert KeyCodec("date").decode(KeyCodec("date").encode(date(1, 1, 1))) == date(1, 1, 1)


def test_a_key_that_does_not_fit_is_refused() -> None:
    """By name, with what is wrong."""
    with pytest.raises(ConfigError, match="the key 9223372036854775808 is not of the kind integer"):
        KeyCodec("integer").encode(1 << 63)
    with pytest.raises(ConfigError, match="2 of them behind the point"):
        KeyCodec("decimal(2)").encode(Decimal("1.001"))
    with pytest.raises(ConfigError, match="2 of them behind the point"):
        KeyCodec("decimal(2)").encode(Decimal(10**36))
    with pytest.raises(ConfigError, match="2 of them behind the point"):
        KeyCodec("decimal(2)").encode(Decimal("NaN"))
    with pytest.raises(ConfigError, match="it has 1 values"):
        KeyCodec("string", "integer").encode(("a",))
    with pytest.raises(ConfigError, match="'a' is a str"):
        KeyCodec("string", "integer").encode(("a", "a"))
    with pytest.raises(ConfigError, match="surrogates not allowed"):
        KeyCodec("string").encode("\ud800")


def test_a_kind_that_no_key_has_is_refused() -> None:
    """Floats, times in nanoseconds, nothing at all."""
    kinds: list[Any] = ["float", "timestamp_ns", "decimal()", "decimal(x)", "decimal(2", "", "decimal(07)", 3]
    for kind in [*kinds, "decimal(39)", "decimal(99999999)", "decimal(\u0663)"]:
        with pytest.raises(ConfigError, match="no key is of kind"):
            KeyCodec(kind)
    with pytest.raises(ConfigError, match="at least one kind"):
        KeyCodec()
    assert {kind.partition("(")[0] for kind in KEY_KINDS} == {*MARKS} - {"timestamp_ns", "timestamp_ntz_ns"}
    assert repr(KeyCodec("string", "integer")) == "KeyCodec('string', 'integer')"


def test_columns_of_another_kind_or_with_nulls_are_refused() -> None:
    """A batch is refused as a whole, before anything is changed."""
    with pytest.raises(ConfigError, match="types string are no keys of the kind integer"):
        KeyCodec("integer").locate_all([pa.array(["a"])])
    with pytest.raises(ConfigError, match="a key is null"):
        KeyCodec("integer").locate_all([pa.array([1, None])])
    assert KeyCodec("integer").locate_all([pa.array([], pa.int8())])[0] == []
    with pytest.raises(ConfigError, match="the columns of keys have 2, 1 rows"):
        KeyCodec("integer", "integer").locate_all([pa.array([1, 2]), pa.array([1])])
    with pytest.raises(ConfigError, match="a key cannot be of the kind timestamp"):
        KeyCodec("timestamp").locate_all([pa.array([1 << 62], pa.timestamp("s", "UTC"))])


def test_a_null_within_an_encoded_column_is_a_null() -> None:
    """In a dictionary, or in a run: the array around it knows nothing of it."""
    columns = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["x", None])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["x", None])),
    ]
    for column in columns:
        with pytest.raises(ConfigError, match="a key is null"):
            KeyCodec("string").locate_all([column])
        assert hashes_of([column]).is_null.tolist() == [one is None for one in column.to_pylist()]
    whole = pa.chunked_array([["x"], ["y"]])
    assert KeyCodec("string").locate_all([whole])[0] == [b"x", b"y"]


def test_a_key_that_could_not_be_given_back_is_refused() -> None:
    """Beyond Python's years in UTC."""
    with pytest.raises(ConfigError, match="date value out of range"):
        KeyCodec("timestamp").encode(datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5))))
    assert KeyCodec("decimal(2)").encode(Decimal("0E+100")) == KeyCodec("decimal(2)").encode(Decimal(0))


@pytest.mark.parametrize(
    ("kinds", "data"),
    [
        (("integer",), b"1234567"),
        (("boolean",), b"\2\0\0\0"),
        (("date",), b"\xff\xff\xff\x7f"),
        (("timestamp",), b"\xff" * 7 + b"\x7f"),
        (("string",), b"\xff"),
        (("string", "string"), b"\1a"),
        (("string", "string"), b"\x80\0\0\1a\1b"),
        (("decimal(2)",), b""),
        (("decimal(2)",), b"\0\0"),
        (("decimal(2)",), b"\x7f" * 16),
        (("decimal(2)",), b"\x7f" * 10**6),
        (("string", "string"), b"\1a\1b\0"),
        (("string", "string"), b"\1a\2b"),
    ],
)
def test_bytes_that_are_no_key_are_corrupt(kinds: tuple[str, ...], data: bytes) -> None:
    """Whatever a made-up file holds."""
    with pytest.raises(SnapshotCorrupt):
        KeyCodec(*kinds).decode(data)


@given(st.integers(0, 1 << 20))
def test_a_head_says_how_long_a_piece_is(length: int) -> None:
    """One byte or four, and no piece with its head begins with another."""
    piece = length_head(length) + bytes(length)
    assert end_of_piece(piece + b"more", 0) == (len(piece) - length, len(piece))
    with pytest.raises(SnapshotCorrupt, match="ends within its key"):
        end_of_piece(piece[:-1], 0)


def test_a_piece_of_two_gibibytes_is_refused() -> None:
    """Nothing is written that could not be read again."""
    assert len(length_head((1 << 31) - 1)) == 4
    with pytest.raises(ConfigError, match="a key has 2147483648 bytes"):
        length_head(1 << 31)


# Key groups and subtasks.


@pytest.mark.item("KS-02", "SP-23")
@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 128, 129, 4096, 32_768])
def test_the_ranges_of_all_subtasks_share_the_key_groups_out(max_parallelism: int) -> None:
    """Each group is of exactly one subtask, and the two ways to find it agree."""
    for parallelism in {1, 2, 3, 5, 8, max_parallelism} & set(range(1, max_parallelism + 1)):
        ranges = [group_range(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
        assert [group for groups in ranges for group in groups] == list(range(max_parallelism))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
        owners = [subtask_of_group(group, parallelism, max_parallelism) for group in range(max_parallelism)]
        assert owners == [subtask for subtask, groups in enumerate(ranges) for _ in groups]


def test_flink_s_own_ranges() -> None:
    """For 128 key groups, as Flink's ``KeyGroupRangeAssignment`` has them."""
    assert [(one.first, one.last) for one in (group_range(at, 3, 128) for at in range(3))] == [
        (0, 42),
        (43, 85),
        (86, 127),
    ]
    assert [default_max_parallelism(parallelism) for parallelism in (1, 85, 86, 200, 1000, 32_768)] == [
        128,
        128,
        256,
        512,
        2048,
        32_768,
    ]


@pytest.mark.item("LT-11")
def test_more_subtasks_than_key_groups_are_refused() -> None:
    """The number of key groups is the most that a job can be scaled to."""
    with pytest.raises(ConfigError, match="more than max_parallelism=4"):
        group_range(0, 5, 4)
    with pytest.raises(ConfigError, match="allowed are 1 to 32768"):
        check_max_parallelism(32_769)
    with pytest.raises(ConfigError, match="at least one subtask"):
        check_max_parallelism(4, 0)
    with pytest.raises(ConfigError, match="there is no subtask 2"):
        group_range(2, 2, 4)
    with pytest.raises(ConfigError, match="no key groups from 3 to 2"):
        KeyGroupRange(3, 2)
    assert 3 in KeyGroupRange(1, 3)
    assert 4 not in KeyGroupRange(1, 3)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=1), st.integers(1, 1 << 15))
def test_groups_of_many_hashes_are_those_of_each(hashes: list[int], max_parallelism: int) -> None:
    """Also where the product has more than 64 bits."""
    high = pa.array(hashes, pa.uint64()).to_numpy()
    groups = groups_of_hashes(high, max_parallelism)
    assert groups == [group_of_hash(hashed, max_parallelism) for hashed in hashes]
    assert all(0 <= group < max_parallelism for group in groups)
