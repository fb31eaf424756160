"""Keyed state against a plain dictionary: every kind, namespaces, expiry, batches, snapshots, restores elsewhere."""

from __future__ import annotations

import struct
from copy import deepcopy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from partfile.errors import ConfigError
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, group_of_hash, length_head, subtask_of_group
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import SharedFiles, decode_incremental, is_incremental
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.stores.memory import MemoryMetadataStore
from support.state.keyed import (
    BACKENDS,
    MAX_PARALLELISM,
    TEXT_KEYS,
    backend_of,
    bytes_of,
    encode_keyed_state,
    largest_of,
    list_of,
    map_of,
    mean_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources, RestoredRows
    from partfile.snapshot.keyed.states import KeyBatch

MINUTE_MS = 60_000
# The last gives out what has expired as long as it is there: only reads and restores remove it, as the model does.
TTLS = (
    None,
    Ttl(60, cleanup_entries=ENTRIES_AT_ONCE),
    Ttl(60, refresh="read", cleanup_entries=ENTRIES_AT_ONCE, cleanup_on="key"),
    Ttl(60, returns_expired=True, cleanup_entries=0),
)
HOURS = KeyCodec("integer")
ALL_KEYS = [f"key {number}" for number in range(6)]
KEYS = st.sampled_from(ALL_KEYS)
NUMBERS = st.integers(-3, 3)
WORDS = st.sampled_from("abc")
NAMESPACES = st.integers(0, 1)
MAP_KEYS = st.integers(0, 3)
MOST_AT_ONCE = 8
"""Of a batch: more than there are keys, so that some come twice."""
NAMES = ("value", "list", "map", "largest", "mean")
KINDS_TAKEN = ("checkpoint", "checkpoint", "savepoint")
ENDS = ("complete", "complete", "complete", "aborted", "untold")
RESTORES: dict[str, Any] = {
    "parallelism": st.integers(1, 8),
    "which": st.integers(0, 1),
    "later_ms": st.sampled_from([None, -MINUTE_MS // 2, -1, 0, MINUTE_MS]),
    "is_told_first": st.booleans(),
    "goes_on_ms": st.sampled_from([None, MINUTE_MS // 2, MINUTE_MS]),
}
"""How a run goes on: with how many subtasks, on which backend, told which time and when, and what comes at once."""
GOES_ON: dict[str, Any] = {
    "steps": st.lists(
        st.tuples(KEYS, st.sampled_from(KINDS_TAKEN), st.sampled_from(ENDS), st.booleans()), min_size=1, max_size=6
    ),
    "number": NUMBERS,
    "retained": st.integers(1, 3),
    "passed_ms": st.sampled_from([0, MINUTE_MS // 2, MINUTE_MS]),
}
"""Checkpoints that are taken one after the other, how many are retained, and the time that passes before them."""
Place = tuple[str, Any]


class Model:
    """What a keyed state is, in the plainest words: a dictionary of cells, each a time and a value."""

    def __init__(self, ttl: Ttl | None) -> None:
        self.ttl = ttl
        self.now_ms = 0
        self.cells: dict[str, dict[Place, Any]] = {name: {} for name in NAMES}

    def is_over(self, cell: Any) -> bool:
        """Whether a cell has expired."""
        return self.ttl is not None and cell[0] + self.ttl.duration_ms <= self.now_ms

    def read(self, held: dict[Any, Any], key: Any) -> Any:
        """What a read of one cell shows, and what it does to it."""
        cell = held.get(key)
        if cell is None:
            return None
        if self.is_over(cell):
            del held[key]
            return cell[1] if self.ttl is not None and self.ttl.returns_expired else None
        if self.ttl is not None and self.ttl.refresh == "read":
            held[key] = (self.now_ms, cell[1])
        return cell[1]

    def update(self, place: Place, number: int | None) -> None:
        """Set or remove a value."""
        self.cells["value"].pop(place, None)
        if number is not None:
            self.cells["value"][place] = (self.now_ms, number)

    def append(self, place: Place, words: Sequence[str]) -> None:
        """Append to a list."""
        if words:
            self.cells["list"].setdefault(place, []).extend((self.now_ms, word) for word in words)

    def put(self, place: Place, map_key: int, number: int) -> None:
        """Set an entry of a map."""
        self.cells["map"].setdefault(place, {})[map_key] = (self.now_ms, number)

    def add_to_largest(self, place: Place, number: int) -> None:
        """Add to what is reduced."""
        held = self.live("largest", place)
        self.cells["largest"][place] = (self.now_ms, number if held is None else max(held, number))

    def add_to_mean(self, place: Place, number: int) -> None:
        """Add to what is aggregated."""
        total, count = self.live("mean", place) or (0, 0)
        self.cells["mean"][place] = (self.now_ms, (total + number, count + 1))

    def read_mean(self, place: Place) -> float | None:
        """What a read of what is aggregated shows."""
        held = self.read(self.cells["mean"], place)
        return None if held is None else held[0] / held[1]

    def read_entry(self, place: Place, map_key: int) -> Any:
        """What a read of one entry of a map shows."""
        held = self.cells["map"].get(place, {})
        shown = self.read(held, map_key)
        if not held:
            self.cells["map"].pop(place, None)
        return shown

    def live(self, name: str, place: Place) -> Any:
        """The value that another one is added to."""
        cell = self.cells[name].get(place)
        return None if cell is None or self.is_over(cell) else cell[1]

    def read_list(self, place: Place) -> tuple[str, ...]:
        """What a read of a list shows, and what it does to it."""
        cells = self.cells["list"].pop(place, [])
        live = [cell for cell in cells if not self.is_over(cell)]
        shown = cells if self.ttl is not None and self.ttl.returns_expired else live
        if self.ttl is not None and self.ttl.refresh == "read":
            live = [(self.now_ms, value) for _, value in live]
        if live:
            self.cells["list"][place] = live
        return tuple(value for _, value in shown)

    def read_map(self, place: Place) -> dict[int, Any]:
        """The same of a whole map."""
        held = self.cells["map"].get(place, {})
        shown = {key: self.read(held, key) for key in list(held)}
        if not held:
            self.cells["map"].pop(place, None)
        return {key: value for key, value in shown.items() if value is not None}

    def forget_expired(self) -> None:
        """What a snapshot leaves out."""
        for name, places in self.cells.items():
            for place, held in list(places.items()):
                if name == "list":
                    places[place] = [cell for cell in held if not self.is_over(cell)]
                elif name == "map":
                    places[place] = {key: cell for key, cell in held.items() if not self.is_over(cell)}
                elif self.is_over(held):
                    del places[place]
                if name in {"list", "map"} and not places[place]:
                    del places[place]

    def rows(self) -> dict[str, dict[bytes, bytes]]:
        """The rows of the canonical file, by state."""
        found: dict[str, dict[bytes, bytes]] = {name: {} for name in NAMES}
        for name, places in self.cells.items():
            for (key, namespace), held in places.items():
                data = key.encode()
                space = b"" if namespace is None else struct.pack("<q", namespace)
                row = length_head(len(data)) + data + length_head(len(space)) + space
                if name == "list":
                    live = [cell for cell in held if not self.is_over(cell)]
                    found[name] |= {
                        row + struct.pack(">Q", at): self.encoded(name, cell) for at, cell in enumerate(live)
                    }
                elif name == "map":
                    pairs = [(at, cell) for at, cell in held.items() if not self.is_over(cell)]
                    found[name] |= {row + struct.pack("<q", at): self.encoded(name, cell) for at, cell in pairs}
                elif not self.is_over(held):
                    found[name][row] = self.encoded(name, held)
        return found

    def encoded(self, name: str, cell: Any) -> bytes:
        """A cell as its codec writes it: numbers of eight bytes, text, small numbers of msgpack."""
        time_ms, value = cell
        if name == "list":
            data = bytes(value, "utf-8")
        elif name == "map":
            data = bytes((value & 0xFF,))
        elif name == "mean":
            data = b"\x92" + bytes((value[0] & 0xFF, value[1]))
        else:
            data = struct.pack(">q", value)
        return data if self.ttl is None else struct.pack(">q", time_ms) + data


class KeyedStateMachine(RuleBasedStateMachine):
    """Does the same to backends and to the model, and compares all that they show."""

    makes: ClassVar[list[type[KeyedStateBackend]]] = [HeapBackend]

    @initialize(
        ttl=st.sampled_from(TTLS),
        is_namespaced=st.booleans(),
        parallelism=st.integers(1, 8),
        begins_ms=st.none() | st.just(2 * MINUTE_MS),
    )
    def begin(self, ttl: Ttl | None, is_namespaced: bool, parallelism: int, begins_ms: int | None) -> None:
        """Without any state, or with something of each key."""
        self.model = Model(ttl)
        self.namespace = HOURS if is_namespaced else None
        self.open: list[tuple[KeyedSnapshotResources, bytes]] = []
        self.backends = [backend_of(self.makes[-1], subtask, parallelism) for subtask in range(parallelism)]
        self.states: list[dict[str, Any]] = [self.registered(backend) for backend in self.backends]
        if begins_ms is not None:
            self.pass_time(begins_ms)
            for key in ALL_KEYS:
                self.update_value(key, 0, 1)
                self.change_list(key, 0, ["a"], replaces=False)
                self.change_map(key, 0, 0, 1)
                self.add(key, 0, 1)

    def registered(self, backend: KeyedStateBackend) -> dict[str, Any]:
        """The states of one subtask, by name."""
        options: dict[str, Any] = {"ttl": self.model.ttl, "namespace": self.namespace}
        return {
            "value": backend.value_state(value_of(**options)),
            "list": backend.list_state(list_of(**options)),
            "map": backend.map_state(map_of(**options)),
            "largest": backend.reducing_state(largest_of(**options)),
            "mean": backend.aggregating_state(mean_of(**options)),
        }

    def at(self, name: str, key: str, namespace: int) -> tuple[Any, Place]:
        """The state of a key in its subtask, and its place in the model."""
        subtask = self.subtask_of(key)
        self.backends[subtask].set_current_key(key)
        state = self.states[subtask][name]
        if self.namespace is not None:
            state.set_namespace(namespace)
        return state, self.place_of(key, namespace)

    def subtask_of(self, key: str) -> int:
        """The subtask that has a key."""
        group = group_of_hash(TEXT_KEYS.locate(key)[1], MAX_PARALLELISM)
        return subtask_of_group(group, len(self.backends), MAX_PARALLELISM)

    def place_of(self, key: str, namespace: int) -> Place:
        """The place of a key in the model."""
        return key, None if self.namespace is None else namespace

    def batches(self, name: str, keys: list[str], namespace: int) -> Iterator[tuple[Any, KeyBatch, list[int]]]:
        """Of each subtask that has some of the keys: the state, its batch, and which of the keys are in it.

        None is the current key after what is done with the batch.
        """
        for subtask, backend in enumerate(self.backends):
            taken = [at for at, key in enumerate(keys) if self.subtask_of(key) == subtask]
            if not taken:
                continue
            state = self.states[subtask][name]
            if self.namespace is not None:
                state.set_namespace(namespace)
            yield state, backend.key_batch(pa.array([keys[at] for at in taken])), taken
            with pytest.raises(ConfigError, match="without a key"):
                _ = backend.current_key

    @rule(key=KEYS, namespace=NAMESPACES, number=NUMBERS | st.none())
    def update_value(self, key: str, namespace: int, number: int | None) -> None:
        """Set or remove a value."""
        state, place = self.at("value", key, namespace)
        state.update(number)
        self.model.update(place, number)

    @rule(key=KEYS, namespace=NAMESPACES, words=st.lists(WORDS, max_size=3), replaces=st.booleans())
    def change_list(self, key: str, namespace: int, words: list[str], replaces: bool) -> None:
        """Append elements or replace all."""
        state, place = self.at("list", key, namespace)
        if replaces:
            state.update(words)
            self.model.cells["list"].pop(place, None)
        else:
            state.add_all(words)
        self.model.append(place, words)

    @rule(key=KEYS, namespace=NAMESPACES, map_key=MAP_KEYS, number=NUMBERS | st.none())
    def change_map(self, key: str, namespace: int, map_key: int, number: int | None) -> None:
        """Put or remove an entry."""
        state, place = self.at("map", key, namespace)
        if number is not None:
            state.put(map_key, number)
            self.model.put(place, map_key, number)
            return
        state.remove(map_key)
        held = self.model.cells["map"].get(place, {})
        held.pop(map_key, None)
        if not held:
            self.model.cells["map"].pop(place, None)

    @rule(key=KEYS, namespace=NAMESPACES, number=NUMBERS)
    def add(self, key: str, namespace: int, number: int) -> None:
        """Add to what is reduced and to what is aggregated."""
        state, place = self.at("largest", key, namespace)
        state.add(number)
        self.model.add_to_largest(place, number)
        state, place = self.at("mean", key, namespace)
        state.add(number)
        self.model.add_to_mean(place, number)

    @rule(given=st.lists(st.tuples(KEYS, NUMBERS | st.none()), max_size=MOST_AT_ONCE), namespace=NAMESPACES)
    def update_values(self, given: list[tuple[str, int | None]], namespace: int) -> None:
        """Set or remove the values of many keys; of one that comes twice the last counts."""
        for state, keys, taken in self.batches("value", [key for key, _ in given], namespace):
            state.update_batch(keys, [given[at][1] for at in taken])
        for key, number in given:
            self.model.update(self.place_of(key, namespace), number)

    @rule(given=st.lists(st.tuples(KEYS, WORDS), max_size=MOST_AT_ONCE), namespace=NAMESPACES)
    def append_to_lists(self, given: list[tuple[str, str]], namespace: int) -> None:
        """Append one element to the lists of many keys."""
        for state, keys, taken in self.batches("list", [key for key, _ in given], namespace):
            state.add_batch(keys, [given[at][1] for at in taken])
        for key, word in given:
            self.model.append(self.place_of(key, namespace), [word])

    @rule(given=st.lists(st.tuples(KEYS, MAP_KEYS, NUMBERS), max_size=MOST_AT_ONCE), namespace=NAMESPACES)
    def put_into_maps(self, given: list[tuple[str, int, int]], namespace: int) -> None:
        """Set one entry in the maps of many keys."""
        for state, keys, taken in self.batches("map", [key for key, _, _ in given], namespace):
            state.put_batch(keys, [given[at][1] for at in taken], [given[at][2] for at in taken])
        for key, map_key, number in given:
            self.model.put(self.place_of(key, namespace), map_key, number)

    @rule(given=st.lists(st.tuples(KEYS, NUMBERS), max_size=MOST_AT_ONCE), namespace=NAMESPACES)
    def add_to_many(self, given: list[tuple[str, int]], namespace: int) -> None:
        """Add one number to what is reduced and to what is aggregated of many keys."""
        for name in ("largest", "mean"):
            for state, keys, taken in self.batches(name, [key for key, _ in given], namespace):
                state.add_batch(keys, [given[at][1] for at in taken])
        for key, number in given:
            self.model.add_to_largest(self.place_of(key, namespace), number)
            self.model.add_to_mean(self.place_of(key, namespace), number)

    @rule(number=NUMBERS)
    def add_to_all(self, number: int) -> None:
        """What is there already gets one more, as from a stream of the same keys."""
        for key, namespace in list(self.model.cells["list"]):
            self.change_list(key, namespace, ["d"], replaces=False)
        for key, namespace in list(self.model.cells["map"]):
            self.change_map(key, namespace, 1, number)
        for key, namespace in list(self.model.cells["value"]):
            self.update_value(key, namespace, number)
        for key, namespace in list(self.model.cells["largest"]):
            self.add(key, namespace, number)

    @rule(name=st.sampled_from(NAMES), key=KEYS, namespace=NAMESPACES)
    def clear(self, name: str, key: str, namespace: int) -> None:
        """Remove what a key has."""
        state, place = self.at(name, key, namespace)
        state.clear()
        self.model.cells[name].pop(place, None)

    @rule(keys=st.lists(KEYS, max_size=MOST_AT_ONCE), namespace=NAMESPACES, map_key=MAP_KEYS)
    def read_many(self, keys: list[str], namespace: int, map_key: int) -> None:
        """What many keys have is what the model says, in their order; one that comes twice is read twice."""
        cells = self.model.cells
        for state, batch, taken in self.batches("value", keys, namespace):
            places = [self.place_of(keys[at], namespace) for at in taken]
            assert state.value_batch(batch) == [self.model.read(cells["value"], place) for place in places]
        for state, batch, taken in self.batches("list", keys, namespace):
            places = [self.place_of(keys[at], namespace) for at in taken]
            assert state.get_batch(batch) == [self.model.read_list(place) for place in places]
        for state, batch, taken in self.batches("map", keys, namespace):
            places = [self.place_of(keys[at], namespace) for at in taken]
            shown = state.get_batch(batch, [map_key] * len(batch))
            assert shown == [self.model.read_entry(place, map_key) for place in places]
        for state, batch, taken in self.batches("largest", keys, namespace):
            places = [self.place_of(keys[at], namespace) for at in taken]
            assert state.get_batch(batch) == [self.model.read(cells["largest"], place) for place in places]
        for state, batch, taken in self.batches("mean", keys, namespace):
            places = [self.place_of(keys[at], namespace) for at in taken]
            assert state.get_batch(batch) == [self.model.read_mean(place) for place in places]

    @rule(key=KEYS, namespace=NAMESPACES, map_key=MAP_KEYS)
    def read(self, key: str, namespace: int, map_key: int) -> None:
        """Everything of a key is what the model says."""
        state, place = self.at("value", key, namespace)
        assert state.value() == self.model.read(self.model.cells["value"], place)
        state, _ = self.at("list", key, namespace)
        assert state.get() == self.model.read_list(place)
        state, _ = self.at("map", key, namespace)
        held = self.model.cells["map"].get(place, {})
        assert state.is_empty() == all(map(self.model.is_over, held.values()))
        assert state.get(map_key) == self.model.read_entry(place, map_key)
        assert dict(state.entries()) == self.model.read_map(place)
        state, _ = self.at("largest", key, namespace)
        assert state.get() == self.model.read(self.model.cells["largest"], place)
        state, _ = self.at("mean", key, namespace)
        assert state.get() == self.model.read_mean(place)

    @rule(passed_ms=st.sampled_from([1, MINUTE_MS // 2, MINUTE_MS - 1, MINUTE_MS]))
    def pass_time(self, passed_ms: int) -> None:
        """For all subtasks."""
        self.model.now_ms += passed_ms
        self.tell_time()

    def tell_time(self) -> None:
        """Tell each subtask what the model's time is."""
        for backend in self.backends:
            backend.advance_time(self.model.now_ms)

    @rule()
    def freeze(self) -> None:
        """Take a view of each subtask, to be written later."""
        for backend in self.backends:
            expected = bytes_of(backend)
            self.open.append((backend.freeze(), expected))

    @rule(which=st.integers(0, 100))
    def write(self, which: int) -> None:
        """Write one of the open views: it shows the instant at which it was taken."""
        if self.open:
            taken, expected = self.open.pop(which % len(self.open))
            assert encode_keyed_state(taken) == expected
            taken.release()

    @rule(is_carried=st.booleans(), **RESTORES)
    def restore(self, *, is_carried: bool, which: int, **how: Any) -> None:
        """Go on from a snapshot with another number of subtasks, or on another backend."""
        make = self.makes[which % len(self.makes)]
        files = [KeyedFile(bytes_of(backend), f"subtask {at}") for at, backend in enumerate(self.backends)]
        if is_carried:
            # A run that registers none of the states, and passes them on.
            carried = [backend_of(make, subtask, 3, files) for subtask in range(3)]
            files = [KeyedFile(bytes_of(backend), f"carried {at}") for at, backend in enumerate(carried)]
            for backend in carried:
                backend.close()
        self.begin_again(make, files, **how)

    def begin_again(
        self,
        make: type[KeyedStateBackend],
        files: Sequence[RestoredRows],
        *,
        parallelism: int,
        later_ms: int | None,
        is_told_first: bool,
        goes_on_ms: int | None,
    ) -> None:
        """Restore files of what the model holds, and go on.

        The run is told a later time, an earlier one, or 1970, before its states are registered or afterwards. The time
        is not in the snapshot: by a clock that was set back, values are of the future. The input may go on at once.
        """
        self.model.forget_expired()
        self.model.now_ms = 0 if later_ms is None else max(0, self.model.now_ms + later_ms)
        self.teardown()
        self.backends = [
            backend_of(make, subtask, parallelism, files, is_told_time=False) for subtask in range(parallelism)
        ]
        if is_told_first:
            self.tell_time()
        self.states = [self.registered(backend) for backend in self.backends]
        self.tell_time()
        if goes_on_ms is not None:
            self.add_to_all(1)
            self.pass_time(goes_on_ms)

    def teardown(self) -> None:
        """Release every view, and close every backend."""
        for taken, _ in getattr(self, "open", []):
            taken.release()
        for backend in getattr(self, "backends", []):
            backend.close()
        self.open = []

    @invariant()
    def files_hold_what_the_model_holds(self) -> None:
        """Row for row, at each step."""
        if not hasattr(self, "backends"):
            return
        found: dict[str, dict[bytes, bytes]] = {name: {} for name in NAMES}
        for backend in self.backends:
            file = KeyedFile(bytes_of(backend), "file")
            for group in file.groups:
                for name, (rows, values) in file.rows(group):
                    assert not set(rows) & set(found[name])
                    found[name] |= dict(zip(rows, values, strict=True))
        assert found == self.model.rows()


class RocksDBStateMachine(KeyedStateMachine):
    """The same on RocksDB, and from it to the heap and back."""

    makes: ClassVar = BACKENDS


class Retained(NamedTuple):
    """A checkpoint that can be restored."""

    handles: list[StateHandle]
    """Of its subtasks."""
    cells: dict[str, dict[Place, Any]]
    """What the model held."""
    now_ms: int
    """The model's time."""


class CheckpointsStateMachine(RocksDBStateMachine):
    """The same with checkpoints of one job, incremental ones on RocksDB and full ones on the heap.

    Older ones are deleted, and so is what is shared with them and not with those that stay.
    """

    # No rules: those above have them, and here there is more of the others.
    freeze: ClassVar[Any] = None
    write: ClassVar[Any] = None
    restore: ClassVar[Any] = None
    read: ClassVar[Any] = None

    def __init__(self) -> None:
        super().__init__()
        self.storage = CheckpointStorage(MemoryMetadataStore(), "job", FileStreamSettings(inline_threshold_bytes=0))
        self.registry = SharedFiles(self.storage)
        self.retained: dict[int, Retained] = {}
        self.newest_id = 0
        self.newest_named: set[str] = set()
        """By the newest incremental checkpoint: the next one may name them again, also when that one is deleted."""
        self.lost: set[str] = set()
        """Files of checkpoints that no coordinator knows: no later coordinator has to delete them."""
        self.strategies: list[Any] = []
        self.strategies_of: list[KeyedStateBackend] = []
        """What the strategies are of; another list after each restore."""

    def renew_strategies(self, claims: CheckpointStorage | None = None) -> None:
        """Those of the subtasks as they are now, unless they have theirs already."""
        if self.strategies_of is self.backends:
            return
        self.strategies_of = self.backends
        self.strategies = [
            IncrementalStrategy(backend, claims=claims)
            if isinstance(backend, RocksDBBackend)
            else KeyedStateStrategy(backend)
            for backend in self.backends
        ]

    def told(self, name: str) -> None:
        """Tell each strategy that is told such things what became of the newest checkpoint."""
        for strategy in self.strategies:
            if isinstance(strategy, IncrementalStrategy):
                getattr(strategy, name)(self.newest_id)

    def named(self) -> set[str]:
        """The files in ``shared/`` that retained checkpoints name."""
        return {path for one in self.retained.values() for path in self.shared(one.handles)}

    def found(self) -> set[str]:
        """Those that are there."""
        return {f"shared/{name}" for name in self.storage.store.list_names("job/shared")}

    def shared(self, handles: list[StateHandle]) -> set[str]:
        """The files in ``shared/`` that handles name."""
        found = [data for data in map(self.storage.read_bytes, handles) if is_incremental(data)]
        return {file.path for data in found for file in decode_incremental(data, "a document").shared_files()}

    @rule(**GOES_ON)
    def go_on(self, steps: list[tuple[str, Any, str, bool]], number: int, retained: int, passed_ms: int) -> None:
        """Take some checkpoints, of which so many are retained, and change something before each.

        The engine may have replaced all its files by then.
        """
        self.pass_time(passed_ms)
        for key, kind, end, is_merged in steps:
            self.update_value(key, 0, number)
            self.change_list(key, 0, ["d"], replaces=False)
            if is_merged:
                self.merge()
            self.checkpoint(kind, end)
            self.subsume(retained)

    def merge(self) -> None:
        """Have the engine merge its files."""
        for backend in self.backends:
            if isinstance(backend, RocksDBBackend):
                for name in NAMES:
                    backend.database.column(name).flush()
                    engine = backend.database._opened.engine
                    assert engine is not None
                    engine.get_column_family(f"state-{name}").compact_range(None, None)

    def checkpoint(self, kind: Any, end: str) -> None:
        """Take one, which is complete, or aborted, or complete without a word to its subtasks."""
        self.renew_strategies()
        self.newest_id += 1
        streams = self.storage.stream_factory(self.newest_id)
        handles = [
            StrategyRunner(strategy).snapshot(self.newest_id, 0, streams, SnapshotOptions(kind=kind)).result().primary
            for strategy in self.strategies
        ]
        named = [handle for handle in handles if handle is not None]
        assert len(named) == len(self.backends)
        if end == "aborted":
            self.lost |= self.shared(named) - self.named()
            self.storage.delete_checkpoint(self.newest_id)
            self.told("abort")
            return
        self.complete(named, self.model.now_ms)
        if end == "complete":
            self.told("confirm")

    def complete(self, handles: list[StateHandle], now_ms: int) -> None:
        """Retain a checkpoint of what the model holds."""
        self.registry.register(self.newest_id, handles)
        self.retained[self.newest_id] = Retained(handles, deepcopy(self.model.cells), now_ms)
        shared = self.shared(handles)
        self.newest_named = shared or self.newest_named
        self.lost -= shared

    def subsume(self, left: int) -> None:
        """Delete the oldest checkpoints; what is shared by others stays, and nothing else."""
        if not self.retained:
            return
        for checkpoint_id in sorted(self.retained)[:-left]:
            del self.retained[checkpoint_id]
            self.storage.delete_checkpoint(checkpoint_id)
        self.registry.release(min(self.retained))
        assert self.named() <= self.found() <= self.named() | self.newest_named | self.lost

    @rule(
        goes_on=st.fixed_dictionaries(GOES_ON),
        back=st.integers(0, 2),
        is_claimed=st.booleans(),
        is_carried=st.booleans(),
        is_restarted=st.booleans(),
        # From the heap no file can be claimed.
        **(RESTORES | {"which": st.sampled_from([0, 1, 1, 1])}),
    )
    def go_on_and_restore(self, *, goes_on: dict[str, Any], **how: Any) -> None:
        """Take some checkpoints, and go on from one of them: a history of chance does both too rarely."""
        self.go_on(**goes_on)
        self.go_on_from_checkpoint(**how)

    def go_on_from_checkpoint(
        self, *, back: int, is_claimed: bool, is_carried: bool, is_restarted: bool, which: int, **how: Any
    ) -> None:
        """Go on from a retained checkpoint, of which the later ones are given up.

        Its coordinator may be another one, which knows no more than the checkpoints that are retained.
        """
        if not self.retained:
            return
        restored_id = sorted(self.retained)[-1 - back % len(self.retained)]
        for checkpoint_id in [one for one in self.retained if one > restored_id]:
            self.lost |= self.shared(self.retained.pop(checkpoint_id).handles) - self.named()
            self.storage.delete_checkpoint(checkpoint_id)
        if is_restarted:
            self.restart_coordinator()
        claims = self.storage if is_claimed else None
        make = self.makes[which % len(self.makes)]
        self.restore_checkpoint(restored_id, make, claims, **how)
        if is_carried:
            self.carry_on(restored_id, make, claims)
            self.restore_checkpoint(self.newest_id, make, claims, **how)

    def restart_coordinator(self) -> None:
        """It reads what is retained. Files that it does not find there it never deletes."""
        self.registry = SharedFiles(self.storage)
        self.lost |= self.found() - self.named()
        self.newest_named = set()
        for checkpoint_id, one in sorted(self.retained.items()):
            self.registry.register(checkpoint_id, one.handles)
            self.newest_named = self.shared(one.handles) or self.newest_named

    def restore_checkpoint(
        self, checkpoint_id: int, make: type[KeyedStateBackend], claims: CheckpointStorage | None, **how: Any
    ) -> None:
        """Go on from a checkpoint."""
        held = self.retained[checkpoint_id]
        self.model.cells, self.model.now_ms = deepcopy(held.cells), held.now_ms
        with read_keyed_files(self.storage, held.handles) as found:
            self.begin_again(make, [one.file for one in found], **how)
        self.renew_strategies(claims)

    def carry_on(self, checkpoint_id: int, make: type[KeyedStateBackend], claims: CheckpointStorage | None) -> None:
        """A run that registers none of the states, and passes them on by a checkpoint of its own."""
        held = self.retained[checkpoint_id]
        self.model.cells, self.model.now_ms = deepcopy(held.cells), held.now_ms
        self.model.forget_expired()
        self.teardown()
        parallelism = len(self.backends)
        with read_keyed_files(self.storage, held.handles) as found:
            files = [one.file for one in found]
            self.backends = [backend_of(make, subtask, parallelism, files) for subtask in range(parallelism)]
        self.renew_strategies(claims)
        self.newest_id += 1
        streams = self.storage.stream_factory(self.newest_id)
        running = [
            StrategyRunner(strategy).snapshot(self.newest_id, 0, streams, SnapshotOptions())
            for strategy in self.strategies
        ]
        handles = [handle for one in running if (handle := one.result().primary) is not None]
        assert len(handles) == parallelism
        self.complete(handles, held.now_ms)


TestKeyedState = pytest.mark.item("KS-01", "KS-08", "SP-23", "SS-01", "SS-12")(KeyedStateMachine.TestCase)
TestKeyedStateInRocksDB = pytest.mark.item("SB-11", "SP-12")(RocksDBStateMachine.TestCase)
TestKeyedStateInCheckpoints = pytest.mark.item("SB-11", "RI-03", "RI-04", "RI-11")(CheckpointsStateMachine.TestCase)
# Opening a database and its column families takes so long that fewer histories have to do.
TestKeyedStateInRocksDB.settings = settings(max_examples=max(10, settings().max_examples // 5), stateful_step_count=30)
TestKeyedStateInCheckpoints.settings = settings(
    max_examples=max(15, settings().max_examples // 3), stateful_step_count=30
)
