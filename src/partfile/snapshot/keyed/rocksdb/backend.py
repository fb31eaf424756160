"""Keyed state in RocksDB: each row is encoded, and lies in the column family of its state.

Keys and values of the engine are those that ``files`` describes. So a view is written by going through the rows, and
those of a key group are one range.

A list has a row for each element, which ends with its place. One row without a place, in front of them, says what the
next place is. Places may have gaps here, where elements have expired; a view numbers them anew.

A backend that is restored from an incremental snapshot with its own key groups opens the files, and reads no row.

Source: Flink's ``RocksDBKeyedStateBackend``, as of 1.20. Its lists are one value that the engine appends to, and its
values expire when files are merged. The engine's package for Python has no merge operators and no compaction filters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from partfile.errors import ConfigError, UnencodableState
from partfile.snapshot.keyed.backend import PLACE_BYTES, KeyedStateBackend, Table, check_fits, some_at_a_time
from partfile.snapshot.keyed.codecs import encode_checked
from partfile.snapshot.keyed.rocksdb.database import (
    Database,
    RocksDBMemory,
    RocksDBOptions,
    rows_between,
)
from partfile.snapshot.keyed.rocksdb.files import GROUP_BYTES, TIME, IncrementalFiles, NativeRows, after, time_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import rocksdict

    from partfile.snapshot.keyed.descriptors import Descriptor
    from partfile.snapshot.keyed.keyed_file import Pairs, RestoredRows
    from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange
    from partfile.snapshot.keyed.states import Cell
    from partfile.snapshot.state_file import Codec


_MAX_VALUE_BYTES = (1 << 31) - 1
"""The engine takes no larger value."""
_BEHIND = b"\xff" * GROUP_BYTES
"""Behind every key of the engine: there are at most 2 ** 15 key groups."""
_NO_LIST = _BEHIND
"""Stands for the row in front of a list where there is no list: no key begins with it."""
logger = logging.getLogger("partfile")


class _RocksTable(Table):
    """The rows of one state in its column family.

    What ``own`` makes, and what a read gives, is an encoded value; ``copy`` decodes it for the user.

    Args:
        descriptor: Of the state.
        backend: Whose state it is.
    """

    _is_list = False

    def __init__(self, descriptor: Descriptor, backend: RocksDBBackend) -> None:
        super().__init__(descriptor, backend)
        self._values: Codec[Any] = descriptor.codec
        self.own: Callable[[Any], bytes] = self._encoded
        self.copy: Callable[[Any], Any] = self._values.decode
        self.shares = False
        self._column = backend.database.column(descriptor.name)
        self._heads = [group.to_bytes(GROUP_BYTES, "big") for group in backend.groups]
        self._next = b""
        """Where the next look for what has expired begins; empty is the first row."""
        self._oldest_ms = 0
        """No row was older when the rows had been looked through last."""
        self._oldest_seen_ms = 0
        self._cell: Callable[[bytes], Cell] = bytes if descriptor.ttl is None else _timed
        self._stored: Callable[[Cell], bytes] = bytes if descriptor.ttl is None else _stored

    def pay(self, entries: int) -> None:
        """Look through the next rows, as many as were paid for; after the last row, the first is next.

        Nothing is looked through while nothing can have expired. A list that has expired goes as a whole, since its
        elements would be without the row that names their place.
        """
        ttl, now_ms = self.ttl, self.context.now_ms
        if ttl is None or not ttl.is_over(self._oldest_ms, now_ms):
            return
        if not self._next:
            self._oldest_seen_ms = now_ms
        last_ms, expired_list = now_ms - ttl.duration_ms, _NO_LIST
        for key, data in self._column.between(self._next, _BEHIND):
            is_of_list = key.startswith(expired_list)
            if entries <= 0 and not is_of_list:
                self._next = key
                return
            entries -= 1
            time_ms = time_of(data)
            if time_ms > last_ms:
                self._oldest_seen_ms = min(self._oldest_seen_ms, time_ms)
                continue
            self._column.delete(key)
            if self._is_list and not is_of_list:
                expired_list = key
        self._next, self._oldest_ms = b"", self._oldest_seen_ms

    def drop_until(self, last_ms: int) -> None:
        """Remove what had expired at an instant: a later present may be an earlier time than that of the snapshot."""
        for key, data in self._column.between(b"", _BEHIND):
            if time_of(data) <= last_ms:
                self._column.delete(key)

    def frozen(self) -> rocksdict.RdictIter:
        """A cursor, which shows the rows of this instant."""
        return self._column.cursor()

    def pairs(self, frozen: rocksdict.RdictIter, slot: int, now_ms: int) -> Iterator[Pairs]:
        """The rows and their values as they lie there."""
        return some_at_a_time((key[GROUP_BYTES:], data) for key, data in self._live(frozen, slot, now_ms))

    def _encoded(self, value: Any) -> bytes:
        data = encode_checked(self._values, value)
        if len(data) > _MAX_VALUE_BYTES:
            raise UnencodableState(f"a value has {len(data)} bytes, and RocksDB takes {_MAX_VALUE_BYTES} at most")
        return data

    def _live(self, frozen: rocksdict.RdictIter, slot: int, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        head, last_ms = self._heads[slot], self.live_after(now_ms)
        found = rows_between(frozen, head, after(head))
        if last_ms is None:
            return found
        return ((key, data) for key, data in found if time_of(data) > last_ms)

    def _key(self) -> bytes:
        """The engine's key of the current key and namespace."""
        try:
            return self._heads[self.context.slot] + (self.context.row if self._namespaces is None else self._row())
        except IndexError:
            raise self.context.no_key() from None

    def _all_of(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._column.between(key, after(key))


def _timed(data: bytes) -> Cell:
    return time_of(data), data[TIME.size :]


def _stored(cell: Cell) -> bytes:
    return TIME.pack(cell[0]) + cell[1]  # type: ignore[no-any-return]


class _CellTable(_RocksTable):
    """Rows of one value each."""

    def __init__(self, descriptor: Descriptor, backend: RocksDBBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        self._column.fill(self._checked(restored))

    def get(self) -> Cell | None:
        """The value of the current key."""
        data = self._column.get(self._key())
        return None if data is None else self._cell(data)

    def put(self, cell: Cell) -> None:
        """Set the value of the current key."""
        self._column.put(self._key(), self._stored(cell))

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._column.delete(self._key())

    def _checked(self, restored: Mapping[int, Pairs]) -> Iterator[tuple[bytes, bytes]]:
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            self._check_cell_rows(rows, group)
            for row, data in zip(rows, values, strict=True):
                self._decoded(data, slot)
                yield self._heads[slot] + row, data


class _ListTable(_RocksTable):
    """Rows of elements in order, behind one that says what the next place is."""

    _is_list = True

    def __init__(self, descriptor: Descriptor, backend: RocksDBBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        self._column.fill(self._checked(restored))

    def elements(self) -> list[Cell]:
        """The elements of the current key."""
        key = self._key()
        if self._column.get(key) is None:
            return []
        rows = self._all_of(key)
        next(rows)
        return [self._cell(data) for _, data in rows]

    def append(self, cells: list[Cell]) -> None:
        """Append elements to those of the current key."""
        key = self._key()
        known = self._column.get(key)
        self._column.change(self._rows_behind(key, known, cells))

    def replace(self, cells: list[Cell]) -> None:
        """Replace the elements of the current key."""
        key = self._key()
        gone = [] if self._column.get(key) is None else [row for row, _ in self._all_of(key)]
        self._column.change(self._rows_behind(key, None, cells), gone)

    def _rows_behind(self, key: bytes, known: bytes | None, cells: list[Cell]) -> list[tuple[bytes, bytes]]:
        """The rows of elements behind those that a list has, and the row in front of it."""
        first = 0 if known is None else int.from_bytes(known[-PLACE_BYTES:], "big")
        rows = [(key + at.to_bytes(PLACE_BYTES, "big"), self._stored(cell)) for at, cell in enumerate(cells, first)]
        return [*rows, (key, self._in_front(first + len(cells), cells, known))]

    def clear(self) -> None:
        """Remove the elements of the current key."""
        key = self._key()
        if self._column.get(key) is not None:
            self._column.change((), [row for row, _ in self._all_of(key)])

    def pairs(self, frozen: rocksdict.RdictIter, slot: int, now_ms: int) -> Iterator[Pairs]:
        """A row for each element, numbered from 0, and the elements."""
        return some_at_a_time(self._numbered(self._live(frozen, slot, now_ms)))

    @staticmethod
    def _numbered(found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        of_list, place = _NO_LIST, 0
        for key, data in found:
            if key.startswith(of_list):
                yield of_list[GROUP_BYTES:] + place.to_bytes(PLACE_BYTES, "big"), data
                place += 1
            else:
                of_list, place = key, 0

    def _in_front(self, next_place: int, added: list[Cell], known: bytes | None) -> bytes:
        """The row in front of a list. It expires with the newest element, and so with the whole list.

        The newest need not be the last one: a subtask that was restored may be told an earlier time than before.
        """
        data = next_place.to_bytes(PLACE_BYTES, "big")
        if self.ttl is None:
            return data
        times = [cell[0] for cell in added]
        return _stored((max(times if known is None else [_timed(known)[0], *times]), data))

    def _checked(self, restored: Mapping[int, Pairs]) -> Iterator[tuple[bytes, bytes]]:
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            head, of_list, place = self._heads[slot], b"", 0
            in_front: bytes | None = None
            for row, data in zip(rows, values, strict=True):
                end = self._end_of_key(row, group)
                if row[:end] != of_list:
                    if in_front is not None:
                        yield head + of_list, in_front
                    of_list, place, in_front = row[:end], 0, None
                self._check_place(row, end, place, group)
                self._decoded(data, slot)
                place += 1
                in_front = self._in_front(place, [self._cell(data)], in_front)
                yield head + row, data
            if in_front is not None:
                yield head + of_list, in_front


class _MapTable(_RocksTable):
    """Rows of values by a second key."""

    def __init__(self, descriptor: Descriptor, backend: RocksDBBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        self._column.fill(self._checked(restored))

    def get(self, key: bytes) -> Cell | None:
        """The value of a key in the map of the current one."""
        data = self._column.get(self._key() + key)
        return None if data is None else self._cell(data)

    def put(self, key: bytes, cell: Cell) -> None:
        """Set the value of a key in the map of the current one."""
        self._column.put(self._key() + key, self._stored(cell))

    def remove(self, key: bytes) -> None:
        """Remove a key from the map of the current one."""
        self._column.delete(self._key() + key)

    def items(self) -> list[tuple[bytes, Cell]]:
        """The map of the current key."""
        key = self._key()
        begin = len(key)
        return [(row[begin:], self._cell(data)) for row, data in self._all_of(key)]

    def clear(self) -> None:
        """Remove the map of the current key."""
        self._column.change((), [row for row, _ in self._all_of(self._key())])

    def _checked(self, restored: Mapping[int, Pairs]) -> Iterator[tuple[bytes, bytes]]:
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            for row, data in zip(rows, values, strict=True):
                self._end_of_key(row, group)
                self._decoded(data, slot)
                yield self._heads[slot] + row, data


_TableOf = TypeVar("_TableOf", bound=_RocksTable)
_Make = Callable[["Descriptor", "RocksDBBackend", "Mapping[int, Pairs]"], _TableOf]


class RocksDBBackend(KeyedStateBackend):
    """Keyed state of one subtask in RocksDB, as large as the disk.

    Every value is encoded when it is set and decoded when it is read, so that what a user does to it reaches no state.
    One thread changes the state; others may write snapshots. Close it at the end: its directory goes with it.

    Args:
        key_codec: Of the keys.
        groups: The key groups of this subtask.
        max_parallelism: The number of key groups of all subtasks; fixed with the first checkpoint.
        restored: The files of a snapshot that may hold rows of these key groups.
        options: How the database is kept.
        memory: What it may use, with the databases of other subtasks that are given it; None is some of its own.

    Raises:
        ConfigError: The snapshot has other keys or another number of key groups, or an option cannot be used.
        SnapshotCorrupt: Two files hold the same key group.
    """

    def __init__(
        self,
        key_codec: KeyCodec,
        groups: KeyGroupRange,
        max_parallelism: int,
        restored: Sequence[RestoredRows] = (),
        *,
        options: RocksDBOptions | None = None,
        memory: RocksDBMemory | None = None,
    ) -> None:
        super().__init__(key_codec, groups, max_parallelism)
        self.memory = memory or RocksDBMemory()
        chosen = options or RocksDBOptions()
        files = self._whole(restored)
        if files is None:
            self._restore(restored)
            self.database = Database(chosen, self.memory)
            return
        try:
            self.database = Database(chosen, self.memory, files.paths)
        except ConfigError as error:
            logger.warning("the rows of %s are read, because its files cannot be opened: %s", files.path, error)
            self._restore(restored)
            self.database = Database(chosen, self.memory)
            return
        try:
            self._open_states(files)
        except BaseException:
            self.database.close()
            raise

    def _whole(self, restored: Sequence[RestoredRows]) -> IncrementalFiles | None:
        """The files that have the rows of this subtask and no others; None if there are none of the kind."""
        files = restored[0] if len(restored) == 1 else None
        if not isinstance(files, IncrementalFiles):
            return None
        check_fits(files, self.key_codec, self.max_parallelism)
        return files if files.groups == self.groups else None

    def _open_states(self, files: IncrementalFiles) -> None:
        """Take in the states of a database that was opened from files."""
        self.database.keep_states(rows.info.name for rows in files.native)
        for rows in files.native:
            between = self.database.column(rows.info.name).between
            self._carried[rows.info.name] = rows.info, NativeRows(rows.info, self.groups, rows.expired_ms, between)
        carried: dict[str, dict[int, Pairs]] = {info.name: {} for info in files.carried_infos}
        for group in self.groups:
            for name, pairs in files.carried_rows(group):
                carried[name][group] = pairs
        self._carried |= {info.name: (info, carried[info.name]) for info in files.carried_infos}

    def drop_state(self, name: str) -> None:
        """Leave a state out of all further snapshots; raises as that of every backend."""
        super().drop_state(name)
        self.database.drop(name)

    def carried(self) -> dict[str, Mapping[int, Pairs]]:
        """The rows of the states that were restored and are not registered, as they are now."""
        return {name: self._frozen(rows) for name, (_, rows) in self._carried.items()}

    def _frozen(self, rows: Mapping[int, Pairs]) -> Mapping[int, Pairs]:
        if not isinstance(rows, NativeRows):
            return rows
        cursor = self.database.column(rows.info.name).cursor()
        return NativeRows(rows.info, rows.groups, rows.expired_ms, partial(rows_between, cursor))

    def expired_in_files(self) -> dict[str, int | None]:
        """Of these states, those whose rows a file of the backend has: the last instant that had expired, by name."""
        found = {name: rows for name, (_, rows) in self._carried.items()}
        return {name: rows.expired_ms for name, rows in found.items() if isinstance(rows, NativeRows)}

    def close(self) -> None:
        """Refuse every further call, and remove the database, at once or when the last view is released."""
        super().close()
        self._close_unless_seen()

    def release(self, version: int) -> None:
        """Give up the view with this number; any thread may."""
        super().release(version)
        self._close_unless_seen()

    def _close_unless_seen(self) -> None:
        if self.context.is_closed and not self.context.frozen:
            self.database.close()

    def _cell_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _CellTable:
        return self._made(_CellTable, descriptor, restored)

    def _list_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _ListTable:
        return self._made(_ListTable, descriptor, restored)

    def _map_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _MapTable:
        return self._made(_MapTable, descriptor, restored)

    def _made(self, make: _Make[_TableOf], descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _TableOf:
        if isinstance(restored, NativeRows) and restored.info.name == descriptor.name:
            table = make(descriptor, self, {})
            if restored.expired_ms is not None:
                table.drop_until(restored.expired_ms)
            return self._kept(table)
        info, known = self._carried.get(descriptor.name, (None, None))
        if info is not None and isinstance(known, NativeRows):
            # Its values are in another codec now. The rows stay in memory, for the snapshot of a program that goes on
            # without them.
            self._carried[descriptor.name] = info, dict(known)
            self.database.drop(descriptor.name)
        try:
            table = make(descriptor, self, restored)
        except BaseException:
            # Rows before one that is refused are written already.
            self.database.drop(descriptor.name)
            raise
        former = descriptor.formerly or ""
        if former in self.expired_in_files():
            # Its rows have another name now.
            self.database.drop(former)
        return self._kept(table)
