"""The canonical files of keyed state of any size: how it is cut, how the pieces are written, and how they are read.

State of up to the limit is one canonical file. More of it is several, each with some key groups, and a list of them.
Where a file is cut follows from the rows and the limit alone, so that every backend writes the same files:

* A file takes whole key groups, as long as there is room for them.
* A key group that is larger than a file has files of its own, each with as many rows as there is room for.
* A row that is larger than a file is alone in one.

Beside the state itself there is one piece in memory, with some thousand rows, when it is written as when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partfile.errors import ConfigError, SnapshotCorrupt, StateTooLarge
from partfile.snapshot.documents import CORRUPT_HINT, MAX_DOCUMENT_BYTES
from partfile.snapshot.keyed.descriptors import is_keyed_state
from partfile.snapshot.keyed.keyed_file import BLOCK, INDEX_BYTES, LENGTH_BYTES, KeyedFile, encode_keyed_file
from partfile.snapshot.keyed.keys import MAX_PARALLELISM, KeyGroupRange
from partfile.snapshot.piece_list import Piece, PieceList, decode_piece_list, encode_piece_list, is_piece_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources, Pairs, RestoredRows


DEFAULT_PIECE_BYTES = 64 << 20
MAX_PIECE_BYTES = MAX_DOCUMENT_BYTES - INDEX_BYTES


def check_piece_bytes(piece_bytes: int) -> int:
    """Return a size of pieces that can be used.

    Raises:
        ConfigError: It is no number of bytes from 1 to less than 255 MiB.
    """
    # Users without a type checker give anything.
    if type(piece_bytes) is not int or not 1 <= piece_bytes <= MAX_PIECE_BYTES:
        raise ConfigError(
            f"piece_bytes={piece_bytes!r} is no number of bytes from 1 to {MAX_PIECE_BYTES}",
            hint=f"Write piece_bytes={DEFAULT_PIECE_BYTES}.",
        )
    return piece_bytes


class CanonicalFile(NamedTuple):
    """One piece of a view: a canonical file."""

    groups: KeyGroupRange
    data: bytes


def canonical_files(resources: KeyedSnapshotResources, piece_bytes: int) -> Iterator[CanonicalFile]:
    """A view of keyed state as canonical files, each made when it is asked for.

    Args:
        resources: The view.
        piece_bytes: The most bytes of rows of one file.

    Raises:
        UnencodableState: A codec has no form for a value.
        StateTooLarge: No reader would take a file that has one row alone.
    """
    cut = _Cut(resources, piece_bytes)
    for group in resources.groups:
        cut.begin(group)
        for state_id, (rows, values) in resources.rows(group):
            yield from cut.add(state_id, rows, values)
    yield cut.whole()


def keep_in_pieces(
    resources: KeyedSnapshotResources, piece_bytes: int, keep: Callable[[bytes], StateHandle]
) -> StateHandle:
    """Write a view as one canonical file, or as several and the list of them.

    Args:
        resources: The view.
        piece_bytes: The most bytes of rows of one file.
        keep: Writes the bytes of a file. What it has written is its owner's to delete where this fails.

    Returns:
        The handle of the one file, or of the list.

    Raises:
        UnencodableState: A codec has no form for a value.
        StateTooLarge: No reader would take a file that has one row alone.
    """
    pieces = [
        Piece(first_group=groups.first, last_group=groups.last, handle=keep(data))
        for groups, data in canonical_files(resources, piece_bytes)
    ]
    if len(pieces) == 1:
        return pieces[0].handle
    found = PieceList(
        key=resources.key_codec.kinds,
        max_parallelism=resources.max_parallelism,
        states=resources.infos,
        pieces=tuple(pieces),
    )
    return keep(encode_piece_list(found))


class _Block:
    """Rows of one state in a key group, which are to be written together."""

    def __init__(self, state_id: int) -> None:
        self.state_id = state_id
        self._count = 0
        self._sizes_bytes = [0, 0]
        self._lengths: tuple[list[bytes], list[bytes]] = ([], [])
        self._columns: tuple[list[bytes], list[bytes]] = ([], [])

    def add(self, *columns: tuple[list[bytes], Any]) -> None:
        """Append rows and their values, each with their lengths."""
        self._count += len(columns[0][0])
        for at, (pieces, lengths) in enumerate(columns):
            joined = b"".join(pieces)
            self._sizes_bytes[at] += len(joined)
            self._columns[at].append(joined)
            self._lengths[at].append(lengths.astype("<u4").tobytes())

    def encoded(self) -> list[bytes]:
        """The block as it is in the file, in pieces."""
        head = BLOCK.pack(self.state_id, self._count, *self._sizes_bytes)
        return [head, *self._lengths[0], *self._lengths[1], *self._columns[0], *self._columns[1]]


class _Cut:
    """Takes the rows of a view in their order, and gives a file whenever one is full.

    Args:
        resources: The view.
        piece_bytes: The most bytes of rows of one file.
    """

    def __init__(self, resources: KeyedSnapshotResources, piece_bytes: int) -> None:
        self._resources = resources
        self._piece_bytes = piece_bytes
        self._first = self._group = resources.groups.first
        self._offsets: list[int] = []
        """Where each key group of the file begins, with the one that is being added."""
        self._done: list[bytes] = []
        self._done_bytes = 0
        """Of the key groups before that one."""
        self._blocks: list[_Block] = []
        self._group_bytes = 0
        """Of that one, as far as it is in this file."""

    def begin(self, group: int) -> None:
        """Go on with the next key group."""
        self._end_group()
        self._group = group
        self._offsets.append(self._done_bytes)

    def add(self, state_id: int, rows: list[bytes], values: list[bytes]) -> Iterator[CanonicalFile]:
        """Take rows of the key group; give the files that are full."""
        row_lengths, value_lengths = _lengths(rows), _lengths(values)
        ends = np.cumsum(row_lengths + value_lengths + 2 * LENGTH_BYTES)
        begin = 0
        while begin < len(rows):
            before_bytes = int(ends[begin - 1]) if begin else 0
            head_bytes = 0 if self._blocks and self._blocks[-1].state_id == state_id else BLOCK.size
            room_bytes = self._piece_bytes - self._done_bytes - self._group_bytes - head_bytes
            end = int(np.searchsorted(ends, before_bytes + room_bytes, "right"))
            if end <= begin:
                if self._done_bytes or self._blocks:
                    yield self._full()
                    continue
                end = begin + 1
                self._check_alone(state_id, int(ends[begin]) - before_bytes + head_bytes)
            if head_bytes:
                self._blocks.append(_Block(state_id))
            taken = slice(begin, end)
            self._blocks[-1].add((rows[taken], row_lengths[taken]), (values[taken], value_lengths[taken]))
            self._group_bytes += head_bytes + int(ends[end - 1]) - before_bytes
            begin = end

    def whole(self) -> CanonicalFile:
        """The last file."""
        self._end_group()
        return self._file(self._group, self._offsets)

    def _full(self) -> CanonicalFile:
        """The file without the key group that is being added, or with what there is of it if there is nothing else."""
        if self._done_bytes:
            full = self._file(self._group - 1, self._offsets[:-1])
        else:
            self._end_group()
            full = self._file(self._group, self._offsets)
        self._first, self._offsets, self._done, self._done_bytes = self._group, [0], [], 0
        return full

    def _file(self, last: int, offsets: list[int]) -> CanonicalFile:
        groups = KeyGroupRange(self._first, last)
        return CanonicalFile(groups, encode_keyed_file(self._resources, groups, offsets, self._done))

    def _end_group(self) -> None:
        for block in self._blocks:
            self._done += block.encoded()
        self._done_bytes += self._group_bytes
        self._blocks, self._group_bytes = [], 0

    def _check_alone(self, state_id: int, size_bytes: int) -> None:
        if size_bytes > MAX_PIECE_BYTES:
            raise StateTooLarge(
                f"state {self._resources.infos[state_id].name!r}, key group {self._group}: one value takes "
                f"{size_bytes} bytes with its key, and a file {MAX_PIECE_BYTES} at most",
                hint="Keep it in several values of the key: ListStateDescriptor('parts', BytesCodec())",
            )


def _lengths(column: list[bytes]) -> Any:
    return np.fromiter(map(len, column), np.int64, len(column))


class PieceFiles:
    """Keyed state in several canonical files, as a restore reads it: a piece when one of its key groups is asked for.

    Args:
        pieces: The list of them.
        path: Where it came from, for messages.
        read: Reads a piece.

    Raises:
        SnapshotCorrupt: The list is not that of keyed state.
    """

    def __init__(self, pieces: PieceList, path: str, read: Callable[[StateHandle], KeyedFile]) -> None:
        self.path = path
        self.infos = pieces.states
        """Name, kind and codecs of each state."""
        self.key_kinds = pieces.key
        self.max_parallelism = pieces.max_parallelism
        names = {info.name for info in self.infos}
        if pieces.max_parallelism > MAX_PARALLELISM or len(names) < len(self.infos):
            raise self._corrupt("its key groups or states are not those of one subtask")
        if other := [info.name for info in self.infos if not is_keyed_state(info)]:
            raise self._corrupt(f"{other[0]!r} is no keyed state")
        self.groups = KeyGroupRange(pieces.first_group, pieces.last_group)
        self._pieces = pieces.pieces
        self._read = read
        self._opened: tuple[int, KeyedFile] | None = None

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group: name, rows and values; in turn where several pieces have them.

        Raises:
            SnapshotCorrupt: A piece is missing or damaged, or not the one that the list names.
        """
        newest = -1, b""
        ids = {info.name: state_id for state_id, info in enumerate(self.infos)}
        for at, piece in enumerate(self._pieces):
            if piece.first_group <= group <= piece.last_group:
                for name, pairs in self._open(at).rows(group):
                    if (ids[name], pairs[0][0]) <= newest:
                        raise self._corrupt(f"the rows in key group {group} do not ascend")
                    newest = ids[name], pairs[0][-1]
                    yield name, pairs

    def _open(self, at: int) -> KeyedFile:
        """A piece; the last one that was asked for is kept."""
        if self._opened is None or self._opened[0] != at:
            # Let go of before the next one is read: there is room for one.
            self._opened = None
            piece = self._pieces[at]
            file = self._read(piece.handle)
            found = file.groups, file.infos, file.key_kinds, file.max_parallelism
            groups = KeyGroupRange(piece.first_group, piece.last_group)
            if found != (groups, self.infos, self.key_kinds, self.max_parallelism):
                raise self._corrupt(f"{file.path} is another piece")
            self._opened = at, file
        return self._opened[1]

    def _corrupt(self, problem: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(f"{self.path} cannot be restored: {problem}", hint=CORRUPT_HINT, path=self.path)


def read_canonical(data: bytes, path: str, read: Callable[[StateHandle], KeyedFile]) -> RestoredRows:
    """What was written by ``keep_in_pieces``.

    Args:
        data: What its handle names.
        path: Where that came from, for messages.
        read: Reads a piece, when its rows are asked for.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in another format version.
    """
    if not is_piece_list(data):
        return KeyedFile(data, path)
    return PieceFiles(decode_piece_list(data, path), path, read)
