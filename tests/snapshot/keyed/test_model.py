"""Keyed state against a plain dictionary: every kind, namespaces, expiry, snapshots, restores elsewhere."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, group_of_hash, length_head, subtask_of_group
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.ttl import Ttl
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
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources

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
NAMES = ("value", "list", "map", "largest", "mean")
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
    most_subtasks = 8

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
        parallelism = min(parallelism, self.most_subtasks)
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
        group = group_of_hash(TEXT_KEYS.locate(key)[1], MAX_PARALLELISM)
        subtask = subtask_of_group(group, len(self.backends), MAX_PARALLELISM)
        self.backends[subtask].set_current_key(key)
        state = self.states[subtask][name]
        if self.namespace is None:
            return state, (key, None)
        state.set_namespace(namespace)
        return state, (key, namespace)

    @rule(key=KEYS, namespace=st.integers(0, 1), number=NUMBERS | st.none())
    def update_value(self, key: str, namespace: int, number: int | None) -> None:
        """Set or remove a value."""
        state, place = self.at("value", key, namespace)
        state.update(number)
        self.model.cells["value"].pop(place, None)
        if number is not None:
            self.model.cells["value"][place] = (self.model.now_ms, number)

    @rule(
        key=KEYS,
        namespace=st.integers(0, 1),
        words=st.lists(st.sampled_from("abc"), max_size=3),
        replaces=st.booleans(),
    )
    def change_list(self, key: str, namespace: int, words: list[str], replaces: bool) -> None:
        """Append elements or replace all."""
        state, place = self.at("list", key, namespace)
        cells = [(self.model.now_ms, word) for word in words]
        if replaces:
            state.update(words)
            self.model.cells["list"].pop(place, None)
        else:
            state.add_all(words)
            cells = self.model.cells["list"].pop(place, []) + cells
        if cells:
            self.model.cells["list"][place] = cells

    @rule(key=KEYS, namespace=st.integers(0, 1), map_key=st.integers(0, 3), number=NUMBERS | st.none())
    def change_map(self, key: str, namespace: int, map_key: int, number: int | None) -> None:
        """Put or remove an entry."""
        state, place = self.at("map", key, namespace)
        held = self.model.cells["map"].setdefault(place, {})
        if number is None:
            state.remove(map_key)
            held.pop(map_key, None)
        else:
            state.put(map_key, number)
            held[map_key] = (self.model.now_ms, number)
        if not held:
            del self.model.cells["map"][place]

    @rule(key=KEYS, namespace=st.integers(0, 1), number=NUMBERS)
    def add(self, key: str, namespace: int, number: int) -> None:
        """Add to what is reduced and to what is aggregated."""
        state, place = self.at("largest", key, namespace)
        state.add(number)
        held = self.model.live("largest", place)
        self.model.cells["largest"][place] = (self.model.now_ms, number if held is None else max(held, number))
        state, place = self.at("mean", key, namespace)
        state.add(number)
        total, count = self.model.live("mean", place) or (0, 0)
        self.model.cells["mean"][place] = (self.model.now_ms, (total + number, count + 1))

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

    @rule(name=st.sampled_from(NAMES), key=KEYS, namespace=st.integers(0, 1))
    def clear(self, name: str, key: str, namespace: int) -> None:
        """Remove what a key has."""
        state, place = self.at(name, key, namespace)
        state.clear()
        self.model.cells[name].pop(place, None)

    @rule(key=KEYS, namespace=st.integers(0, 1), map_key=st.integers(0, 3))
    def read(self, key: str, namespace: int, map_key: int) -> None:
        """Everything of a key is what the model says."""
        state, place = self.at("value", key, namespace)
        assert state.value() == self.model.read(self.model.cells["value"], place)
        state, _ = self.at("list", key, namespace)
        assert state.get() == self.model.read_list(place)
        state, _ = self.at("map", key, namespace)
        held = self.model.cells["map"].get(place, {})
        assert state.is_empty() == all(map(self.model.is_over, held.values()))
        assert state.get(map_key) == self.model.read(held, map_key)
        assert dict(state.entries()) == self.model.read_map(place)
        state, _ = self.at("largest", key, namespace)
        assert state.get() == self.model.read(self.model.cells["largest"], place)
        state, _ = self.at("mean", key, namespace)
        mean = self.model.read(self.model.cells["mean"], place)
        assert state.get() == (None if mean is None else mean[0] / mean[1])

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

    @rule(
        parallelism=st.integers(1, 8),
        which=st.integers(0, 1),
        is_carried=st.booleans(),
        later_ms=st.sampled_from([None, -MINUTE_MS // 2, -1, 0, MINUTE_MS]),
        is_told_first=st.booleans(),
        goes_on_ms=st.sampled_from([None, MINUTE_MS // 2, MINUTE_MS]),
    )
    def restore(
        self,
        *,
        parallelism: int,
        which: int,
        is_carried: bool,
        later_ms: int | None,
        is_told_first: bool,
        goes_on_ms: int | None,
    ) -> None:
        """Go on from a snapshot with another number of subtasks, or on another backend.

        It is told a later time, an earlier one, or 1970, before its states are registered or afterwards. The time is
        not in the snapshot: by a clock that was set back, values are of the future. The input may go on at once.
        """
        parallelism, make = min(parallelism, self.most_subtasks), self.makes[which % len(self.makes)]
        files = [KeyedFile(bytes_of(backend), f"subtask {at}") for at, backend in enumerate(self.backends)]
        if is_carried:
            # A run that registers none of the states, and passes them on.
            carried = [backend_of(make, subtask, 3, files) for subtask in range(3)]
            files = [KeyedFile(bytes_of(backend), f"carried {at}") for at, backend in enumerate(carried)]
            for backend in carried:
                backend.close()
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
    most_subtasks = 2


TestKeyedState = pytest.mark.item("KS-01", "KS-08", "SP-23", "SS-01", "SS-12")(KeyedStateMachine.TestCase)
TestKeyedStateInRocksDB = pytest.mark.item("SB-11", "SP-12")(RocksDBStateMachine.TestCase)
# Opening a database and its column families takes so long that fewer histories have to do.
TestKeyedStateInRocksDB.settings = settings(max_examples=max(10, settings().max_examples // 5), stateful_step_count=30)
