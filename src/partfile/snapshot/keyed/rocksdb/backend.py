"""Keyed state in RocksDB: each row is encoded, and lies in the column family of its state.

Keys and values of the engine are those that ``files`` describes. So a view is written by going through the rows, and
those of a key group are one range.

A list has a row for each element, which ends with its place. One row without a place, in front of them, says what the
next place is. Places may have gaps here, where elements have expired; a view numbers them anew.

A backend that is restored from an incremental snapshot with its own key groups opens the files, and reads no row. From
any other snapshot it takes the rows in some at a time, so that they need not be in memory; they are checked when their
state is registered.

Source: Flink's ``RocksDBKeyedStateBackend``, as of 1.20. Its lists are one value that the engine appends to, and its
values expire when files are merged. The engine's package for Python has no merge operators and no compaction filters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from partfile.errors import ConfigError, SnapshotCorrupt, UnencodableState
from partfile.snapshot.keyed.backend import (
    PLACE_BYTES,
    KeyedStateBackend,
    Table,
    files_of,
    pairs_of,
    restored_infos,
    restored_rows,
    some_at_a_time,
)
from partfile.snapshot.keyed.codecs import encode_checked
from partfile.snapshot.keyed.descriptors import info_of
from partfile.snapshot.keyed.rocksdb.database import (
    Cursor,
    Database,
    RocksDBMemory,
    RocksDBOptions,
    SortedRows,
    rows_between,
)
from partfile.snapshot.keyed.rocksdb.files import (
    GROUP_BYTES,
    TIME,
    IncrementalFiles,
    NativeRows,
    after,
    engine_rows,
    expires,
    is_in_front,
    single_rows,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from partfile.snapshot.keyed.descriptors import Descriptor
    from partfile.snapshot.keyed.keyed_file import Pairs, RestoredRows
    from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange
    from partfile.snapshot.keyed.rocksdb.files import OpenedFiles
    from partfile.snapshot.keyed.states import Cell, KeyBatch
    from partfile.snapshot.state_file import Codec, StateMetaInfo


_MAX_VALUE_BYTES = (1 << 31) - 1
"""The engine takes no larger value."""
_BEHIND = b"\xff" * GROUP_BYTES
"""Behind every key of the engine: there are at most 2 ** 15 key groups."""
_NOTHING_EXPIRED_MS = -1
"""Of rows that come from a snapshot without what had expired: no time is before 1970."""
_NO_LIST = _BEHIND
"""Stands for the row in front of a list where there is no list: no key begins with it."""
logger = logging.getLogger("partfile")


class _RocksTable(Table):
    """The rows of one state in its column family.

    What ``own`` makes, and what a read gives, is an encoded value; ``copy`` decodes it for the user.

    Args:
        descriptor: Of the state.
        backend: Whose state it is.
        restored: Rows that are not in the column family yet, by key group.
    """

    _is_list = False

    def __init__(self, descriptor: Descriptor, backend: RocksDBBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        self._info = info_of(descriptor)
        self._values: Codec[Any] = descriptor.codec
        self.own: Callable[[Any], bytes] = self._encoded
        self.copy: Callable[[Any], Any] = self._value
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
        with backend.database.sorted_rows(descriptor.name) as rows:
            self._fill(rows, restored)

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

    def check_rows(self) -> None:
        """Refuse rows that a restore has taken in before the state was registered.

        Raises:
            SnapshotCorrupt: One is none of this state in this key group, or its value cannot be decoded.
        """
        for key, data in self._column.between(b"", _BEHIND):
            row = key[GROUP_BYTES:]
            if not (self._is_list and is_in_front(row)):
                self._check_row(row, data, int.from_bytes(key[:GROUP_BYTES], "big"))

    def _check_row(self, row: bytes, data: bytes, group: int) -> None:
        self._end_of_key(row, group)
        self._decoded(data, group - self.context.first_group)

    def _fill(self, rows: SortedRows, restored: Mapping[int, Pairs]) -> None:
        """Take in restored rows, as far as they are of this state."""
        for group in sorted(restored):
            found = self._checked(pairs_of(restored, group), group)
            rows.write(engine_rows(self._info, group, found))

    def _checked(self, found: Iterator[Pairs], group: int) -> Iterator[tuple[bytes, bytes]]:
        for row, data in single_rows(found):
            self._check_row(row, data, group)
            yield row, data

    def drop_until(self, last_ms: int) -> None:
        """Remove what had expired at an instant: a later present may be an earlier time than that of the snapshot."""
        for key, data in self._column.between(b"", _BEHIND):
            if time_of(data) <= last_ms:
                self._column.delete(key)

    def frozen(self) -> Cursor:
        """A cursor, which shows the rows of this instant."""
        return self._column.cursor()

    def pairs(self, frozen: Cursor, slot: int, now_ms: int) -> Iterator[Pairs]:
        """The rows and their values as they lie there."""
        return some_at_a_time((key[GROUP_BYTES:], data) for key, data in self._live(frozen, slot, now_ms))

    def _value(self, data: bytes) -> Any:
        """The value of the current key; one of a file that was opened is looked at here for the first time."""
        try:
            return self._values.decode(data)
        except SnapshotCorrupt as error:
            group = self.context.first_group + self.context.slot
            where = f"state {self.name!r}, key group {group}, codec {self.codec.name!r}"
            raise SnapshotCorrupt(f"{where}: {error.message}", hint=error.hint, path=error.path) from error

    def _encoded(self, value: Any) -> bytes:
        data = encode_checked(self._values, value)
        if len(data) > _MAX_VALUE_BYTES:
            raise UnencodableState(f"a value has {len(data)} bytes, and RocksDB takes {_MAX_VALUE_BYTES} at most")
        return data

    def _live(self, frozen: Cursor, slot: int, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
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

    def get(self) -> Cell | None:
        """The value of the current key."""
        data = self._column.get(self._key())
        return None if data is None else self._cell(data)

    def put(self, cell: Cell) -> None:
        """Set the value of the current key."""
        self._column.put(self._key(), self._stored(cell))

    def get_each(self, keys: KeyBatch) -> list[Cell | None]:
        """The values of many keys."""
        found = map(self._column.get, self._keys_of(keys))
        return [None if data is None else self._cell(data) for data in found]

    def put_each(self, keys: KeyBatch, cells: Sequence[Cell]) -> None:
        """Set the values of many keys; None removes one."""
        # One by one: rows that were written together would be weighed together, by then beyond the memory.
        for key, cell in zip(self._keys_of(keys), cells, strict=True):
            if cell is None:
                self._column.delete(key)
            else:
                self._column.put(key, self._stored(cell))

    def _keys_of(self, keys: KeyBatch) -> list[bytes]:
        heads = self._heads
        return [heads[slot] + row for slot, row in zip(keys.slots, self._rows_of(keys), strict=True)]

    def clear(self) -> None:
        """Remove the value of the current key."""
        self._column.delete(self._key())

    def _check_row(self, row: bytes, data: bytes, group: int) -> None:
        self._check_cell_row(row, group)
        self._decoded(data, group - self.context.first_group)


class _ListTable(_RocksTable):
    """Rows of elements in order, behind one that says what the next place is."""

    _is_list = True

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

    def pairs(self, frozen: Cursor, slot: int, now_ms: int) -> Iterator[Pairs]:
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


class _MapTable(_RocksTable):
    """Rows of values by a second key."""

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
        SnapshotCorrupt: Two files hold the same key group, or have rows that are none of keyed state.
        StoreError: The rows of a snapshot cannot be written to the disk.
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
        for name, given, kind in (("options", options, RocksDBOptions), ("memory", memory, RocksDBMemory)):
            if given is not None and not isinstance(given, kind):
                raise ConfigError(
                    f"RocksDBBackend: {name}={given!r:.50} is no {kind.__name__}",
                    hint=f"Write for instance {name}={kind.__name__}().",
                )
        self.memory = memory or RocksDBMemory()
        self._unchecked: set[str] = set()
        """States whose rows a restore has taken in, of which nothing is known but that their file was whole."""
        self._opened_files: OpenedFiles | None = None
        chosen = options or RocksDBOptions()
        restored = files_of(restored, groups, key_codec, max_parallelism)
        infos = restored_infos(restored)
        files = self._whole(restored)
        opened = None if files is None else self._opened_database(chosen, files)
        self.database = opened or Database(chosen, self.memory, states=infos)
        try:
            if files is not None and opened is not None:
                self._open_states(files)
            else:
                self._take_in(infos, restored)
        except BaseException:
            self.database.close()
            raise

    def _opened_database(self, options: RocksDBOptions, files: IncrementalFiles) -> Database | None:
        """A database that begins with files; None if the engine refuses them with these options."""
        try:
            return Database(options, self.memory, files.paths)
        except ConfigError as error:
            logger.warning("the rows of %s are read, because its files cannot be opened: %s", files.path, error)
            return None

    def _whole(self, restored: Sequence[RestoredRows]) -> IncrementalFiles | None:
        """The files that have the rows of this subtask and no others; None if there are none of the kind."""
        files = restored[0] if len(restored) == 1 else None
        return files if isinstance(files, IncrementalFiles) and files.groups == self.groups else None

    def _open_states(self, files: IncrementalFiles) -> None:
        """Take in the states of a database that was opened from files."""
        self._opened_files = files.opened
        self.database.keep_states(rows.info.name for rows in files.native)
        for rows in files.native:
            between = self.database.column(rows.info.name).between
            self._carried[rows.info.name] = rows.info, NativeRows(rows.info, self.groups, rows.expired_ms, between)
        if files.carried is not None:
            self._take_in({info.name: info for info in files.carried.infos}, [files.carried])

    def hand_over_files(self) -> OpenedFiles | None:
        """The files that the database was opened from, once: it cannot be known later whether they are there."""
        opened, self._opened_files = self._opened_files, None
        return opened

    def _take_in(self, infos: Mapping[str, StateMetaInfo], restored: Sequence[RestoredRows]) -> None:
        """Bring restored rows into the column families of their states, which are carried on until they are registered.

        They are in the order of their keys, so that they are written to files at once (ADR 0047).

        Source: Flink's ``RocksDBFullRestoreOperation`` and ``IngestExternalFile`` of RocksDB, as of 1.20 and 9.
        """
        for name, info in infos.items():
            between = self.database.column(name).between
            expired_ms = _NOTHING_EXPIRED_MS if expires(info) else None
            self._carried[name] = info, NativeRows(info, self.groups, expired_ms, between)
            self._unchecked.add(name)
        with ExitStack() as written:
            rows = {name: written.enter_context(self.database.sorted_rows(name, len(infos))) for name in infos}
            for (name, group), found in restored_rows(restored, self.groups):
                rows[name].write(engine_rows(infos[name], group, single_rows(found)))

    def metric(self, name: str) -> dict[str, int]:
        """What RocksDB counts, by state: read when it is asked for, and never otherwise.

        Args:
            name: Of the property without its ``rocksdb.``, for instance ``estimate-num-keys``, ``live-sst-files-size``
                (bytes), ``cur-size-all-mem-tables`` (bytes of rows that are not in files yet), ``compaction-pending``.

        Raises:
            ConfigError: RocksDB counts nothing of that name, or the backend is closed.
            StoreError: RocksDB cannot read it.
        """
        return self.database.metric(name)

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
            if descriptor.name in self._unchecked:
                table.check_rows()
                self._unchecked.remove(descriptor.name)
            elif restored.expired_ms is not None:
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
