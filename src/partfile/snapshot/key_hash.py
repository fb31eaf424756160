"""128-bit hashes of keys, the same in Python and in Spark's ``xxhash64``, so that either engine finds the other's keys.

Two chains of XXH64, seeded otherwise, each over the marks and values of the key's columns: a value is hashed with the
hash so far as its seed. A mark is a four-byte integer that says what type comes and whether it is null, because Spark's
chain passes over nulls: without it ``(null, 'a')`` and ``('a', null)`` would be one key.

Source: XXH64, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, and ``xxhash64`` of Spark 4.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]


SEED = 42
"""Spark's own, with which every chain begins."""
SECOND = 7
"""The integer that the chain of the low word begins with."""
MARKS = {
    "boolean": 1,
    "integer": 2,
    "uint64": 3,
    "string": 4,
    "binary": 5,
    "date": 6,
    "timestamp": 7,
    "timestamp_ntz": 8,
    "timestamp_ns": 9,
    "timestamp_ntz_ns": 10,
    "decimal": 11,
}
"""The mark of each kind of value. Doubled it goes before a value, and one more before a null."""
_SCALE_SHIFT = 9
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_EXACT = Context(prec=76)
"""Decimals have up to 38 digits, and as many behind the point."""
_ROWS_AT_A_TIME = 1 << 15
"""Rows that are hashed at a time: they stay in the processor's cache."""
_STRIPE_BYTES = 32
_LANE_BYTES = 8
_HALF_BYTES = 4


class Hashes(NamedTuple):
    """The hashes of the keys of some rows."""

    high: Words
    low: Words
    is_null: NDArray[np.bool_]
    """Rows without a key: each of its columns is null."""


def kind_of(data_type: pa.DataType) -> str | None:
    """The kind of values of a type, as it is recorded; None if no key can be of it.

    All types of one kind hash alike: an ``int32`` that becomes an ``int64`` is the same key.
    """
    if pat.is_dictionary(data_type) or pat.is_run_end_encoded(data_type):
        return kind_of(data_type.value_type)
    if pat.is_timestamp(data_type):
        return f"timestamp{'' if data_type.tz else '_ntz'}{'_ns' if data_type.unit == 'ns' else ''}"
    if pat.is_decimal(data_type):
        return f"decimal({data_type.scale})" if data_type.scale >= 0 and not pat.is_decimal256(data_type) else None
    kinds = {
        "boolean": pat.is_boolean,
        "uint64": pat.is_uint64,
        "integer": pat.is_integer,
        "string": lambda one: pat.is_string(one) or pat.is_large_string(one) or pat.is_string_view(one),
        "binary": lambda one: (
            pat.is_binary(one) or pat.is_large_binary(one) or pat.is_fixed_size_binary(one) or pat.is_binary_view(one)
        ),
        "date": pat.is_date,
    }
    return next((kind for kind, is_of in kinds.items() if is_of(data_type)), None)


def of_kind(column: pa.Array[Any], kind: str) -> pa.Array[Any]:
    """A column as it is, or where Arrow knows of nulls alone, nulls of a kind.

    Args:
        column: Of a type of that kind, or of none.
        kind: As ``kind_of`` says it.
    """
    if not pat.is_null(column.type):
        return column
    name, _, scale = kind.partition("(")
    if scale:
        return pa.nulls(len(column), pa.decimal128(38, int(scale.rstrip(")"))))
    unit = "ns" if name.endswith("_ns") else "us"
    types = {
        "boolean": pa.bool_(),
        "integer": pa.int64(),
        "uint64": pa.uint64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
    }
    return pa.nulls(len(column), types.get(name) or pa.timestamp(unit, None if "_ntz" in name else "UTC"))


def mark_of(kind: str) -> int:
    """The mark of a kind of values that are not null; one more marks a null."""
    name, _, scale = kind.partition("(")
    return MARKS[name] * 2 + (int(scale.rstrip(")")) << _SCALE_SHIFT if scale else 0)


def hashes_of(columns: Sequence[pa.Array[Any]]) -> Hashes:
    """The hashes of the keys that rows have in some columns.

    Args:
        columns: The key's columns, in their order, each of a type that has a ``kind_of``.
    """
    begins = range(0, max(1, len(columns[0])), _ROWS_AT_A_TIME)
    pieces = [_hashes([column.slice(begin, _ROWS_AT_A_TIME) for column in columns]) for begin in begins]
    return pieces[0] if len(pieces) == 1 else Hashes(*map(np.concatenate, zip(*pieces, strict=True)))


def groups_of_hashes(high: Words, max_parallelism: int) -> list[int]:
    """The key groups of many keys.

    Args:
        high: The first words of their hashes.
        max_parallelism: The number of key groups.
    """
    # The product has up to 79 bits: the words are cut in halves, so that none is lost.
    upper, lower = high >> np.uint64(32), high & np.uint64(0xFFFFFFFF)
    most = np.uint64(max_parallelism)
    groups: list[int] = ((upper * most + ((lower * most) >> np.uint64(32))) >> np.uint64(32)).tolist()
    return groups


def _hashes(columns: Sequence[pa.Array[Any]]) -> Hashes:
    rows = len(columns[0])
    # Both chains at once, one a row of the array: what a value costs is to be read.
    chains = np.full((2, rows), SEED, np.uint64)
    chains[1] = _of_halves(np.full(rows, SECOND, np.uint64), chains[1])
    is_null = np.ones(rows, np.bool_)
    # Decoded first: what is null in a dictionary, or in a run, is no null of the array around it.
    for column in map(decoded, columns):
        kind = kind_of(column.type)
        if kind is None:
            raise TypeError(f"no key has the type {column.type}")
        nulls = np.asarray(column.is_null())
        marks = np.uint64(mark_of(kind)) + nulls.astype(np.uint64)
        is_null &= nulls
        marked = _of_halves(marks, chains)
        hashed = _values(column, kind).hashed(marked)
        chains = np.where(nulls, marked, hashed) if nulls.any() else hashed
    return Hashes(chains[0], chains[1], is_null)


def decoded(column: pa.Array[Any]) -> pa.Array[Any]:
    """A column with a value for each row, whatever its encoding, and no views: Arrow neither takes nor sorts these."""
    if pat.is_dictionary(column.type):
        encoded = cast("pa.DictionaryArray[Any, Any]", column)
        return decoded(encoded.dictionary).take(encoded.indices)
    if pat.is_run_end_encoded(column.type):
        runs = cast("pa.RunEndEncodedArray[Any, Any]", column)
        rows = np.arange(runs.offset, runs.offset + len(runs))
        return decoded(runs.values).take(pa.array(np.searchsorted(np.asarray(runs.run_ends), rows, side="right")))
    if pat.is_string_view(column.type):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pat.is_binary_view(column.type) else column


class _Words(NamedTuple):
    """Values of eight bytes."""

    words: Words

    def hashed(self, seeds: Words) -> Words:
        return _of_words(self.words, seeds)


class _Halves(NamedTuple):
    """Values of four bytes."""

    halves: Words

    def hashed(self, seeds: Words) -> Words:
        return _of_halves(self.halves, seeds)


class _Bytes(NamedTuple):
    """Values of any length."""

    data: NDArray[np.uint8]
    """All of them, and eight bytes more."""
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def hashed(self, seeds: Words) -> Words:
        return _of_bytes(self.data, self.starts, self.lengths, seeds)


def _values(column: pa.Array[Any], kind: str) -> _Words | _Halves | _Bytes:
    """The values of a column in the form that is hashed, which is Spark's of the widest type of the kind."""
    name = kind.partition("(")[0]
    if name in {"string", "binary"}:
        return _bytes_of(column)
    if name == "decimal":
        return _bytes_of(_unscaled(column))
    if name == "boolean":
        return _Halves(_numbers(column.cast(pa.uint8())))
    if name == "date":
        return _Halves(_numbers(column.cast(pa.date32()).cast(pa.int32())) & np.uint64(0xFFFFFFFF))
    if name.startswith("timestamp"):
        unit = "ns" if name.endswith("_ns") else "us"
        return _Words(_numbers(column.cast(pa.timestamp(unit, column.type.tz)).cast(pa.int64())))
    return _Words(_numbers(column.cast(pa.uint64() if name == "uint64" else pa.int64())))


def _numbers(column: pa.Array[Any]) -> Words:
    """Numbers as words of 64 bits, nulls as 0."""
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled).astype(np.int64 if not pat.is_uint64(column.type) else np.uint64).view(np.uint64)


def values_as_bytes(column: pa.Array[Any]) -> list[bytes]:
    """The bytes of each value of a column that are hashed.

    Args:
        column: Without nulls and decoded, of a type that has a ``kind_of``.
    """
    values = _values(column, kind_of(column.type) or "")
    if isinstance(values, _Bytes):
        data = values.data.tobytes()
        places = zip(values.starts.tolist(), values.lengths.tolist(), strict=True)
        return [data[start : start + length] for start, length in places]
    words, width = (values.words, _LANE_BYTES) if isinstance(values, _Words) else (values.halves, _HALF_BYTES)
    joined = pa.py_buffer(words.astype(f"<u{width}"))
    cut: list[bytes] = pa.Array.from_buffers(pa.binary(width), len(words), [None, joined]).to_pylist()
    return cut


def _unscaled(column: pa.Array[Any]) -> pa.Array[Any]:
    scale = column.type.scale
    return pa.array([None if one is None else digits_of(one, scale) for one in column.to_pylist()], pa.large_binary())


def digits_of(value: Decimal, scale: int) -> bytes:
    """The digits of a decimal as the fewest bytes in two's complement, big end first, as Java's ``BigInteger`` has."""
    number = int(value.scaleb(scale, _EXACT))
    length = ((number if number >= 0 else ~number).bit_length() // 8) + 1
    return number.to_bytes(length, "big", signed=True)


def _bytes_of(column: pa.Array[Any]) -> _Bytes:
    whole = column.cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, np.int64, len(whole) + 1, whole.offset * _LANE_BYTES)
    begin = int(ends[0]) if len(ends) else 0
    held = np.zeros(int(ends[-1]) - begin + _LANE_BYTES, np.uint8)
    if data is not None:
        held[:-_LANE_BYTES] = np.frombuffer(data, np.uint8)[begin : int(ends[-1])]
    return _Bytes(held, ends[:-1] - begin, np.diff(ends))


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _round(accumulated: Words, lanes: Words) -> Words:
    return _rotated(accumulated + lanes * _P2, 31) * _P1


def _with_word(hashed: Words, words: Words) -> Words:
    return _rotated(hashed ^ _round(np.zeros_like(words), words), 27) * _P1 + _P4


def _with_half(hashed: Words, halves: Words) -> Words:
    return _rotated(hashed ^ (halves * _P1), 23) * _P2 + _P3


def _ended(hashed: Words) -> Words:
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))


def _of_halves(halves: Words, seeds: Words) -> Words:
    return _ended(_with_half(seeds + _P5 + np.uint64(_HALF_BYTES), halves))


def _of_words(words: Words, seeds: Words) -> Words:
    return _ended(_with_word(seeds + _P5 + np.uint64(_LANE_BYTES), words))


def _of_bytes(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Words) -> Words:
    """XXH64 of many values by two seeds each: a step is done at once for all values that are long enough for it."""
    # Views that read a number at any byte.
    words = np.ndarray((len(data) - _LANE_BYTES + 1,), "<u8", data, strides=(1,))
    halves = np.ndarray((len(data) - _LANE_BYTES + 1,), "<u4", data, strides=(1,))
    hashed = seeds + _P5
    stripes = lengths // _STRIPE_BYTES
    some = _places(stripes > 0)
    if stripes[some].size:
        hashed[:, some] = _of_stripes(words, starts[some], stripes[some], seeds[:, some])
    hashed += lengths.astype(np.uint64)
    at, left = starts + stripes * _STRIPE_BYTES, lengths % _STRIPE_BYTES
    for lane in range(_STRIPE_BYTES // _LANE_BYTES - 1):
        some = _places(left >= (lane + 1) * _LANE_BYTES)
        hashed[:, some] = _with_word(hashed[:, some], words[at[some] + lane * _LANE_BYTES])
    at, left = at + left // _LANE_BYTES * _LANE_BYTES, left % _LANE_BYTES
    some = _places(left >= _HALF_BYTES)
    hashed[:, some] = _with_half(hashed[:, some], halves[at[some]].astype(np.uint64))
    at, left = at + left // _HALF_BYTES * _HALF_BYTES, left % _HALF_BYTES
    for one in range(_HALF_BYTES - 1):
        some = _places(left > one)
        hashed[:, some] = _rotated(hashed[:, some] ^ (data[at[some] + one].astype(np.uint64) * _P5), 11) * _P1
    return _ended(hashed)


def _places(mask: NDArray[np.bool_]) -> NDArray[np.intp] | slice:
    """Where a mask is true. Of keys of one length, which are the rule, it is so everywhere, and nothing is copied."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _of_stripes(words: Words, starts: NDArray[np.int64], stripes: NDArray[np.int64], seeds: Words) -> Words:
    """The state after all whole stripes of values that have at least one."""
    sums = np.stack([seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1])
    lanes = np.arange(0, _STRIPE_BYTES, _LANE_BYTES)[:, np.newaxis]
    for stripe in range(int(stripes.max())):
        some = _places(stripes > stripe)
        read = words[starts[some] + (lanes + stripe * _STRIPE_BYTES)]
        sums[:, :, some] = _round(sums[:, :, some], read[:, np.newaxis])
    hashed = _rotated(sums[0], 1) + _rotated(sums[1], 7) + _rotated(sums[2], 12) + _rotated(sums[3], 18)
    for total in sums:
        hashed = (hashed ^ _round(np.zeros_like(total), total)) * _P1 + _P4
    return hashed
