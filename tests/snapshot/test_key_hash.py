"""Hashes of keys: the published algorithm, kinds of values, nulls and marks. Spark's own is in tests/spark."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from partfile.snapshot.key_hash import MARKS, SECOND, SEED, hashes_of, kind_of, mark_of

if TYPE_CHECKING:
    import random

BEFORE = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None) - timedelta(seconds=1)
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_WORD = (1 << 64) - 1


def rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & _WORD


def rounded(total: int, lane: int) -> int:
    return rotated((total + lane * _P2) & _WORD, 31) * _P1 & _WORD


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 of one value, written a byte at a time after its specification."""
    at, length = 0, len(data)
    if length >= 32:
        sums = [(seed + _P1 + _P2) & _WORD, (seed + _P2) & _WORD, seed, (seed - _P1) & _WORD]
        while length - at >= 32:
            lanes = struct.unpack_from("<4Q", data, at)
            sums = [rounded(total, lane) for total, lane in zip(sums, lanes, strict=True)]
            at += 32
        hashed = sum(rotated(total, bits) for total, bits in zip(sums, (1, 7, 12, 18), strict=True)) & _WORD
        for total in sums:
            hashed = ((hashed ^ rounded(0, total)) * _P1 + _P4) & _WORD
    else:
        hashed = (seed + _P5) & _WORD
    hashed = (hashed + length) & _WORD
    while length - at >= 8:
        hashed = (rotated(hashed ^ rounded(0, struct.unpack_from("<Q", data, at)[0]), 27) * _P1 + _P4) & _WORD
        at += 8
    if length - at >= 4:
        half = struct.unpack_from("<I", data, at)[0]
        hashed = (rotated(hashed ^ (half * _P1 & _WORD), 23) * _P2 + _P3) & _WORD
        at += 4
    for byte in data[at:]:
        hashed = rotated(hashed ^ (byte * _P5 & _WORD), 11) * _P1 & _WORD
    hashed = (hashed ^ (hashed >> 33)) * _P2 & _WORD
    hashed = (hashed ^ (hashed >> 29)) * _P3 & _WORD
    return hashed ^ (hashed >> 32)


def chained(columns: list[tuple[int, bytes | None]]) -> tuple[int, int]:
    """Both words of one key: each column by its mark and its bytes, None for null."""
    words = []
    for hashed in (SEED, xxh64(struct.pack("<i", SECOND), SEED)):
        word = hashed
        for mark, data in columns:
            word = xxh64(struct.pack("<i", mark + (data is None)), word)
            word = word if data is None else xxh64(data, word)
        words.append(word)
    return words[0], words[1]


def words_of(*columns: pa.Array[Any]) -> list[tuple[int, int]]:
    hashes = hashes_of(columns)
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


def test_the_published_vectors() -> None:
    """The reference of the tests is XXH64: values of its specification's test suite."""
    assert xxh64(b"", 0) == 0xEF46DB3751D8E999
    assert xxh64(b"a", 0) == 0xD24EC4F1A98C6E5B
    assert xxh64(b"abc", 0) == 0x44BC2CF5AD770999


def test_bytes_of_every_length(rng: random.Random) -> None:
    """Each length up to four stripes and some beyond, nulls between them, in one batch and in slices of one."""
    data = [rng.randbytes(length) for length in [*range(130), 1000, 4099]]
    rows: list[bytes | None] = [*data, None]
    rng.shuffle(rows)
    expected = [chained([(MARKS["binary"] * 2, row)]) for row in rows]
    column = pa.array(rows, pa.binary())
    assert words_of(column) == expected
    assert words_of(column.slice(7, 50)) == expected[7:57]
    assert words_of(column.slice(3, 0)) == []


@pytest.mark.parametrize(
    ("kind", "data_type", "value", "data"),
    [
        ("boolean", pa.bool_(), True, struct.pack("<i", 1)),
        ("integer", pa.int8(), -3, struct.pack("<q", -3)),
        ("integer", pa.uint32(), 2**32 - 1, struct.pack("<q", 2**32 - 1)),
        ("integer", pa.int64(), -(2**63), struct.pack("<q", -(2**63))),
        ("uint64", pa.uint64(), 2**64 - 1, struct.pack("<Q", 2**64 - 1)),
        ("string", pa.large_string(), "näh", "näh".encode()),
        ("string", pa.string_view(), "a view that is long enough", b"a view that is long enough"),
        ("string", pa.dictionary(pa.int8(), pa.string()), "a", b"a"),
        ("binary", pa.binary(3), b"abc", b"abc"),
        ("date", pa.date32(), date(1969, 12, 31), struct.pack("<i", -1)),
        ("date", pa.date64(), date(1970, 1, 2), struct.pack("<i", 1)),
        ("timestamp", pa.timestamp("s", "UTC"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), struct.pack("<q", 10**6)),
        ("timestamp_ntz", pa.timestamp("ms"), BEFORE, struct.pack("<q", -(10**6))),
        ("timestamp_ns", pa.timestamp("ns", "UTC"), 5, struct.pack("<q", 5)),
        ("decimal(2)", pa.decimal128(5, 2), Decimal("1.10"), b"\x6e"),
        ("decimal(2)", pa.decimal128(38, 2), Decimal("-1.28"), b"\x80"),
        ("decimal(0)", pa.decimal128(20, 0), Decimal(128), b"\x00\x80"),
        ("decimal(0)", pa.decimal128(20, 0), Decimal(0), b"\x00"),
    ],
)
def test_each_kind_of_value(kind: str, data_type: pa.DataType, value: object, data: bytes) -> None:
    """A value is hashed as the widest type of its kind, so types of one kind make the same key."""
    assert kind_of(data_type) == kind
    assert words_of(pa.array([value, None], data_type)) == [
        chained([(mark_of(kind), data)]),
        chained([(mark_of(kind), None)]),
    ]


@pytest.mark.parametrize(
    "data_type",
    [
        pa.float32(),
        pa.float64(),
        pa.list_(pa.int8()),
        pa.map_(pa.string(), pa.string()),
        pa.struct([("a", pa.int8())]),
        pa.null(),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
    ],
    ids=str,
)
def test_what_can_be_no_key(data_type: pa.DataType) -> None:
    """Values that have several forms, or none in Spark."""
    assert kind_of(data_type) is None


def test_no_two_kinds_share_a_mark() -> None:
    """Nor a kind with the null of another one, nor decimals of two scales."""
    kinds = [kind for kind in MARKS if kind != "decimal"] + [f"decimal({scale})" for scale in range(39)]
    marks = [mark_of(kind) + is_null for kind in kinds for is_null in (0, 1)]
    assert len(set(marks)) == len(marks)
    assert max(marks) < 1 << 31


def test_columns_are_not_run_together() -> None:
    """What Spark's bare xxhash64 takes for one key: nulls that change places, and texts that are cut elsewhere."""
    text = [pa.array(column, pa.string()) for column in ([None, "a", "ab", "a"], ["a", None, "c", "bc"])]
    keys = words_of(*text)
    assert len(set(keys)) == 4
    assert len({high for high, _ in keys} | {low for _, low in keys}) == 8
    assert keys[0] == chained([(MARKS["string"] * 2, None), (MARKS["string"] * 2, b"a")])


def test_a_row_has_no_key_where_each_column_is_null() -> None:
    """One value among nulls is a key."""
    hashes = hashes_of([pa.array([None, "a", None]), pa.array([None, None, 1], pa.int64())])
    assert hashes.is_null.tolist() == [True, False, False]
    assert hashes.high.dtype == np.uint64


def test_golden_vectors() -> None:
    """What is in the run files of hash version 1: these values never change."""
    assert words_of(pa.array(["event-1"]), pa.array([42], pa.int32())) == [
        chained([(8, b"event-1"), (4, struct.pack("<q", 42))])
    ]
    assert words_of(pa.array(["event-1"]))[0] == GOLDEN


GOLDEN = (7718901065861014813, 2020702471022569118)
"""Of ``event-1``, by Spark 4.3 as well."""
