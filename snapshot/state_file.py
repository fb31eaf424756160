"""The one encoding of operator state, inline and in files: an index of offsets, then the elements, each on a line.

After the document's header comes one line of JSON that names each state and the byte offset of each of its elements,
counted from the end of that line. So one element is read without decoding another, and a restore deals out bytes.
Source: Flink's operator state file (metas, elements, offsets in the handle), as of 1.20.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from partfile.filesystems.errors import SnapshotCorrupt, StateTooLarge
from partfile.filesystems.port import Persisted
from partfile.snapshot.codec import CORRUPT_HINT, decode_body, decode_model, encode_body
from partfile.snapshot.state_info import NamedState, StateMetaInfo, States

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = "state"
MAX_STATES = 10_000
MAX_ELEMENTS = 1 << 22
_LINE_FEED = 10


class _StateIndex(Persisted):
    info: StateMetaInfo
    offsets: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=MAX_ELEMENTS)]


class _FileIndex(Persisted):
    states: Annotated[tuple[_StateIndex, ...], Field(max_length=MAX_STATES)]


class StateFile:
    """Operator state as bytes, checked when it is made: header, checksum, index and the bounds of every element.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged, or its offsets are not those of lines.
        SnapshotVersionError: It was written in a newer format.
    """

    def __init__(self, data: bytes, path: str) -> None:
        begin = len(data) - len(decode_body(SCHEMA, data, path)) - 1
        end_of_index = data.index(b"\n", begin)
        index = decode_model(SCHEMA, _FileIndex, data[begin:end_of_index], path)
        self._lines = memoryview(data)[end_of_index + 1 :]
        self._states = {state.info.name: state for state in index.states}
        problem = _problem(index, self._lines)
        if problem:
            raise SnapshotCorrupt(f"{path} is not a valid {SCHEMA}: {problem}", hint=CORRUPT_HINT, path=path)
        starts = [offset for state in index.states for offset in state.offsets]
        self._end_of = dict(pairwise([*starts, len(self._lines)]))

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """What is said of each state, in the order of the file."""
        return tuple(state.info for state in self._states.values())

    def count(self, name: str) -> int:
        """The number of elements of a state."""
        return len(self._states[name].offsets)

    def element(self, name: str, index: int) -> bytes:
        """One element as its codec wrote it; no other one is looked at."""
        start = self._states[name].offsets[index]
        return bytes(self._lines[start : self._end_of[start] - 1])

    def states(self) -> States:
        """All states with their elements as their codecs wrote them."""
        return {
            name: NamedState(state.info, tuple(self.element(name, index) for index in range(len(state.offsets))))
            for name, state in self._states.items()
        }


def encode_states(states: Iterable[tuple[StateMetaInfo, Sequence[bytes]]]) -> bytes:
    """Return states and their encoded elements as bytes.

    Raises:
        StateTooLarge: There are more states or elements than a reader would take.
    """
    entries: list[_StateIndex] = []
    lines: list[bytes] = []
    position = 0
    for info, elements in states:
        offsets = []
        for element in elements:
            offsets.append(position)
            lines.append(element)
            position += len(element) + 1
        if len(offsets) > MAX_ELEMENTS:
            raise StateTooLarge(f"state {info.name!r} has {len(offsets)} elements; allowed are {MAX_ELEMENTS}")
        entries.append(_StateIndex(info=info, offsets=tuple(offsets)))
    if len(entries) > MAX_STATES:
        raise StateTooLarge(f"an operator has {len(entries)} states; allowed are {MAX_STATES}")
    index = _FileIndex(states=tuple(entries)).model_dump_json().encode()
    # The document's own line feed ends the last line.
    return encode_body(SCHEMA, b"\n".join((index, *lines)))


def decode_states(data: bytes, path: str) -> States:
    """Return the states in ``data``; their elements stay encoded.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in a newer format.
    """
    return StateFile(data, path).states()


def _problem(index: _FileIndex, lines: memoryview) -> str:
    """What is wrong with the index, or an empty text."""
    names = Counter(state.info.name for state in index.states)
    if len(names) < len(index.states):
        return f"the state {names.most_common(1)[0][0]!r} is in it twice"
    for state in index.states:
        if state.info.mode == "key-groups":
            return f"{state.info.name!r} is keyed state"
        if state.info.mode == "broadcast" and len(state.offsets) != 1:
            return f"the broadcast state {state.info.name!r} has {len(state.offsets)} maps"
    starts = [offset for state in index.states for offset in state.offsets]
    if (starts or [len(lines)])[0] != 0:
        return "its first element is not at its beginning"
    for start, end in pairwise([*starts, len(lines)]):
        if not start < end <= len(lines) or lines[end - 1] != _LINE_FEED:
            return f"no element begins at offset {start} and ends at {end}"
    return ""
