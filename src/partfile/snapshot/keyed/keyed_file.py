"""The canonical file of keyed state, the same bytes whatever the backend: key groups, in each the rows of each state.

State that is larger than a file is in several, which ``pieces`` describes.

After the document's header comes one line of JSON, which names the states and says where each key group begins. In a
group each state that has rows there has a block of four columns, all of its numbers little end first:

    id of the state, rows, bytes of all rows, bytes of all values      4 numbers of 8 bytes
    length of each row                                                 4 bytes each
    length of each value                                               4 bytes each
    the rows, then the values

Rows ascend by their bytes. A row is the key and the namespace, each with its length in front (``length_head``), and
what the kind of the state adds: a map's own key, or the place in a list in eight bytes, big end first. A value is what
its codec wrote, with the time of its last write in front where the state has a time to live.

Columns, because they are read and written without a step for each row. Source: the canonical format of Flink's
savepoints (``FullSnapshotAsyncWriter``), as of 1.20, in content, not in bytes.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from itertools import pairwise
from operator import lt
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
import pyarrow as pa
from pydantic import Field

from partfile.errors import SnapshotCorrupt
from partfile.snapshot.documents import (
    CORRUPT_HINT,
    decode_body,
    decode_model,
    encode_body,
)
from partfile.snapshot.keyed.descriptors import is_keyed_state
from partfile.snapshot.keyed.keys import MAX_PARALLELISM, KeyGroupRange
from partfile.snapshot.state_file import MAX_STATES, StateMetaInfo
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.snapshot.keyed.keys import KeyCodec


Pairs = tuple[list[bytes], list[bytes]]
"""Rows and their values, both encoded, in the order of the rows."""
SCHEMA = "keyed-state"
BLOCK = struct.Struct("<QQQQ")
"""In front of a block."""
LENGTH_BYTES = 4
"""Of the length of a row, and of that of a value."""
INDEX_BYTES = 1 << 20
"""Room that the line of JSON is left in a document of the largest size."""


class KeyedSnapshotResources(ABC):
    """A view of all rows of a backend; no later change reaches it. ``release`` is the backend's."""

    infos: tuple[StateMetaInfo, ...]
    """Name, kind and codecs of each state; a state's place here is its id."""
    key_codec: KeyCodec
    groups: KeyGroupRange
    max_parallelism: int

    @abstractmethod
    def rows(self, group: int) -> Iterator[tuple[int, Pairs]]:
        """The states that have rows in a key group: id and rows, in the order of the ids.

        A state with many rows comes several times in turn, so that they need not be in memory together.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the view up."""


class RestoredRows(Protocol):
    """The keyed state of one old subtask, as a restore reads it."""

    path: str
    """Where it came from, for messages."""
    infos: tuple[StateMetaInfo, ...]
    """Name, kind and codecs of each state."""
    key_kinds: tuple[str, ...]
    max_parallelism: int
    groups: KeyGroupRange

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group: name, rows and values, both encoded.

        A state with many rows may come several times in turn.

        Raises:
            SnapshotCorrupt: They cannot be read.
        """


class _Index(Persisted):
    key: Annotated[tuple[str, ...], Field(min_length=1)]
    """The kinds of the keys."""
    max_parallelism: Annotated[int, Field(ge=1, le=MAX_PARALLELISM)]
    first_group: Annotated[int, Field(ge=0, lt=MAX_PARALLELISM)]
    offsets: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=MAX_PARALLELISM)]
    """Where each key group begins, counted from the end of this line; one without rows begins where the next does."""
    states: Annotated[tuple[StateMetaInfo, ...], Field(max_length=MAX_STATES)]


class KeyedFile:
    """Keyed state as bytes, checked when it is made but for the rows, which are checked when they are asked for.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in another format version.
    """

    def __init__(self, data: bytes, path: str) -> None:
        self.path = path
        body = decode_body(SCHEMA, data, path)
        begin = len(data) - len(body) - 1
        end_of_index = data.find(b"\n", begin)
        index = decode_model(SCHEMA, _Index, data[begin:end_of_index], path)
        self._blocks = memoryview(data)[end_of_index + 1 : -1]
        self._offsets = (*index.offsets, len(self._blocks))
        self.infos = index.states
        """Name, kind and codecs of each state; a state's place here is its id."""
        self.key_kinds = index.key
        self.max_parallelism = index.max_parallelism
        last = index.first_group + len(index.offsets) - 1
        if last >= index.max_parallelism or len({info.name for info in index.states}) < len(index.states):
            raise self._corrupt("its key groups or states are not those of one subtask")
        if other := [info.name for info in index.states if not is_keyed_state(info)]:
            raise self._corrupt(f"{other[0]!r} is no keyed state")
        if index.offsets[0] != 0 or any(start > end for start, end in pairwise(self._offsets)):
            raise self._corrupt("its key groups do not follow each other")
        self.groups = KeyGroupRange(index.first_group, last)

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group of this file: name, rows and values, both encoded.

        Raises:
            SnapshotCorrupt: The group is not what its line of JSON says.
        """
        if group not in self.groups:
            raise ValueError(f"{self.path} has key groups {self.groups.first} to {self.groups.last}, not {group}")
        at = group - self.groups.first
        start, end = self._offsets[at], self._offsets[at + 1]
        newest = -1
        while start < end:
            if end - start < BLOCK.size:
                raise self._corrupt(f"key group {group} ends within a block")
            state_id, count, row_bytes, value_bytes = BLOCK.unpack_from(self._blocks, start)
            start += BLOCK.size
            if not newest < state_id < len(self.infos):
                raise self._corrupt(f"key group {group} has rows of state {state_id} at a place that is not theirs")
            newest = state_id
            after = start + 2 * LENGTH_BYTES * count + row_bytes + value_bytes
            if count < 1 or after > end:
                raise self._corrupt(f"key group {group} ends within its rows")
            lengths = np.frombuffer(self._blocks, "<u4", 2 * count, start)
            start += 2 * LENGTH_BYTES * count
            rows = self._cut(lengths[:count], start, row_bytes, group)
            if not all(map(lt, rows, rows[1:])):
                raise self._corrupt(f"the rows in key group {group} do not ascend")
            values = self._cut(lengths[count:], start + row_bytes, value_bytes, group)
            start = after
            yield self.infos[state_id].name, (rows, values)

    def _cut(self, lengths: Any, start: int, size_bytes: int, group: int) -> list[bytes]:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if offsets[-1] != size_bytes:
            raise self._corrupt(f"the lengths in key group {group} do not add up")
        data = pa.py_buffer(self._blocks[start : start + size_bytes])
        array = pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), data])
        pieces: list[bytes] = array.to_pylist()
        return pieces

    def _corrupt(self, problem: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(
            f"{self.path} is not a valid {SCHEMA} document: {problem}", hint=CORRUPT_HINT, path=self.path
        )


def encode_keyed_file(
    resources: KeyedSnapshotResources, groups: KeyGroupRange, offsets: Sequence[int], blocks: Sequence[bytes]
) -> bytes:
    """The rows of some key groups as a canonical file.

    Args:
        resources: The view, which says what the rows are of.
        groups: The key groups.
        offsets: Where each begins in the blocks.
        blocks: Of all key groups, in pieces.
    """
    index = _Index(
        key=resources.key_codec.kinds,
        max_parallelism=resources.max_parallelism,
        first_group=groups.first,
        offsets=tuple(offsets),
        states=resources.infos,
    )
    return encode_body(SCHEMA, index.model_dump_json().encode(), b"\n", *blocks)
