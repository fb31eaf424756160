"""Keyed state of one subtask: its states by name, the current key, the present, and views for snapshots.

A backend adds the tables that hold the rows.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import ValidationError
from xxhash import xxh64_intdigest

from partfile.errors import ConfigError, RecoveryRefused, SnapshotCorrupt, UnencodableState
from partfile.snapshot.key_hash import groups_of_hashes
from partfile.snapshot.keyed.codecs import TIME_BYTES, TimedCodec
from partfile.snapshot.keyed.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    check_same_keyed_state,
    codec_in_snapshot,
    info_of,
)
from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
from partfile.snapshot.keyed.keys import (
    LONG_HEAD,
    SHORT_HEADS,
    KeyCodec,
    KeyGroupRange,
    check_max_parallelism,
    end_of_piece,
    group_of_hash,
    length_head,
)
from partfile.snapshot.keyed.states import (
    AggregatingState,
    Expiry,
    KeyBatch,
    KeyContext,
    ListState,
    MapState,
    ReducingState,
    TtlAggregatingState,
    TtlListState,
    TtlMapState,
    TtlReducingState,
    TtlValueState,
    ValueState,
    closed,
)
from partfile.snapshot.state_file import MAX_STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from partfile.snapshot.keyed.descriptors import Descriptor, Earlier
    from partfile.snapshot.keyed.keyed_file import Pairs, RestoredRows
    from partfile.snapshot.keyed.keys import Key
    from partfile.snapshot.keyed.states import Cell, CellRows, ListRows, MapRows, Rows
    from partfile.snapshot.keyed.ttl import Ttl
    from partfile.snapshot.state_file import Codec, StateMetaInfo


Value = TypeVar("Value")
Added = TypeVar("Added")
Accumulator = TypeVar("Accumulator")
Result = TypeVar("Result")
VOID = b"\0"
"""The empty namespace, with its head."""
_DESCRIPTORS = (
    ValueStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)


PLACE_BYTES = 8
"""Of the place in a list, which the row of an element ends with."""
ROWS_AT_ONCE = 4096
"""So many rows of a view are encoded or read together."""


class GroupsOfRows(Mapping[int, "Pairs"]):
    """The rows of one state by key group, which are read when they are asked for, some at a time."""

    @abstractmethod
    def some(self, group: int) -> Iterator[Pairs]:
        """Rows and values of a key group, encoded; nothing where it has none."""


def pairs_of(rows: Mapping[int, Pairs], group: int) -> Iterator[Pairs]:
    """The rows of a key group, some at a time if they need not be in memory together."""
    if isinstance(rows, GroupsOfRows):
        yield from rows.some(group)
    elif group in rows:
        yield rows[group]


def check_place(state: str, group: int, found: bytes, place: int) -> None:
    """Refuse a restored element of a list that does not follow the one before it.

    Args:
        state: Its name.
        group: The key group.
        found: The place of the element, as its row has it.
        place: The next one.

    Raises:
        SnapshotCorrupt: It does not.
    """
    if found != place.to_bytes(PLACE_BYTES, "big"):
        raise SnapshotCorrupt(f"state {state!r}, key group {group}: the places of a list have a gap")


def some_at_a_time(found: Iterator[tuple[bytes, bytes]]) -> Iterator[Pairs]:
    """Rows and their values as two lists, of so many as are handled together."""
    while some := tuple(islice(found, ROWS_AT_ONCE)):
        yield [row for row, _ in some], [value for _, value in some]


class Table(ABC):
    """The rows of one state, as far as they are alike whatever holds them.

    Args:
        descriptor: Of the state.
        backend: Whose state it is.
    """

    def __init__(self, descriptor: Descriptor, backend: KeyedStateBackend) -> None:
        codec: Codec[Any] = descriptor.codec
        self.name = descriptor.name
        self.context = backend.context
        self.codec = codec.info
        self.ttl = descriptor.ttl
        self._codec: Codec[Any] | TimedCodec[Any] = codec if descriptor.ttl is None else TimedCodec(codec)
        self._keys = backend.key_codec
        self._max_parallelism = backend.max_parallelism
        self._namespaces = descriptor.namespace
        self._namespace: bytes | None = None

    def set_namespace(self, namespace: Key) -> None:
        """Make a namespace the current one."""
        if self._namespaces is None:
            raise ConfigError(
                f"state {self.name!r} has no namespaces", hint="Describe it with namespace=KeyCodec(...)."
            )
        # One that is refused must not leave the one before it: what is caught would go on in the wrong namespace.
        self._namespace = None
        data = self._namespaces.encode(namespace)
        self._namespace = length_head(len(data)) + data

    @abstractmethod
    def frozen(self) -> Any:
        """The rows as they are now, whatever changes afterwards."""

    @abstractmethod
    def pairs(self, frozen: Any, slot: int, now_ms: int) -> Iterator[Pairs]:
        """The frozen rows of a key group in order and their values, encoded, without what has expired.

        Some thousand at a time, so that a key group need not be in memory.

        Raises:
            UnencodableState: The codec has no form for a value.
        """

    def _row(self) -> bytes:
        if self._namespaces is None:
            return self.context.row
        if self._namespace is None:
            raise self._no_namespace()
        return self.context.row[:-1] + self._namespace

    def _rows_of(self, keys: KeyBatch) -> list[bytes]:
        """The row of each of many keys."""
        if self._namespaces is None:
            return keys.rows
        if self._namespace is None:
            raise self._no_namespace()
        return [row[:-1] + self._namespace for row in keys.rows]

    def _no_namespace(self) -> ConfigError:
        return ConfigError(
            f"state {self.name!r} was asked for without a namespace", hint="Call set_namespace(NAMESPACE) first."
        )

    def _end_of_key(self, row: bytes, group: int) -> int:
        """Where the part of a restored row behind its key and namespace begins.

        Raises:
            SnapshotCorrupt: It is no row of this state in this key group.
        """
        begin, end = end_of_piece(row, 0)
        _, end_of_namespace = end_of_piece(row, end)
        if self._namespaces is None and row[end:end_of_namespace] != VOID:
            raise SnapshotCorrupt(f"state {self.name!r}, key group {group}: a row has a namespace")
        if group_of_hash(self._keys.hash_of(row[begin:end]), self._max_parallelism) != group:
            raise SnapshotCorrupt(f"state {self.name!r}, key group {group}: a row is of another key group")
        return end_of_namespace

    def _check_cell_row(self, row: bytes, group: int) -> None:
        """Refuse a restored row that has more than a key and a namespace.

        Raises:
            SnapshotCorrupt: It has more, or is no row of this state in this key group.
        """
        if self._end_of_key(row, group) != len(row):
            raise SnapshotCorrupt(f"state {self.name!r}, key group {group}: a row goes on behind its key")

    def live_after(self, now_ms: int) -> int | None:
        """The last instant of which a cell has expired; None if cells do not expire."""
        return None if self.ttl is None else now_ms - self.ttl.duration_ms

    def _decoded(self, data: bytes, slot: int) -> Cell:
        try:
            return self._codec.decode(data)
        except SnapshotCorrupt as error:
            group = self.context.first_group + slot
            where = f"state {self.name!r}, key group {group}, codec {self.codec.name!r}"
            raise SnapshotCorrupt(f"{where}: {error.message}", hint=error.hint, path=error.path) from error


TableOf = TypeVar("TableOf", bound=Table)


class ForkLock:
    """A lock that is free in the child of a fork, which lacks the thread that held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _fork_locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_failure: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free, whichever thread of the parent held it."""
        self._lock = threading.Lock()


_fork_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_locks() -> None:
    for lock in list(_fork_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_locks)


class KeyedView(KeyedSnapshotResources):
    """All rows of a backend at one instant.

    Args:
        backend: Whose rows they are.
        version: The number of views that it has given, with this one.
    """

    def __init__(self, backend: KeyedStateBackend, version: int) -> None:
        self.infos = backend.infos
        self.key_codec = backend.key_codec
        self.groups = backend.groups
        self.max_parallelism = backend.max_parallelism
        self._backend = backend
        self._version = version
        self._now_ms = backend.context.now_ms
        self._tables = backend.tables()
        self._frozen: dict[str, Any] | None = {name: table.frozen() for name, table in self._tables.items()}
        self._carried = backend.carried()
        self._in_files = backend.expired_in_files()

    def rows(self, group: int) -> Iterator[tuple[int, Pairs]]:
        """The states that have rows in a key group, encoded.

        Raises:
            ConfigError: The view was released.
            UnencodableState: A codec has no form for a value.
        """
        # Another thread may release the view meanwhile.
        frozen, carried = self._frozen, self._carried
        if frozen is None:
            raise ConfigError(
                "the view of keyed state was released, and can be written no more", hint="Take another one: freeze()"
            )
        for state_id, info in enumerate(self.infos):
            if info.name in self._tables:
                found = self._encoded(info, group, frozen[info.name])
            else:
                found = pairs_of(carried[info.name], group)
            yield from ((state_id, pairs) for pairs in found if pairs[0])

    @property
    def carried_infos(self) -> tuple[StateMetaInfo, ...]:
        """The states that were restored and are not registered, but for those that the backend's files have."""
        return tuple(info for info in self.infos if info.name in self._carried and info.name not in self._in_files)

    @property
    def expired_ms(self) -> dict[str, int]:
        """Of states that expire, the last instant of which a value has expired, by name; not of ``carried_infos``."""
        found = self._in_files | {name: table.live_after(self._now_ms) for name, table in self._tables.items()}
        return {name: time_ms for name, time_ms in found.items() if time_ms is not None}

    def carried_rows(self, name: str, group: int) -> Pairs:
        """The rows of one of ``carried_infos`` in a key group, also when the view was released."""
        return self._carried[name].get(group, ([], []))

    def release(self) -> None:
        """Give the view up, so that the backend need not keep its rows any longer; may be called twice."""
        self._frozen = None
        self._carried = {name: rows for name, rows in self._carried.items() if name not in self._in_files}
        self._backend.release(self._version)

    def _encoded(self, info: StateMetaInfo, group: int, frozen: Any) -> Iterator[Pairs]:
        table = self._tables[info.name]
        try:
            yield from table.pairs(frozen, group - self.groups.first, self._now_ms)
        except UnencodableState as error:
            codec = info.codecs["element"].name
            message = f"state {info.name!r}, key group {group}, codec {codec!r}: {error.message}"
            raise UnencodableState(message, hint=error.hint) from error


class KeyedStateBackend(ABC):
    """The keyed states of one subtask, by name. Source: Flink's ``AbstractKeyedStateBackend``, as of 1.20.

    Of a state that was restored and is not registered nothing is lost: each snapshot carries it on.

    Args:
        key_codec: Of the keys.
        groups: The key groups of this subtask.
        max_parallelism: The number of key groups of all subtasks; fixed with the first checkpoint.
        restored: The files of a snapshot that may hold rows of these key groups.

    Raises:
        ConfigError: The snapshot has other keys or another number of key groups.
        SnapshotCorrupt: Two files hold the same key group.
    """

    def __init__(
        self, key_codec: KeyCodec, groups: KeyGroupRange, max_parallelism: int, restored: Sequence[RestoredRows] = ()
    ) -> None:
        if not isinstance(key_codec, KeyCodec):
            raise ConfigError(f"{key_codec!r} is no codec of keys", hint="Write for instance KeyCodec('string').")
        check_max_parallelism(max_parallelism)
        if not isinstance(groups, KeyGroupRange):
            raise ConfigError(
                f"groups={groups!r} is no range of key groups",
                hint="Find that of a subtask: group_range(subtask, parallelism, max_parallelism)",
            )
        if groups.last >= max_parallelism:
            raise ConfigError(
                f"key group {groups.last} is beyond max_parallelism={max_parallelism}",
                hint="Find the groups of a subtask with group_range(subtask, parallelism, max_parallelism).",
            )
        self.key_codec = key_codec
        self.groups = groups
        self.max_parallelism = max_parallelism
        self.context = KeyContext(groups.first)
        self._tables: dict[str, Table] = {}
        self._states: dict[str, Any] = {}
        self._infos: dict[str, StateMetaInfo] = {}
        self._ttls: dict[str, Ttl | None] = {}
        self._carried: dict[str, tuple[StateMetaInfo, Mapping[int, Pairs]]] = {}
        """Of states that were restored and are not registered, what they are, and their rows by key group."""
        self._dropped: set[str] = set()
        """Names that are free for no state of this run: said again at the next start, it would drop that one."""
        self._former: set[str] = set()
        """Former names of the registered states."""
        self._charged = self.context.charged
        self._expiries: list[Expiry] = []
        self._locate: Callable[[Key], tuple[bytes, int]] = key_codec.locate
        self._key_type: type | None
        self._encode_key: Callable[[Any], bytes]
        self._key_type, self._encode_key, self._key_seed = key_codec.of_one_column or (None, bytes, 0)
        self._slots = len(groups)
        self._open: set[int] = set()
        self._lock = ForkLock()
        self._restore(restored)

    def _restore(self, restored: Sequence[RestoredRows]) -> None:
        """Take in the rows of a snapshot; raises what the constructor does."""
        restored = files_of(restored, self.groups, self.key_codec, self.max_parallelism)
        infos = restored_infos(restored)
        carried: dict[str, dict[int, Pairs]] = {name: {} for name in infos}
        for (name, group), found in restored_rows(restored, self.groups):
            carried[name][group] = rows, values = [], []
            for some_rows, some_values in found:
                rows += some_rows
                values += some_values
        self._carried = {name: (info, carried[name]) for name, info in infos.items()}

    def set_current_key(self, key: Key) -> None:
        """Make a key the current one: what the states show and change from here on is its own.

        Raises:
            ConfigError: It is of another kind, or belongs to another subtask, or the backend is closed.
        """
        context = self.context
        context.slot = KeyContext.NO_KEY
        # As ``KeyCodec.locate`` does, and written out here: of these calls there are millions.
        if type(key) is self._key_type:
            try:
                data = self._encode_key(key)
            except (ValueError, OverflowError, ArithmeticError):
                # Raises the error that names the key.
                data = self._locate(key)[0]
            hashed = xxh64_intdigest(data, self._key_seed)
        else:
            data, hashed = self._locate(key)
        slot = (hashed * self.max_parallelism >> 64) - context.first_group
        if not 0 <= slot < self._slots:
            raise self._not_here(slot + context.first_group, f"the key {key!r}")
        size_bytes = len(data)
        context.row = (SHORT_HEADS[size_bytes] if size_bytes < LONG_HEAD else length_head(size_bytes)) + data + VOID
        context.slot = slot
        if context.knows_time:
            for expiry in self._charged:
                expiry.count()

    @property
    def current_key(self) -> Key:
        """The current key.

        Raises:
            ConfigError: There is none.
        """
        if self.context.slot == KeyContext.NO_KEY:
            raise self.context.no_key()
        begin, end = end_of_piece(self.context.row, 0)
        return self.key_codec.decode(self.context.row[begin:end])

    def key_batch(self, *columns: pa.Array[Any]) -> KeyBatch:
        """The places of many keys, found once for all states that are asked about them.

        Args:
            columns: The column of the keys, or the columns of keys that are tuples.

        Raises:
            ConfigError: A column is of another kind, a key is null or belongs to another subtask, or the backend is
                closed.
        """
        self.context.check_open()
        keys, high = self.key_codec.locate_all(columns)
        first = self.context.first_group
        groups = groups_of_hashes(high, self.max_parallelism)
        outside = next(
            (group for group in (min(groups, default=first), max(groups, default=first)) if group not in self.groups),
            None,
        )
        if outside is not None:
            key = self.key_codec.decode(keys[groups.index(outside)])
            raise self._not_here(outside, f"the key {key!r}")
        rows = [(SHORT_HEADS[len(key)] if len(key) < LONG_HEAD else length_head(len(key))) + key + VOID for key in keys]
        return KeyBatch(self.context, [group - first for group in groups], rows)

    def advance_time(self, now_ms: int) -> None:
        """Tell the present, by which values are stamped and expire. It never goes back: an earlier time is ignored.

        A snapshot does not hold it. Reads and writes of a state that expires are refused until it is told.

        Args:
            now_ms: In milliseconds since 1970; the time of a batch, so that a batch that is repeated does the same.

        Raises:
            ConfigError: It is no whole number of milliseconds since 1970, or the backend is closed.
        """
        self.context.check_open()
        if type(now_ms) is not int or not 0 <= now_ms < 1 << 62:
            raise ConfigError(
                f"now_ms is {now_ms!r}; it must be whole milliseconds since 1970", hint="Write int(now_ms)."
            )
        self.context.now_ms = max(self.context.now_ms, now_ms)
        for expiry in self._expiries:
            expiry.advance()
        self.context.knows_time = True

    def value_state(self, descriptor: ValueStateDescriptor[Value]) -> ValueState[Value]:
        """The state of this name, of one value a key.

        Raises:
            ConfigError: The name is registered, or was snapshotted, as another kind or with another codec, or the
                backend is closed.
            SnapshotVersionError: The snapshot was written with another version of a codec.
            SnapshotCorrupt: What was restored cannot be decoded.
        """
        state: ValueState[Value] = self._state(descriptor, ValueStateDescriptor)
        return state

    def list_state(self, descriptor: ListStateDescriptor[Value]) -> ListState[Value]:
        """The state of this name, of one list a key; raises as ``value_state``."""
        state: ListState[Value] = self._state(descriptor, ListStateDescriptor)
        return state

    def map_state(self, descriptor: MapStateDescriptor[Value]) -> MapState[Value]:
        """The state of this name, of one map a key; raises as ``value_state``."""
        state: MapState[Value] = self._state(descriptor, MapStateDescriptor)
        return state

    def reducing_state(self, descriptor: ReducingStateDescriptor[Value]) -> ReducingState[Value]:
        """The state of this name, of one value a key that is made of all that were added; raises as ``value_state``."""
        state: ReducingState[Value] = self._state(descriptor, ReducingStateDescriptor)
        return state

    def aggregating_state(
        self, descriptor: AggregatingStateDescriptor[Added, Accumulator, Result]
    ) -> AggregatingState[Added, Accumulator, Result]:
        """The state of this name, of one accumulator a key; raises as ``value_state``."""
        state: AggregatingState[Added, Accumulator, Result] = self._state(descriptor, AggregatingStateDescriptor)
        return state

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """What there is, by name: the registered states, and those that were restored and are not registered."""
        found = {**self._infos, **{name: info for name, (info, _) in self._carried.items()}}
        return tuple(found[name] for name in sorted(found))

    def drop_state(self, name: str) -> None:
        """Leave a state that was restored and is of no use any more out of all further snapshots.

        One that is absent counts as dropped, and no state of the run may have its name: so a program may say it at
        each start.

        Raises:
            ConfigError: The state is registered, or the backend is closed.
        """
        self.context.check_open()
        given: object = name
        if not isinstance(given, str):
            raise ConfigError(f"{name!r} is no name of a state", hint="Give its name as text: drop_state('count')")
        if name in self._former:
            raise ConfigError(
                f"{name!r} is the former name of a state, and cannot be dropped: the next start would lose it",
                hint="Leave it out, or say no longer that the state had it: formerly=None",
            )
        if name in self._states:
            raise ConfigError(
                f"state {name!r} is registered, and cannot be dropped",
                hint=f"Call drop_state({name!r}) in a program that does not ask for the state, or clear() its keys.",
            )
        self._carried.pop(name, None)
        self._dropped.add(name)

    def freeze(self) -> KeyedView:
        """Take a view of all rows, in the thread that changes them; nothing is copied or encoded yet.

        Raises:
            ConfigError: The backend is closed.
        """
        with self._lock:
            self.context.check_open()
            self.context.version += 1
            self._open.add(self.context.version)
            self.context.frozen = self.context.version
        try:
            return KeyedView(self, self.context.version)
        except BaseException:
            self.release(self.context.version)
            raise

    def release(self, version: int) -> None:
        """Give up the view with this number; any thread may."""
        with self._lock:
            self._open.discard(version)
            self.context.frozen = max(self._open, default=0)

    def close(self) -> None:
        """Refuse every further call; may be called twice. Views that were taken can be written until their release."""
        self.context.close()
        # The way of each row pays for no question: a key cannot be located, so that none becomes the current one.
        self._locate, self._key_type = _refuse_closed, None

    def __enter__(self) -> Self:
        self.context.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tables(self) -> dict[str, Table]:
        """The rows of the registered states, by name."""
        return dict(self._tables)

    def carried(self) -> dict[str, Mapping[int, Pairs]]:
        """The rows of the states that were restored and are not registered, as they are now."""
        return {name: pairs for name, (_, pairs) in self._carried.items()}

    def expired_in_files(self) -> dict[str, int | None]:
        """Of these states, those whose rows a file of the backend has: the last instant that had expired, by name."""
        return {}

    @abstractmethod
    def _cell_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> CellRows:
        """Rows of one value each."""

    @abstractmethod
    def _list_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> ListRows:
        """Rows of elements in order."""

    @abstractmethod
    def _map_rows(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> MapRows:
        """Rows of values by a second key."""

    def _kept(self, table: TableOf) -> TableOf:
        self._tables[table.name] = table
        return table

    def _described(self, descriptor: Descriptor, wanted: type[Descriptor]) -> StateMetaInfo:
        """What a snapshot records of a state; raises ConfigError if it is described as another kind, or cannot be."""
        if not isinstance(descriptor, _DESCRIPTORS):
            raise ConfigError(
                f"{descriptor!r} describes no keyed state of {type(self).__name__}",
                hint="Write for instance ValueStateDescriptor(name='count', codec=Int64Codec()).",
            )
        if not isinstance(descriptor, wanted):
            raise ConfigError(
                f"state {descriptor.name!r} is described as {descriptor.kind} state, and asked for as another kind",
                hint=f"Ask for it as that: backend.{descriptor.kind}_state(DESCRIPTOR)",
            )
        try:
            return info_of(descriptor)
        except (ValidationError, AttributeError) as error:
            raise ConfigError(
                f"the state {descriptor.name[:50]!r} has no name or codec that a snapshot can hold: a name has 1 to "
                "255 characters",
                hint="Write for instance ValueStateDescriptor(name='count', codec=Int64Codec()).",
            ) from error

    def _state(self, descriptor: Descriptor, wanted: type[Descriptor]) -> Any:
        self.context.check_open()
        info = self._described(descriptor, wanted)
        if descriptor.name in self._states:
            check_same_keyed_state(self._infos[descriptor.name], info, "registered")
            if self._ttls[descriptor.name] != descriptor.ttl:
                raise ConfigError(
                    f"state {descriptor.name!r} is registered with another time to live",
                    hint=f"Write ttl={self._ttls[descriptor.name]!r}, or take another name: name=NAME",
                )
            return self._states[descriptor.name]
        self._check_name(descriptor)
        name = self._name_in_snapshot(descriptor)
        if len(self.infos) >= MAX_STATES and name not in self._carried:
            raise ConfigError(
                f"an operator has {MAX_STATES} states, and no room for {descriptor.name!r}",
                hint="Keep several values in one state: MapStateDescriptor(name='all', ...)",
            )
        restored: Mapping[int, Pairs] = {}
        if name in self._carried:
            known, restored = self._carried[name]
            earlier = codec_in_snapshot(known, descriptor)
            if earlier is not None:
                known = known.model_copy(update={"codecs": {**known.codecs, "element": descriptor.codec.info}})
            check_same_keyed_state(known, info, "in the snapshot")
            if earlier is not None:
                restored = {group: self._converted(descriptor, earlier, group, restored[group]) for group in restored}
        state = self._opened(descriptor, restored)
        self._carried.pop(name, None)
        self._infos[descriptor.name], self._states[descriptor.name] = info, state
        self._ttls[descriptor.name] = descriptor.ttl
        if descriptor.formerly is not None:
            self._former.add(descriptor.formerly)
        return state

    def _check_name(self, descriptor: Descriptor) -> None:
        """Refuse a name that stands for another state when the program starts again; raises ConfigError."""
        name = descriptor.name
        if name in self._dropped:
            raise ConfigError(
                f"state {name!r} has been dropped: the next start would drop the new one of its name",
                hint=f"Take another name: name='{name}-2'",
            )
        if descriptor.formerly in self._dropped:
            raise ConfigError(
                f"state {descriptor.formerly!r} has been dropped, and is the former name of {name!r}: it would be lost",
                hint="Leave out the one or the other: formerly=None",
            )
        if name in self._former or descriptor.formerly in self._infos or descriptor.formerly in self._former:
            old = name if name in self._former else descriptor.formerly
            raise ConfigError(
                f"{old!r} is the former name of a state, and cannot be that of another: the next start would take one "
                "for the other",
                hint=f"Take another name for the new state: name='{old}-2'",
            )

    def _name_in_snapshot(self, descriptor: Descriptor) -> str:
        """The name that a restored state has in the snapshot: that of today, or the former one."""
        name, formerly = descriptor.name, descriptor.formerly
        if formerly is None or formerly not in self._carried:
            return name
        if name in self._carried:
            raise ConfigError(
                f"the snapshot has both the state {name!r} and {formerly!r}, its former name",
                hint="Where subtasks renamed it one after the other, restore with the parallelism of the snapshot, and "
                f"ask for the state in all of them. Else drop the one that is not wanted, with formerly=None: "
                f"drop_state({formerly!r})",
            )
        return formerly

    def _converted(self, descriptor: Descriptor, earlier: Earlier, group: int, pairs: Pairs) -> Pairs:
        """Rows of a key group whose values were in an earlier codec, with values in today's."""
        rows, values = pairs
        # The time in front of a value stays as it is.
        begin = 0 if descriptor.ttl is None else TIME_BYTES
        try:
            return rows, [earlier.value_of_today(one, begin, descriptor.codec) for one in values]
        except (SnapshotCorrupt, UnencodableState) as error:
            was = earlier.codec.info
            raise type(error)(
                f"state {descriptor.name!r}, key group {group}, codec {was.name!r} of version {was.version} to "
                f"{descriptor.codec.info.name!r}: {error.message}",
                hint=error.hint,
            ) from error

    def _opened(self, descriptor: Descriptor, restored: Mapping[int, Pairs]) -> Any:
        if isinstance(descriptor, ListStateDescriptor):
            elements = self._list_rows(descriptor, restored)
            expiry = self._expiry(descriptor, elements)
            return ListState(elements) if expiry is None else TtlListState(elements, expiry)
        if isinstance(descriptor, MapStateDescriptor):
            pairs, keys = self._map_rows(descriptor, restored), descriptor.key_codec
            expiry = self._expiry(descriptor, pairs)
            return MapState(pairs, keys) if expiry is None else TtlMapState(pairs, keys, expiry)
        cells = self._cell_rows(descriptor, restored)
        expiry = self._expiry(descriptor, cells)
        if isinstance(descriptor, ReducingStateDescriptor):
            reduce = descriptor.reduce
            return ReducingState(cells, reduce) if expiry is None else TtlReducingState(cells, reduce, expiry)
        if isinstance(descriptor, AggregatingStateDescriptor):
            if expiry is None:
                return AggregatingState(cells, descriptor)
            return TtlAggregatingState(cells, descriptor, expiry)
        return ValueState(cells) if expiry is None else TtlValueState(cells, expiry)

    def _expiry(self, descriptor: Descriptor, rows: Rows) -> Expiry | None:
        if descriptor.ttl is None:
            return None
        expiry = Expiry(rows, descriptor.ttl)
        self._expiries.append(expiry)
        if descriptor.ttl.cleanup_on == "key":
            self._charged.append(expiry)
        return expiry

    def _not_here(self, group: int, what: str) -> ConfigError:
        return ConfigError(
            f"{what} is of key group {group}; this subtask has {self.groups.first} to {self.groups.last}",
            hint="Send each row to the subtask of its key: subtask_of_group(group, parallelism, max_parallelism).",
        )


def _refuse_closed(_key: Key) -> NoReturn:
    raise closed()


def check_fits(file: RestoredRows, key_codec: KeyCodec, max_parallelism: int) -> None:
    """Refuse a file of a snapshot that has other keys or another number of key groups; raises ConfigError."""
    if file.key_kinds != key_codec.kinds:
        raise ConfigError(
            f"{file.path} has keys of the kind {', '.join(file.key_kinds)}, not {', '.join(key_codec.kinds)}",
            hint=f"It is fixed with the first checkpoint: KeyCodec({', '.join(map(repr, file.key_kinds))})",
        )
    if file.max_parallelism != max_parallelism:
        raise ConfigError(
            f"{file.path} has {file.max_parallelism} key groups, and max_parallelism is {max_parallelism}",
            hint=f"It is fixed with the first checkpoint: max_parallelism={file.max_parallelism}",
        )


def files_of(
    restored: Sequence[RestoredRows], groups: KeyGroupRange, key_codec: KeyCodec, max_parallelism: int
) -> list[RestoredRows]:
    """The files of a snapshot that hold some key groups.

    Raises:
        ConfigError: A file has other keys or another number of key groups, or none has one of these groups.
    """
    # Users without a type checker give anything.
    if not isinstance(restored, list | tuple):
        raise ConfigError(
            f"restored={restored!r} is no list of files of keyed state",
            hint="Write restored=[one.file for one in files], of what read_keyed_files() gives.",
        )
    for file in restored:
        if not hasattr(file, "groups"):
            raise ConfigError(
                f"restored has {file!r}, which is no file of keyed state",
                hint="Of what read_keyed_files() gives, hand over the file: restored=[one.file for one in files]",
            )
        if getattr(file, "is_closed", False):
            raise ConfigError(
                f"the files of {file.path} were removed at the end of the block that read them",
                hint="Make the backend within it: with read_keyed_files(...) as files: HeapBackend(...)",
            )
        check_fits(file, key_codec, max_parallelism)
    if len(set(map(id, restored))) < len(restored):
        raise ConfigError("a file is in restored twice", hint="Give each once: restored=[one.file for one in files]")
    found = [one for one in restored if one.groups.first <= groups.last and groups.first <= one.groups.last]
    held = {group for one in found for group in one.groups}
    missing = [group for group in groups if group not in held]
    if restored and missing:
        raise ConfigError(
            f"none of the {len(restored)} files of the snapshot has key group {missing[0]}, so its state would be lost",
            hint="Give it the files of all subtasks that the snapshot has: restored=[...]",
        )
    return found


def restored_infos(restored: Sequence[RestoredRows]) -> dict[str, StateMetaInfo]:
    """The states of some files by name.

    Raises:
        RecoveryRefused: Two files have one name for two states, or one state in two codecs.
    """
    found: dict[str, StateMetaInfo] = {}
    for file in restored:
        for info in file.infos:
            if found.setdefault(info.name, info) != info:
                raise RecoveryRefused(
                    f"state {info.name!r} of {file.path} is not that of another file of the snapshot: subtasks had it "
                    "in two kinds or codecs",
                    hint="Restore with the parallelism of the snapshot, ask for the state in all subtasks, and take a "
                    "checkpoint; then change the parallelism. Ask for each state when the subtask starts: "
                    "backend.value_state(DESCRIPTOR)",
                )
    return found


def restored_rows(
    restored: Sequence[RestoredRows], groups: KeyGroupRange
) -> Iterator[tuple[tuple[str, int], Iterator[Pairs]]]:
    """The rows of a snapshot in some key groups, in their order: state and group, and the rows, some at a time.

    Raises:
        SnapshotCorrupt: Two files hold the same key group, or a row cannot be read.
    """
    owner: dict[int, RestoredRows] = {}
    for file in sorted(restored, key=lambda file: file.groups.first):
        for group in groups:
            if group not in file.groups:
                continue
            if owner.setdefault(group, file) is not file:
                both = f"{owner[group].path} and {file.path}"
                raise SnapshotCorrupt(f"{both} both hold key group {group}", path=file.path)
            for name, found in groupby(file.rows(group), key=itemgetter(0)):
                yield (name, group), map(itemgetter(1), found)
