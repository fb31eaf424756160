"""Keys of keyed state: their bytes, their hashes, and the key groups and subtasks to which these lead. Pure rules.

A key is told from another by its bytes, never by Python's ``==``: ``1``, ``1.0`` and ``True`` are three keys. Its group
is the top of the first word of its 128-bit hash (``key_hash``), so that a row that is sent by the hash of its Arrow
columns meets the state of its key. Python's ``hash`` is salted and is not used.

Source: Flink's ``KeyGroupRangeAssignment``, as of 1.20, with another hash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from partfile.errors import ConfigError, SnapshotCorrupt
from partfile.snapshot.key_hash import SEED, decoded, digits_of, hashes_of, kind_of, mark_of, values_as_bytes
from partfile.snapshot.state_file import CodecInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Key = Any
    """One value, or a tuple of as many as a codec has kinds."""


DEFAULT_MAX_PARALLELISM = 128
MAX_PARALLELISM = 1 << 15
_HASH_BITS = 64
LONG_HEAD = 0x80
"""Pieces that are so long have a head of four bytes."""
_LONG_HEAD_BYTES = 4
_MAX_PIECE_BYTES = (1 << 31) - 1
SHORT_HEADS = tuple(bytes((length,)) for length in range(LONG_HEAD))
"""The heads of the others, by their length."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps without a zone.
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MICROSECOND = timedelta(microseconds=1)
_DECIMAL_DIGITS = 38
"""Of Spark's and Arrow's decimals."""
_DECIMAL_BYTES = 16
_DECIMAL_KIND = re.compile(r"decimal\((0|[1-9][0-9]?)\)")
_EXACT = Context(prec=2 * _DECIMAL_DIGITS)


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups that follow each other; both ends belong to it."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last < MAX_PARALLELISM:
            raise ConfigError(
                f"there are no key groups from {self.first} to {self.last}",
                hint="Find the groups of a subtask with group_range(subtask, parallelism, max_parallelism).",
            )

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


def check_max_parallelism(max_parallelism: int, parallelism: int = 1) -> int:
    """Return a number of key groups that so many subtasks can share.

    Raises:
        ConfigError: It is out of bounds, or less than the parallelism.
    """
    _check_whole(max_parallelism=max_parallelism, parallelism=parallelism)
    if not 1 <= max_parallelism <= MAX_PARALLELISM:
        raise ConfigError(
            f"max_parallelism is {max_parallelism}; allowed are 1 to {MAX_PARALLELISM}",
            hint=f"Write for instance max_parallelism={DEFAULT_MAX_PARALLELISM}.",
        )
    if parallelism < 1:
        raise ConfigError(f"parallelism is {parallelism}; at least one subtask must run", hint="Write parallelism=1.")
    if parallelism > max_parallelism:
        raise ConfigError(
            f"parallelism is {parallelism}, more than max_parallelism={max_parallelism}, the number of key groups",
            hint=f"It is fixed with the first checkpoint. Write at most parallelism={max_parallelism}.",
        )
    return max_parallelism


def _check_whole(**numbers: object) -> None:
    # Users without a type checker give anything.
    for name, number in numbers.items():
        if type(number) is not int:
            raise ConfigError(f"{name}={number!r} is no whole number", hint=f"Write for instance {name}=1.")


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups for a job that names none: half as many again, up to a power of two, 128 to 32 768."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), DEFAULT_MAX_PARALLELISM), MAX_PARALLELISM)


def group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups of a subtask. The ranges of all subtasks share the groups out, each as large as another but one.

    Args:
        subtask: From 0.
        parallelism: The number of subtasks.
        max_parallelism: The number of key groups.

    Raises:
        ConfigError: The numbers do not go together.
    """
    check_max_parallelism(max_parallelism, parallelism)
    _check_whole(subtask=subtask)
    if not 0 <= subtask < parallelism:
        raise ConfigError(
            f"there is no subtask {subtask}; there are 0 to {parallelism - 1}", hint=f"Write subtask={parallelism - 1}."
        )
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    return KeyGroupRange(first, ((subtask + 1) * max_parallelism - 1) // parallelism)


def subtask_of_group(group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that has a key group; the reverse of ``group_range``."""
    return group * parallelism // max_parallelism


def group_of_hash(hashed: int, max_parallelism: int) -> int:
    """The key group of a key.

    Args:
        hashed: The first word of the hash of the key.
        max_parallelism: The number of key groups.
    """
    return (hashed * max_parallelism) >> _HASH_BITS


def length_head(length: int) -> bytes:
    """The bytes that say how many follow: one up to 127, else four with the first bit set.

    So no row of a table begins with the whole of another, and rows can be cut apart again.

    Raises:
        ConfigError: It is 2 GiB or more.
    """
    if length < LONG_HEAD:
        return SHORT_HEADS[length]
    if length > _MAX_PIECE_BYTES:
        raise ConfigError(
            f"a key has {length} bytes; allowed are {_MAX_PIECE_BYTES}", hint="Take a hash of it as KeyCodec('binary')."
        )
    return (length | LONG_HEAD << 24).to_bytes(_LONG_HEAD_BYTES, "big")


def end_of_piece(row: bytes, begin: int) -> tuple[int, int]:
    """Where a piece with a head begins and ends.

    Args:
        row: The bytes.
        begin: The place of the head.

    Raises:
        SnapshotCorrupt: There is no such piece.
    """
    if begin < len(row):
        length, start = row[begin], begin + 1
        if length >= LONG_HEAD:
            start = begin + _LONG_HEAD_BYTES
            length = int.from_bytes(row[begin:start], "big") & _MAX_PIECE_BYTES
            if length < LONG_HEAD:
                raise SnapshotCorrupt("a row of keyed state has a head that is longer than it must be")
        if start + length <= len(row):
            return start, start + length
    raise SnapshotCorrupt("a row of keyed state ends within its key")


class _Kind(NamedTuple):
    """What one kind of keys is in Python. The bytes are those that ``key_hash`` hashes."""

    type: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _number(width: int, *, signed: bool = True) -> tuple[Callable[[int], bytes], Callable[[bytes], int]]:
    def encode(value: int) -> bytes:
        return value.to_bytes(width, "little", signed=signed)

    def decode(data: bytes) -> int:
        if len(data) != width:
            raise ValueError(f"it has {len(data)} bytes, not {width}")
        return int.from_bytes(data, "little", signed=signed)

    return encode, decode


_ENCODE_LONG, _DECODE_LONG = _number(8)
_ENCODE_HALF, _DECODE_HALF = _number(4)


def _boolean_of(data: bytes) -> bool:
    number = _DECODE_HALF(data)
    if number not in {0, 1}:
        raise ValueError(f"{number} is no boolean")
    return number == 1


def _microseconds_of(value: datetime) -> bytes:
    if value.utcoffset() is None:
        raise ValueError("it has no time zone")
    # In UTC it may be beyond the years that Python has, and could not be given back.
    return _ENCODE_LONG((value.astimezone(UTC) - _EPOCH_UTC) // _MICROSECOND)


def _local_microseconds_of(value: datetime) -> bytes:
    if value.tzinfo is not None:
        raise ValueError("it has a time zone")
    return _ENCODE_LONG((value - _EPOCH) // _MICROSECOND)


_KINDS = {
    "boolean": _Kind(bool, _ENCODE_HALF, _boolean_of),
    "integer": _Kind(int, _ENCODE_LONG, _DECODE_LONG),
    "uint64": _Kind(int, *_number(8, signed=False)),
    "string": _Kind(str, str.encode, bytes.decode),
    "binary": _Kind(bytes, bytes, bytes),
    "date": _Kind(
        date,
        lambda value: _ENCODE_HALF(value.toordinal() - _EPOCH_DAY),
        lambda data: date.fromordinal(_DECODE_HALF(data) + _EPOCH_DAY),
    ),
    "timestamp": _Kind(
        datetime, _microseconds_of, lambda data: _EPOCH_UTC + timedelta(microseconds=_DECODE_LONG(data))
    ),
    "timestamp_ntz": _Kind(
        datetime, _local_microseconds_of, lambda data: _EPOCH + timedelta(microseconds=_DECODE_LONG(data))
    ),
}
KEY_KINDS = (*_KINDS, "decimal(SCALE)")
"""What a key can be made of, as in ``KeyCodec("string", "integer")``."""


def _decimal(scale: int) -> _Kind:

    def encode(value: Decimal) -> bytes:
        exponent = value.as_tuple().exponent
        is_too_long = value != 0 and value.adjusted() >= _DECIMAL_DIGITS - scale
        if not isinstance(exponent, int) or exponent < -scale or is_too_long:
            raise ValueError(f"it is no number of {_DECIMAL_DIGITS} digits, {scale} of them behind the point")
        return digits_of(value or Decimal(0), scale)

    def decode(data: bytes) -> Decimal:
        if len(data) > _DECIMAL_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        value = Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)
        if encode(value) != data:
            raise ValueError("it is written otherwise")
        return value

    return _Kind(Decimal, encode, decode)


def _kind(name: str) -> _Kind:
    # Users without a type checker give anything.
    scale = _DECIMAL_KIND.fullmatch(str(name))
    is_decimal = scale is not None and int(scale[1]) <= _DECIMAL_DIGITS
    found = _decimal(int(scale[1])) if scale is not None and is_decimal else _KINDS.get(name)
    if found is None:
        hint = "Floats, nested values and times in nanoseconds are no keys. Write for instance KeyCodec('string')."
        raise ConfigError(f"no key is of kind {name!r}; there are {', '.join(KEY_KINDS)}", hint=hint)
    return found


class KeyCodec:
    """Turns keys into bytes and back, and finds their hashes. What equal keys are is said by their bytes.

    Args:
        kinds: Of the key, or of each of its columns, which makes it a tuple: ``KeyCodec("string", "integer")``.

    Raises:
        ConfigError: There is no such kind.
    """

    def __init__(self, *kinds: str) -> None:
        if not kinds:
            raise ConfigError("a key has at least one kind", hint="Write for instance KeyCodec('string').")
        self.kinds = kinds
        self._kinds = tuple(map(_kind, kinds))
        self._marks = tuple(mark_of(kind).to_bytes(4, "little") for kind in kinds)
        self._seed = xxh64_intdigest(self._marks[0], SEED)
        self._type = self._kinds[0].type if len(kinds) == 1 else tuple
        self._encode_one = self._kinds[0].encode
        self.info = CodecInfo(name=f"key/{','.join(kinds)}", version=1)
        """Name and version, which a snapshot records."""

    @property
    def of_one_column(self) -> tuple[type, Callable[[Any], bytes], int] | None:
        """The type of keys that are no tuples, what makes bytes of one, and the seed of their hash."""
        return None if self._type is tuple else (self._type, self._encode_one, self._seed)

    def __repr__(self) -> str:
        return f"KeyCodec({', '.join(map(repr, self.kinds))})"

    def encode(self, key: Key) -> bytes:
        """The key as bytes; two keys are one if they have the same.

        Raises:
            ConfigError: It is of another kind.
        """
        return self.locate(key)[0]

    def locate(self, key: Any) -> tuple[bytes, int]:
        """The bytes of a key and the first word of its hash, as ``key_hash`` has it.

        Raises:
            ConfigError: It is of another kind.
        """
        # Not isinstance: True is no integer, and a time is no date.
        if type(key) is self._type:
            try:
                if self._type is not tuple:
                    data = self._encode_one(key)
                    return data, xxh64_intdigest(data, self._seed)
                return self._locate_tuple(key)
            except (ValueError, OverflowError, ArithmeticError) as error:
                raise self._refused(f"the key {key!r} is not of the kind {self._shown}: {error}") from error
        raise self._refused(f"the key {key!r} is a {type(key).__name__}, not of the kind {self._shown}")

    def decode(self, data: bytes) -> Key:
        """The key again.

        Raises:
            SnapshotCorrupt: The bytes are not what this codec writes.
        """
        try:
            if len(self._kinds) == 1:
                return self._kinds[0].decode(data)
            at, values = 0, []
            for kind in self._kinds:
                begin, at = end_of_piece(data, at)
                values.append(kind.decode(data[begin:at]))
        except (ValueError, OverflowError) as error:
            raise SnapshotCorrupt(f"{data!r} is no key of the kind {self._shown}: {error}") from error
        if at != len(data):
            raise SnapshotCorrupt(f"{data!r} has more than a key of the kind {self._shown}")
        return tuple(values)

    def locate_all(self, columns: Sequence[pa.Array[Any]]) -> tuple[list[bytes], Any]:
        """The bytes of many keys and the first words of their hashes, found column by column.

        Args:
            columns: The columns of the keys, of the kinds of this codec in their order, and of one length.

        Raises:
            ConfigError: A column is of another kind, or a key is null.
        """
        if not all(isinstance(one, pa.Array | pa.ChunkedArray) for one in columns):
            shown = ", ".join(type(one).__name__ for one in columns)
            raise self._refused(f"what is of the type {shown} is no column of Arrow, as pyarrow.array([...])")
        columns = [one.combine_chunks() if isinstance(one, pa.ChunkedArray) else one for one in columns]
        kinds = tuple(kind_of(column.type) for column in columns)
        if kinds != self.kinds:
            shown = ", ".join(str(column.type) for column in columns)
            raise self._refused(f"columns of the types {shown} are no keys of the kind {self._shown}")
        columns = [decoded(column) for column in columns]
        if len({len(column) for column in columns}) > 1:
            raise self._refused(f"the columns of keys have {', '.join(str(len(one)) for one in columns)} rows")
        if any(column.null_count for column in columns):
            raise ConfigError("a key is null", hint="Leave such rows out first: batch.filter(column.is_valid())")
        try:
            for kind, column in zip(kinds, columns, strict=True):
                if kind == "string":
                    # Bytes that are no text would be a key that no other call can name.
                    column.validate(full=True)
            pieces = [values_as_bytes(column) for column in columns]
            if len(pieces) == 1:
                # One word of the hash is needed: so many calls take less time than both words by columns.
                hashed = (xxh64_intdigest(data, self._seed) for data in pieces[0])
                return pieces[0], np.fromiter(hashed, np.uint64, len(pieces[0]))
            high = hashes_of(columns).high
        except pa.ArrowInvalid as error:
            raise self._refused(f"a key cannot be of the kind {self._shown}: {error}") from error
        return [b"".join(map(_with_head, row)) for row in zip(*pieces, strict=True)], high

    def hash_of(self, data: bytes) -> int:
        """The first word of the hash of a key that is given as bytes.

        Raises:
            SnapshotCorrupt: The bytes are no key of several columns.
        """
        if len(self._kinds) == 1:
            return xxh64_intdigest(data, self._seed)
        hashed, at = SEED, 0
        for mark in self._marks:
            begin, at = end_of_piece(data, at)
            hashed = xxh64_intdigest(data[begin:at], xxh64_intdigest(mark, hashed))
        return hashed

    @property
    def _shown(self) -> str:
        return ", ".join(self.kinds)

    def _refused(self, problem: str) -> ConfigError:
        return ConfigError(problem, hint=f"Give what {self!r} takes, or make it of other kinds: KeyCodec(KIND)")

    def _locate_tuple(self, key: Any) -> tuple[bytes, int]:
        if len(key) != len(self._kinds):
            raise ValueError(f"it has {len(key)} values")
        hashed, pieces = SEED, []
        for value, kind, mark in zip(key, self._kinds, self._marks, strict=True):
            if type(value) is not kind.type:
                raise ValueError(f"{value!r} is a {type(value).__name__}")
            data = kind.encode(value)
            hashed = xxh64_intdigest(data, xxh64_intdigest(mark, hashed))
            pieces.append(_with_head(data))
        return b"".join(pieces), hashed


def _with_head(piece: bytes) -> bytes:
    return length_head(len(piece)) + piece
