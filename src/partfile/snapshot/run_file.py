"""Runs: sorted 128-bit key hashes, each with the time at which its key was last entered. Encode, find, merge. Pure.

A run never changes. So its file is the state, the incremental snapshot and the unit of expiry in one: a checkpoint
names it, later ones name it again, and it falls as a whole when its last key has expired.

After the document's header comes one line of JSON, then the columns, little end first: ``high``, 8 bytes a key,
ascending; ``low``, 8 bytes a key, ascending where ``high`` is equal; and ``age``, 4 bytes a key, where times differ.
Blanks in the line put the columns at a multiple of 8, so that they can be used where the file is mapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from partfile.errors import SnapshotCorrupt, SnapshotVersionError
from partfile.snapshot.documents import CORRUPT_HINT, HASH_VERSION, decode_body, decode_model, encode_body, header_of
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from mmap import mmap

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]
    Times = NDArray[np.int64]


SCHEMA = "run"
MAX_KEYS = 1 << 22
"""Of one run, some 80 MiB. A task of Spark's can merge two such runs within the memory that it has by default."""
_KEYS_AT_ONCE = 1 << 20
"""Keys that a merge sorts at a time."""
_WORD_BYTES = 8
_AGE_BYTES = 4
_MAX_AGE = (1 << 32) - 1
_MAX_LINE_BYTES = 512


class _Index(Persisted):
    hash_version: Annotated[int, Field(ge=1)]
    """How the keys are hashed; see ``snapshot.key_hash``."""
    keys: Annotated[int, Field(ge=1, le=MAX_KEYS)]
    first_ms: int
    """Time of the oldest key, in milliseconds since 1970."""
    last_ms: int
    """Time of the youngest."""
    unit_ms: Annotated[int, Field(ge=0)]
    """Milliseconds that an age counts; 0 where there are none, because all keys are of one time."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run in memory, or where its file is mapped."""

    high: Words
    """Ascending; the first 64 bits of each hash."""
    low: Words
    """The other 64 bits; ascending where ``high`` is equal."""
    ages: NDArray[np.uint32] | None
    """Of each key, in units since ``first_ms``, rounded up; None if all keys are of one time."""
    first_ms: int
    """Time of the oldest key, in milliseconds since 1970."""
    last_ms: int
    """Time of the youngest key, as its age tells it."""
    unit_ms: int
    """Milliseconds that an age counts; 0 without ages."""

    @property
    def keys(self) -> int:
        """The number of keys."""
        return len(self.high)

    def times(self, at: NDArray[np.intp] | slice) -> Times:
        """The times of some keys, in milliseconds since 1970.

        Args:
            at: Their places.
        """
        if self.ages is None:
            return np.full(len(self.high[at]), self.first_ms, np.int64)
        return self.first_ms + self.ages[at].astype(np.int64) * self.unit_ms

    def hashes(self) -> bytes:
        """The hashes one after the other, 16 bytes each, big end first."""
        words = np.empty((self.keys, 2), ">u8")
        words[:, 0], words[:, 1] = self.high, self.low
        return words.tobytes()

    def find(self, high: Words, low: Words) -> NDArray[np.intp]:
        """The place of each key in the run, -1 for one that is not in it.

        Args:
            high: Of the keys; ascending ones are found 25 times faster.
            low: Of the same keys.
        """
        places = np.searchsorted(self.high, high)
        found = np.full(len(high), -1, np.intp)
        asked = np.flatnonzero(places < self.keys)
        while len(asked):
            at = places[asked]
            is_near = self.high[at] == high[asked]
            is_same = is_near & (self.low[at] == low[asked])
            found[asked[is_same]] = at[is_same]
            # Another key has the same 64 bits: it is rare, and the one that is asked for may come after it.
            asked = asked[is_near & ~is_same]
            places[asked] += 1
            asked = asked[places[asked] < self.keys]
        return found


def run_of(high: Words, low: Words, times: Times) -> Run:
    """A run of keys that are sorted and each in it once.

    Args:
        high: Of the keys, at least one.
        low: Of the keys.
        times: Of the keys, in milliseconds since 1970.
    """
    first_ms, last_ms = int(times.min()), int(times.max())
    if first_ms == last_ms:
        return Run(high, low, None, first_ms, first_ms, 0)
    unit_ms = -((first_ms - last_ms) // _MAX_AGE)
    # Rounded up: a key may expire late by less than a unit, which is a millisecond up to 49 days, and never early.
    ages = (times - first_ms + unit_ms - 1) // unit_ms
    return Run(high, low, ages.astype(np.uint32), first_ms, first_ms + int(ages.max()) * unit_ms, unit_ms)


def merged(runs: Sequence[Run]) -> Iterator[Run]:
    """The keys of several runs in one run; of a key that is in more of them, the latest time counts.

    Where one run might not hold them, there are two: their hashes part at the first bit in which any two of them
    differ. By chance a third one has the few keys for which there was no room.

    Memory: one run of the result, the pages of the others that are mapped, and some 150 MB more.

    Args:
        runs: At least one.
    """
    most = sum(run.keys for run in runs)
    first, last = min(int(run.high[0]) for run in runs), max(int(run.high[-1]) for run in runs)
    half = _second_half(first, last) if most > MAX_KEYS else first
    pieces = most // min(_KEYS_AT_ONCE, MAX_KEYS) + 1
    # Hashes are spread evenly, so equal ranges of them hold about as many keys.
    begins = sorted({half, *(first + (last - first) * piece // pieces for piece in range(pieces))})
    cuts = [[*np.searchsorted(run.high, np.array(begins, np.uint64)).tolist(), run.keys] for run in runs]
    gathered = _Gathered(most)
    for piece, begin in enumerate(begins):
        if begin == half and gathered.keys:
            yield gathered.run()
            gathered = _Gathered(most)
        slices = [slice(cut[piece], cut[piece + 1]) for cut in cuts]
        high, low, times = _sorted(
            np.concatenate([run.high[some] for run, some in zip(runs, slices, strict=True)]),
            np.concatenate([run.low[some] for run, some in zip(runs, slices, strict=True)]),
            np.concatenate([run.times(some) for run, some in zip(runs, slices, strict=True)]),
        )
        # A piece is cut only if chance, or the hashes of a test, put more into it than a run holds.
        for some in (slice(place, place + MAX_KEYS) for place in range(0, len(high), MAX_KEYS)):
            if not gathered.has_room(len(high[some])):
                yield gathered.run()
                gathered = _Gathered(most)
            gathered.append(high[some], low[some], times[some])
    if gathered.keys:
        yield gathered.run()


def _second_half(first: int, last: int) -> int:
    """The lowest number that has the first bit in which two numbers differ; the first one if they are equal."""
    free = max(0, (first ^ last).bit_length() - 1)
    return last >> free << free


class _Gathered:
    """Keys that become one run.

    Args:
        most: Keys that may come at most.
    """

    def __init__(self, most: int) -> None:
        self._room = min(most, MAX_KEYS)
        self._high, self._low = np.empty(self._room, np.uint64), np.empty(self._room, np.uint64)
        self._times = np.empty(self._room, np.int64)
        self.keys = 0
        """Those that have come."""

    def has_room(self, keys: int) -> bool:
        """Whether so many more fit."""
        return self.keys + keys <= self._room

    def append(self, high: Words, low: Words, times: Times) -> None:
        """Take keys behind those so far."""
        end = self.keys + len(high)
        some = slice(self.keys, end)
        self._high[some], self._low[some], self._times[some] = high, low, times
        self.keys = end

    def run(self) -> Run:
        """The run; at least one key has come."""
        return run_of(self._high[: self.keys], self._low[: self.keys], self._times[: self.keys])


def _sorted(high: Words, low: Words, times: Times) -> tuple[Words, Words, Times]:
    """The keys of sorted pieces in their order, each once, with its latest time."""
    # A stable sort merges what is sorted piece by piece.
    order = np.argsort(high, kind="stable")
    high, low, times = high[order], low[order], times[order]
    near = high[1:] == high[:-1]
    if not near.any():
        return high, low, times
    if (near & (low[1:] != low[:-1])).any():
        order = np.lexsort((low, high))
        high, low, times = high[order], low[order], times[order]
        near = high[1:] == high[:-1]
    starts = np.flatnonzero(np.concatenate([[True], ~(near & (low[1:] == low[:-1]))]))
    return high[starts], low[starts], np.maximum.reduceat(times, starts)


def encode_run(run: Run) -> bytes:
    """A run as the bytes of its file."""
    index = _Index(
        hash_version=HASH_VERSION, keys=run.keys, first_ms=run.first_ms, last_ms=run.last_ms, unit_ms=run.unit_ms
    )
    columns = [run.high.astype("<u8", copy=False).data, run.low.astype("<u8", copy=False).data]
    columns += [] if run.ages is None else [run.ages.astype("<u4", copy=False).data]
    line = index.model_dump_json().encode()
    length = sum(column.nbytes for column in columns)
    blanks = next(
        blanks
        for blanks in range(2 * _WORD_BYTES)
        if (len(_header(len(line) + blanks + 1 + length)) + len(line) + blanks + 1) % _WORD_BYTES == 0
    )
    # Joined once: a run may be the largest thing in a task's memory.
    return encode_body(SCHEMA, line, b" " * blanks, b"\n", *columns)


def _header(length: int) -> bytes:
    """A header of as many bytes as that of a body of this length has."""
    return header_of(SCHEMA, b"").replace(b" 0 ", b" %d " % length)


def decode_run(data: bytes | mmap, path: str, *, is_checked: bool = False) -> Run:
    """The run in a file, all of it checked. Its columns stay where they are.

    Args:
        data: The whole file, in memory or mapped.
        path: Where it came from, for messages.
        is_checked: Whether this was done with it before; then nothing but its first line is read.

    Raises:
        SnapshotCorrupt: It is damaged, or its keys are not in order.
        SnapshotVersionError: It was written in another format version, or its keys are hashed in another way.
    """
    body = decode_body(SCHEMA, data, path, is_checked=is_checked)
    line, ended, _ = bytes(body[:_MAX_LINE_BYTES]).partition(b"\n")
    index = decode_model(SCHEMA, _Index, line, path)
    if index.hash_version != HASH_VERSION:
        raise SnapshotVersionError(
            f"the keys in {path} are hashed by version {index.hash_version}, and this partfile hashes by version "
            f"{HASH_VERSION}: it would find none of them",
            hint="Go on with the version of partfile that wrote it. See which that is: partfile checkpoints PATH",
            path=path,
        )
    begin, words = len(line) + 1, index.keys * _WORD_BYTES
    ages = index.keys * _AGE_BYTES if index.unit_ms else 0
    if not ended or len(body) != begin + 2 * words + ages:
        raise _damaged(path, f"{len(body)} bytes are not those of {index.keys} keys")
    run = Run(
        high=np.frombuffer(body, "<u8", index.keys, begin),
        low=np.frombuffer(body, "<u8", index.keys, begin + words),
        ages=np.frombuffer(body, "<u4", index.keys, begin + 2 * words) if ages else None,
        first_ms=index.first_ms,
        last_ms=index.last_ms,
        unit_ms=index.unit_ms,
    )
    if is_checked:
        return run
    ascends = (run.high[1:] > run.high[:-1]) | ((run.high[1:] == run.high[:-1]) & (run.low[1:] > run.low[:-1]))
    if not ascends.all():
        raise _damaged(path, "its keys are not in order")
    if run.last_ms != (run.first_ms if run.ages is None else run.first_ms + int(run.ages.max()) * run.unit_ms):
        raise _damaged(path, "its times are not those that it says")
    return run


def _damaged(path: str, what: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"{path} is not a valid {SCHEMA}: {what}", hint=CORRUPT_HINT, path=path)
