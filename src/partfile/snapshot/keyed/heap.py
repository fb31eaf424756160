"""Keyed state as Python's own objects: a dictionary for each state and key group, copied when a snapshot is open.

A snapshot takes the dictionaries as they are, which is a matter of microseconds. From then on the thread that changes
state copies a dictionary before its first change, as long as that snapshot is being written, and the snapshot's thread
reads the old one. So neither waits for the other, any number of snapshots may be open, and there is no lock on the way
of a row. Lists and maps of one key are copied likewise.

Source: Flink's ``HeapKeyedStateBackend`` and ``CopyOnWriteStateMap``, as of 1.20, with dictionaries for its buckets.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from partfile.snapshot.keyed.backend import PLACE_BYTES, ROWS_AT_ONCE, KeyedStateBackend, Table, check_place
from partfile.snapshot.keyed.codecs import ImmutableCodec, round_trip
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from partfile.snapshot.keyed.descriptors import Descriptor
    from partfile.snapshot.keyed.keyed_file import Pairs
    from partfile.snapshot.keyed.states import Cell, KeyBatch


Content = TypeVar("Content", bound="list[Any] | dict[bytes, Any]")


class _HeapTable(Table):
    """The dictionaries of one state, one for each key group, by row.

    Args:
        descriptor: Of the state.
        backend: Whose state it is.
    """

    def __init__(self, descriptor: Descriptor, backend: HeapBackend) -> None:
        super().__init__(descriptor, backend)
        codec, slots = descriptor.codec, len(backend.groups)
        # A codec of values that can change may copy one that it could not write: it is tried when the value is given.
        self.own: Callable[[Any], Any] = codec.copy if isinstance(codec, ImmutableCodec) else partial(round_trip, codec)
        self.copy: Callable[[Any], Any] = codec.copy
        self.shares = isinstance(codec, ImmutableCodec)
        self._tables: list[dict[bytes, Any]] = [{} for _ in range(slots)]
        self._made = [0] * slots
        """The number of snapshots that had been taken when the dictionary was made."""
        self._oldest_ms = [0] * slots
        """No cell of the key group is older."""
        self._next_slot = 0
        self._paid = 0
        self._price = 0
        """Of the next key group, once its entries have been counted: before, 0."""

    def clear(self) -> None:
        """Remove the row of the current key."""
        table, row = self._table(), self._row()
        if row in table:
            del self._own()[row]

    def pay(self, entries: int) -> None:
        """Look through the next key groups as far as has been paid for their entries, each once at most."""
        self._paid += entries
        for _ in self._tables:
            if self._paid < ENTRIES_AT_ONCE or not self._look_through():
                return
        self._paid = 0

    def _look_through(self) -> bool:
        """Look through the next key group; returns whether enough had been paid for it.

        Entries are counted where they are then looked through: only where one can have expired.
        """
        slot, ttl = self._next_slot, self.ttl
        price = ENTRIES_AT_ONCE
        if ttl is not None and ttl.is_over(self._oldest_ms[slot], self.context.now_ms):
            self._price = self._price or max(price, self._entries(self._tables[slot]))
            if self._paid < self._price:
                return False
            price = self._price
            self._oldest_ms[slot] = self._remove_expired(slot, self.context.now_ms - ttl.duration_ms)
        self._paid -= price
        self._next_slot, self._price = (slot + 1) % len(self._tables), 0
        return True

    def frozen(self) -> list[dict[bytes, Any]]:
        """The dictionaries as they are now, which nothing changes until the snapshot is released."""
        return list(self._tables)

    def _table(self) -> dict[bytes, Any]:
        try:
            return self._tables[self.context.slot]
        except IndexError:
            raise self.context.no_key() from None

    def _own(self) -> dict[bytes, Any]:
        """The dictionary of the current key, which no snapshot has."""
        slot = self.context.slot
        try:
            if self._made[slot] < self.context.frozen:
                self._replace(slot)
            return self._tables[slot]
        except IndexError:
            raise self.context.no_key() from None

    def _replace(self, slot: int) -> None:
        self._tables[slot] = self._tables[slot].copy()
        self._made[slot] = self.context.version

    def _entries(self, table: dict[bytes, Any]) -> int:
        return len(table)

    @abstractmethod
    def _remove_expired(self, slot: int, last_ms: int) -> int:
        """Remove the cells of a key group that were written at an instant or before.

        Returns:
            The time of the oldest that is left, or of those that come next.
        """


class _CellTable(_HeapTable):
    """Rows of one value each."""

    def __init__(self, descriptor: Descriptor, backend: HeapBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            for row in rows:
                self._check_cell_row(row, group)
            self._tables[slot] = {row: self._decoded(one, slot) for row, one in zip(rows, values, strict=True)}

    def get(self) -> Cell | None:
        """The value of the current key."""
        context = self.context
        try:
            cell = self._tables[context.slot].get(context.row if self._namespaces is None else self._row())
        except IndexError:
            raise self.context.no_key() from None
        return cell

    def put(self, cell: Cell) -> None:
        """Set the value of the current key."""
        context = self.context
        slot = context.slot
        try:
            if self._made[slot] < context.frozen:
                self._replace(slot)
            self._tables[slot][context.row if self._namespaces is None else self._row()] = cell
        except IndexError:
            raise self.context.no_key() from None

    def get_each(self, keys: KeyBatch) -> list[Cell | None]:
        """The values of many keys."""
        tables = self._tables
        return [tables[slot].get(row) for slot, row in zip(keys.slots, self._rows_of(keys), strict=True)]

    def put_each(self, keys: KeyBatch, cells: Sequence[Cell]) -> None:
        """Set the values of many keys; None removes one."""
        rows = self._rows_of(keys)
        for slot in set(keys.slots):
            if self._made[slot] < self.context.frozen:
                self._replace(slot)
        tables = self._tables
        for slot, row, cell in zip(keys.slots, rows, cells, strict=True):
            if cell is None:
                tables[slot].pop(row, None)
            else:
                tables[slot][row] = cell

    def pairs(self, frozen: list[dict[bytes, Any]], slot: int, now_ms: int) -> Iterator[Pairs]:
        """The rows in order and their values."""
        table = frozen[slot]
        last_ms = self.live_after(now_ms)
        rows = sorted(table) if last_ms is None else sorted(row for row, cell in table.items() if cell[0] > last_ms)
        encode = self._codec.encode
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[begin : begin + ROWS_AT_ONCE]
            yield some, [encode(table[row]) for row in some]

    def _remove_expired(self, slot: int, last_ms: int) -> int:
        table = self._tables[slot]
        expired = [row for row, cell in table.items() if cell[0] <= last_ms]
        if expired:
            if self._made[slot] < self.context.frozen:
                self._replace(slot)
                table = self._tables[slot]
            for row in expired:
                del table[row]
        # A restored subtask may be told an earlier time than that of each cell, and stamps the next ones with it.
        now_ms = self.context.now_ms
        return min(now_ms, min((cell[0] for cell in table.values()), default=now_ms))


class _Held(Generic[Content]):
    """The list or the map of one key."""

    __slots__ = ("content", "made")

    def __init__(self, content: Content, made: int) -> None:
        self.content = content
        self.made = made
        """The number of snapshots that had been taken when it was made."""


class _ContentTable(_HeapTable, Generic[Content]):
    """Rows of a list or a map each."""

    def _content(self) -> Content | None:
        """What the current key has, not to be changed."""
        held: _Held[Content] | None = self._table().get(self._row())
        return None if held is None else held.content

    def _own_content(self, make: Callable[[], Content]) -> Content:
        """What the current key has, which no snapshot has; made if there is nothing."""
        return self._owned(self._own(), self._row(), make)

    def _owned(self, table: dict[bytes, Any], row: bytes, make: Callable[[], Content]) -> Content:
        held: _Held[Content] | None = table.get(row)
        if held is None:
            held = table[row] = _Held(make(), self.context.version)
        elif held.made < self.context.frozen:
            held = table[row] = _Held(held.content.copy(), self.context.version)
        return held.content

    def _entries(self, table: dict[bytes, Any]) -> int:
        return sum(len(held.content) for held in table.values())

    def _remove_expired(self, slot: int, last_ms: int) -> int:
        oldest_ms = self.context.now_ms
        for row, held in list(self._tables[slot].items()):
            times = [cell[0] for cell in _cells(held.content)]
            if min(times) <= last_ms:
                if self._made[slot] < self.context.frozen:
                    self._replace(slot)
                if max(times) <= last_ms:
                    del self._tables[slot][row]
                    continue
                self._drop_expired(slot, row, last_ms)
            oldest_ms = min(oldest_ms, *(time for time in times if time > last_ms))
        return oldest_ms

    @abstractmethod
    def _drop_expired(self, slot: int, row: bytes, last_ms: int) -> None:
        """Remove some of the cells of one row."""


def _cells(content: list[Any] | dict[bytes, Any]) -> Sequence[Any]:
    return list(content.values()) if isinstance(content, dict) else content


class _ListTable(_ContentTable[list[Any]]):
    """Rows of elements in order."""

    def __init__(self, descriptor: Descriptor, backend: HeapBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            table = self._tables[slot]
            for row, one in zip(rows, values, strict=True):
                end = self._end_of_key(row, group)
                content = self._owned(table, row[:end], list)
                check_place(self.name, group, row[end:], len(content))
                content.append(self._decoded(one, slot))

    def elements(self) -> list[Cell]:
        """The elements of the current key."""
        return list(self._content() or ())

    def append(self, cells: list[Cell]) -> None:
        """Append elements to those of the current key."""
        self._own_content(list).extend(cells)

    def replace(self, cells: list[Cell]) -> None:
        """Replace the elements of the current key."""
        self._own()[self._row()] = _Held(cells, self.context.version)

    def pairs(self, frozen: list[dict[bytes, Any]], slot: int, now_ms: int) -> Iterator[Pairs]:
        """A row for each element, numbered from 0, and the elements."""
        table = frozen[slot]
        last_ms = self.live_after(now_ms)
        rows: list[bytes] = []
        values: list[bytes] = []
        for row in sorted(table):
            content = table[row].content
            live = content if last_ms is None else [cell for cell in content if cell[0] > last_ms]
            rows += [row + place.to_bytes(PLACE_BYTES, "big") for place in range(len(live))]
            values += map(self._codec.encode, live)
            if len(rows) >= ROWS_AT_ONCE:
                yield rows, values
                rows, values = [], []
        yield rows, values

    def _drop_expired(self, slot: int, row: bytes, last_ms: int) -> None:
        content = self._owned(self._tables[slot], row, list)
        content[:] = [cell for cell in content if cell[0] > last_ms]


class _MapTable(_ContentTable[dict[bytes, Any]]):
    """Rows of values by a second key."""

    def __init__(self, descriptor: Descriptor, backend: HeapBackend, restored: Mapping[int, Pairs]) -> None:
        super().__init__(descriptor, backend)
        for group, (rows, values) in restored.items():
            slot = group - self.context.first_group
            table = self._tables[slot]
            for row, one in zip(rows, values, strict=True):
                end = self._end_of_key(row, group)
                self._owned(table, row[:end], dict)[row[end:]] = self._decoded(one, slot)

    def get(self, key: bytes) -> Cell | None:
        """The value of a key in the map of the current one."""
        content = self._content()
        return None if content is None else content.get(key)

    def put(self, key: bytes, cell: Cell) -> None:
        """Set the value of a key in the map of the current one."""
        self._own_content(dict)[key] = cell

    def remove(self, key: bytes) -> None:
        """Remove a key from the map of the current one, and the map with the last."""
        content = self._content()
        if content is None or key not in content:
            return
        if len(content) == 1:
            self.clear()
        else:
            del self._own_content(dict)[key]

    def items(self) -> list[tuple[bytes, Cell]]:
        """The map of the current key."""
        return list((self._content() or {}).items())

    def pairs(self, frozen: list[dict[bytes, Any]], slot: int, now_ms: int) -> Iterator[Pairs]:
        """A row for each entry, and the values."""
        table = frozen[slot]
        last_ms = self.live_after(now_ms)
        rows: list[bytes] = []
        values: list[bytes] = []
        for row in sorted(table):
            content = table[row].content
            keys = sorted(key for key, cell in content.items() if last_ms is None or cell[0] > last_ms)
            rows += [row + key for key in keys]
            values += [self._codec.encode(content[key]) for key in keys]
            if len(rows) >= ROWS_AT_ONCE:
                yield rows, values
                rows, values = [], []
        yield rows, values

    def _drop_expired(self, slot: int, row: bytes, last_ms: int) -> None:
        content = self._owned(self._tables[slot], row, dict)
        for key in [key for key, cell in content.items() if cell[0] <= last_ms]:
            del content[key]


class HeapBackend(KeyedStateBackend):
    """Keyed state of one subtask as Python's own objects, as large as its memory.

    A value whose codec says that it cannot change (``ImmutableCodec``) is held and given out as it is; any other is
    copied on both ways. One thread changes the state; others may write snapshots.

    Args:
        key_codec: Of the keys.
        groups: The key groups of this subtask.
        max_parallelism: The number of key groups of all subtasks; fixed with the first checkpoint.
        restored: The files of a snapshot that may hold rows of these key groups.

    Raises:
        ConfigError: The snapshot has other keys or another number of key groups.
        SnapshotCorrupt: Two files hold the same key group.
    """

    def _cell_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _CellTable:
        return self._kept(_CellTable(descriptor, self, restored))

    def _list_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _ListTable:
        return self._kept(_ListTable(descriptor, self, restored))

    def _map_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> _MapTable:
        return self._kept(_MapTable(descriptor, self, restored))
