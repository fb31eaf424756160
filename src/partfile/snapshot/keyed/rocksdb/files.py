"""Keyed state in files of RocksDB, as a restore reads it.

Of the rows, a restore reads the key groups that the new range covers; so any backend can be restored, with any
parallelism. A backend of RocksDB with the same range reads no row: it opens the files.

The engine's key is the key group in two bytes, big end first, then the row as the canonical file has it. Its value is
that of the file.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import SnapshotCorrupt, StoreError
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.backend import PLACE_BYTES, GroupsOfRows, check_place, some_at_a_time
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyGroupRange, end_of_piece
from partfile.snapshot.keyed.pieces import read_canonical
from partfile.snapshot.keyed.rocksdb.database import LinkedFiles, new_directory, remove_files
from partfile.snapshot.keyed.shared_files import SORTED_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.keyed_file import Pairs, RestoredRows
    from partfile.snapshot.keyed.shared_files import IncrementalDocument, NativeFile
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.state_file import StateMetaInfo
    from partfile.snapshot.storage import CheckpointStorage


TIME = struct.Struct(">q")
"""Of the last write of a value that expires, in front of it."""
GROUP_BYTES = 2
"""Of the key group, which the engine's key begins with."""
TRANSFER_THREADS = 4
"""So many files of a snapshot are written or read at once."""


def after(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix, of which one byte is less than 255."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))


def time_of(data: bytes) -> int:
    """The time of the last write of a value that expires."""
    (time_ms,) = TIME.unpack_from(data)
    return time_ms  # type: ignore[no-any-return]


def expires(info: StateMetaInfo) -> bool:
    """Whether values of a state have a time in front."""
    return info.options["expires"] == "yes"


def single_rows(found: Iterable[Pairs]) -> Iterator[tuple[bytes, bytes]]:
    """Rows and their values one by one."""
    return chain.from_iterable(zip(rows, values, strict=True) for rows, values in found)


def _list_of(row: bytes) -> bytes:
    """Of a row of a list, the part that names the list: all of the one in front. Raises as ``is_in_front``."""
    return row[: end_of_piece(row, end_of_piece(row, 0)[1])[1]]


def is_in_front(row: bytes) -> bool:
    """Whether a row of a list is the one in front of its elements.

    Raises:
        SnapshotCorrupt: It is no row of keyed state.
    """
    return _list_of(row) == row


def engine_rows(info: StateMetaInfo, group: int, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the engine, of the rows and values of a canonical file.

    Args:
        info: What the state is.
        group: The key group of the rows.
        found: All rows of the state in it, in their order.

    Raises:
        SnapshotCorrupt: A value has no time, or the elements of a list do not follow each other.
    """
    head = group.to_bytes(GROUP_BYTES, "big")
    timed = _with_time(info, group, found) if expires(info) else found
    if info.options["kind"] == "list":
        timed = _with_fronts(info, group, timed)
    return ((head + row, data) for row, data in timed)


def _with_time(info: StateMetaInfo, group: int, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    for row, data in found:
        if len(data) < TIME.size or time_of(data) < 0:
            raise SnapshotCorrupt(f"state {info.name!r}, key group {group}: a value of {len(data)} bytes has no time")
        yield row, data


def _with_fronts(
    info: StateMetaInfo, group: int, found: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """The elements of lists, each list behind the row that stands in front of it; one list is in memory."""
    for of_list, elements in groupby(found, key=lambda pair: _list_of(pair[0])):
        rows = list(elements)
        for place, (row, _) in enumerate(rows):
            check_place(info.name, group, row[len(of_list) :], place)
        front = len(rows).to_bytes(PLACE_BYTES, "big")
        if expires(info):
            # The list expires with its newest element.
            front = TIME.pack(max(time_of(data) for _, data in rows)) + front
        yield of_list, front
        yield from rows


class NativeRows(GroupsOfRows):
    """The rows of one state in a column family, by key group: read when they are asked for, as in the canonical file.

    Args:
        info: What the state is.
        groups: The key groups of the files.
        expired_ms: Values of this time or before are not of the snapshot; None if they do not expire.
        between: Goes through the engine's rows from a key to another, which is left out.
    """

    def __init__(
        self,
        info: StateMetaInfo,
        groups: KeyGroupRange,
        expired_ms: int | None,
        between: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]],
    ) -> None:
        self.info = info
        self.groups = groups
        self.expired_ms = expired_ms
        self._between = between

    def __getitem__(self, group: int) -> Pairs:
        """Rows and values of a key group, encoded; empty where it has none."""
        if group not in self.groups:
            raise KeyError(group)
        rows: list[bytes] = []
        values: list[bytes] = []
        for some_rows, some_values in self.some(group):
            rows += some_rows
            values += some_values
        return rows, values

    def some(self, group: int) -> Iterator[Pairs]:
        """Rows and values of a key group, encoded, some at a time."""
        is_list = self.info.options["kind"] == "list"
        return some_at_a_time(self._elements(group) if is_list else self._cells(group))

    def __iter__(self) -> Iterator[int]:
        """The key groups."""
        return iter(self.groups)

    def __len__(self) -> int:
        """The number of key groups."""
        return len(self.groups)

    def _all(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        head = group.to_bytes(GROUP_BYTES, "big")
        return ((key[GROUP_BYTES:], data) for key, data in self._between(head, after(head)))

    def _is_live(self, data: bytes) -> bool:
        return self.expired_ms is None or time_of(data) > self.expired_ms

    def _cells(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        return ((row, data) for row, data in self._all(group) if self._is_live(data))

    def _elements(self, group: int) -> Iterator[tuple[bytes, bytes]]:
        """The elements of lists, numbered anew, without the rows in front of the lists."""
        place = 0
        for row, data in self._all(group):
            of_list = _list_of(row)
            if of_list == row:
                place = 0
                continue
            if not self._is_live(data):
                continue
            yield of_list + place.to_bytes(PLACE_BYTES, "big"), data
            place += 1


class OpenedFiles(NamedTuple):
    """The files in ``shared/`` of the checkpoint that a database was opened from."""

    storage: CheckpointStorage
    """Where they are, as far as the restore was told."""
    handles: dict[str, FileHandle]
    """By the name that the engine has for them."""


class IncrementalFiles:
    """Keyed state in files of RocksDB, as a restore reads it. Close it when the backend has been made.

    Args:
        document: What names the files.
        storage: Of the checkpoint.
        path: Where the document came from, for messages.
        directory: Where the files are read to, on a disk of this machine; None is that for temporary files.
        local: Links to them on this machine; None has none.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, or they are not those of one database.
        StoreError: A file cannot be read.
        ConfigError: The directory cannot be made.
    """

    def __init__(
        self,
        document: IncrementalDocument,
        storage: CheckpointStorage,
        path: str,
        directory: str | None = None,
        local: LocalStateStore | None = None,
    ) -> None:
        self.path = path
        self.is_closed = False
        """Whether the files are removed."""
        self._storage = storage
        self._local = local
        self.key_kinds = document.key
        self.max_parallelism = document.max_parallelism
        self.groups = KeyGroupRange(document.first_group, document.last_group)
        self.carried: RestoredRows | None = None
        """The states that the engine's files do not have."""
        self.from_storage = 0
        """So many files were read from the checkpoint's storage so far; what travels inline is none."""
        self.from_here = 0
        """So many were linked or read on this machine."""
        if document.carried is not None:
            self.carried = read_canonical(*self._read(document.carried), lambda handle: KeyedFile(*self._read(handle)))
        self.infos = document.states + (() if self.carried is None else self.carried.infos)
        """Name, kind and codecs of each state."""
        shared = {file.name: file.handle for file in document.files if file.name.endswith(SORTED_FILES)}
        self.opened = OpenedFiles(
            storage, {name: handle for name, handle in shared.items() if isinstance(handle, FileHandle)}
        )
        """What a backend that opens the files may name again."""
        read_to = new_directory(directory)
        try:
            with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
                is_local = list(pool.map(lambda file: self._fetch(file, read_to), document.files))
            self.from_storage += is_local.count(False)
            self.from_here += is_local.count(True)
            self._files = LinkedFiles(read_to, path)
            self.native = tuple(
                NativeRows(
                    info, self.groups, document.expired_ms.get(info.name), partial(self._files.between, info.name)
                )
                for info in document.states
            )
            """The states that the engine's files have."""
            self.paths = tuple(str(Path(read_to, file.name)) for file in document.files)
            """Of the engine's files on this machine."""
        except BaseException:
            remove_files(read_to)
            raise

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group: name, rows and values, encoded as in the canonical file.

        Raises:
            SnapshotCorrupt: A row is none of keyed state.
            StoreError: The engine cannot read a row.
        """
        for rows in self.native:
            yield from ((rows.info.name, pairs) for pairs in rows.some(group))
        if self.carried is not None:
            yield from self.carried.rows(group)

    def close(self) -> None:
        """Close the files and remove them; may be called twice."""
        self.is_closed = True
        self._files.close()

    def _read(self, handle: StateHandle) -> tuple[bytes, str]:
        """State that is carried on, of which this machine has no copies."""
        self.from_storage += isinstance(handle, FileHandle)
        return self._storage.read_shown(handle)

    def _fetch(self, file: NativeFile, directory: str) -> bool | None:
        """Bring a file into a directory; returns whether this machine had it, None if it travels inline."""
        link = None if self._local is None else self._local.linked(file.handle)
        data = b"" if link is not None else self._storage.read_bytes(file.handle)
        made = Path(directory, file.name)
        try:
            if link is not None and file.name.endswith(SORTED_FILES):
                # The engine changes none of these, so that the link stays whole.
                with suppress(OSError):
                    made.hardlink_to(link)
                    return True
            made.write_bytes(data if link is None else link.read_bytes())
        except OSError as error:
            raise StoreError(
                f"state file {self._storage.shown(file.handle)} cannot be written to {directory}: {error}",
                hint="Name a directory on a disk that has room: read_keyed_files(..., directory='/var/tmp')",
            ) from error
        return link is not None if isinstance(file.handle, FileHandle) else None
