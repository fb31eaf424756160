"""The heap backend: snapshots that share dictionaries with the live state, and cleaning up what has expired."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import SnapshotCancelled, SnapshotCorrupt, UnencodableState
from partfile.snapshot.keyed.codecs import ImmutableCodec, Int64Codec, PairCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.state_file import CodecInfo
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory, MemoryStreamFactory
from partfile.stores.local.store import LocalStore
from support.state.keyed import (
    MAX_PARALLELISM,
    backend_of,
    bytes_of,
    encode_keyed_state,
    file_of,
    filled,
    list_of,
    map_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.keyed.backend import KeyedStateBackend

MINUTE_MS = 60_000
CHECKPOINT, SAVEPOINT = SnapshotOptions(), SnapshotOptions(kind="savepoint")


def test_dictionaries_are_copied_only_while_a_snapshot_is_written() -> None:
    """And each only once, before its first change."""
    backend, change = filled(50)
    change(1)

    def tables() -> list[int]:
        return [id(table) for state in backend.tables().values() for table in state._tables]  # type: ignore[attr-defined]

    before = tables()
    change(2)
    assert tables() == before
    taken = backend.freeze()
    assert tables() == before
    change(3)
    copied = tables()
    assert not set(copied) & {one for one, table in zip(before, _sizes(backend), strict=True) if table}
    change(4)
    assert tables() == copied
    taken.release()
    change(5)
    assert tables() == copied


def _sizes(backend: KeyedStateBackend) -> list[int]:
    return [len(table) for state in backend.tables().values() for table in state._tables]  # type: ignore[attr-defined]


@pytest.mark.item("SS-06", "SS-07")
def test_a_snapshot_that_fails_or_is_cancelled_leaves_no_file_and_no_view(tmp_path: Path) -> None:
    """The live state goes on, and later snapshots are whole."""
    backend = backend_of()
    may_encode = threading.Event()

    class Unchecked(ImmutableCodec[str]):
        """Finds out at the asynchronous part alone."""

        info = CodecInfo(name="unchecked", version=1)

        def copy(self, value: str) -> str:
            return value

        def encode(self, value: str) -> bytes:
            if value == "bad":
                raise UnencodableState("no form")
            if value == "slow":
                may_encode.wait(30)
            return value.encode()

        def decode(self, data: bytes) -> str:
            return data.decode()

    state = backend.value_state(ValueStateDescriptor("text", Unchecked()))
    backend.set_current_key("a")
    with LocalStore(str(tmp_path)) as store, ThreadPoolExecutor(1) as pool:
        streams = FileStreamFactory(store, "job", 1, inline_threshold_bytes=0)
        runner = StrategyRunner(KeyedStateStrategy(backend), pool)
        state.update("bad")
        with pytest.raises(UnencodableState, match=r"state 'text', key group [0-9]+, codec 'unchecked': no form"):
            runner.snapshot(1, 0, streams, CHECKPOINT).result()
        state.update("slow")
        running = runner.snapshot(2, 0, streams, CHECKPOINT)
        assert running.cancel()
        may_encode.set()
        with pytest.raises(SnapshotCancelled):
            running.result()
        assert list(store.list()) == []
        assert backend.context.frozen == 0
        state.update("good")
        assert runner.snapshot(3, 0, streams, CHECKPOINT).result().primary is not None


# Cleaning up.


def entries(backend: KeyedStateBackend) -> int:
    """The rows that are held, live or not."""
    return sum(_sizes(backend))


@pytest.mark.item("TT-12", "TT-13", "TT-14", "TT-16")
@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_accesses_clean_up_key_groups_in_turn(kind: str) -> None:
    """Each pays for five entries. A group that is paid for is looked through, and after the last the first."""
    backend, ttl, keys = backend_of(), Ttl(60), 3200
    states: dict[str, Callable[[], Any]] = {
        "value": lambda: backend.value_state(value_of(ttl)).update(1),
        "list": lambda: backend.list_state(list_of(ttl)).add("x"),
        "map": lambda: backend.map_state(map_of(ttl)).put(1, 1),
    }
    write = states[kind]
    for key in range(keys):
        backend.set_current_key(f"key {key}")
        write()
    backend.advance_time(MINUTE_MS)
    assert entries(backend) == keys
    backend.set_current_key("key 0")
    per_group = keys // MAX_PARALLELISM
    for _ in range(2 * ENTRIES_AT_ONCE // 5):
        write()
    assert keys - 3 * per_group * 1.3 < entries(backend) <= keys - per_group * 0.7
    for _ in range(2 * MAX_PARALLELISM * ENTRIES_AT_ONCE // 5):
        write()
    assert entries(backend) == 1


@pytest.mark.item("TT-14")
def test_cleaning_up_can_be_left_to_reads() -> None:
    """By zero entries an access."""
    backend = backend_of()
    state = backend.value_state(value_of(Ttl(60, cleanup_entries=0)))
    for key in range(500):
        backend.set_current_key(f"key {key}")
        state.update(1)
    backend.advance_time(MINUTE_MS)
    for _ in range(20_000):
        state.update(1)
    assert entries(backend) == 500


@pytest.mark.item("TT-15")
def test_choosing_a_key_can_pay_as_well() -> None:
    """Though its state is not touched."""
    for on, left in (("access", 500), ("key", 0)):
        backend = backend_of()
        state = backend.value_state(value_of(Ttl(60, cleanup_on=on)))  # type: ignore[arg-type]
        for key in range(500):
            backend.set_current_key(f"key {key}")
            state.update(1)
        backend.advance_time(MINUTE_MS)
        for _ in range(2 * MAX_PARALLELISM * ENTRIES_AT_ONCE // 5):
            backend.set_current_key("key 0")
        assert entries(backend) == left


def test_part_of_a_list_and_of_a_map_expires() -> None:
    """Cleaning up keeps what lives, and never touches what a snapshot has."""
    backend, ttl = backend_of(), Ttl(60)
    rows, pairs = backend.list_state(list_of(ttl)), backend.map_state(map_of(ttl))
    for step in range(2):
        backend.advance_time(step * MINUTE_MS // 2)
        for key in range(100):
            backend.set_current_key(f"key {key}")
            rows.add(f"{step}")
            pairs.put(step, step)
    before = bytes_of(backend)
    taken = backend.freeze()
    backend.advance_time(MINUTE_MS)
    tables: list[Any] = list(backend.tables().values())
    for table in tables:
        for slot in range(MAX_PARALLELISM):
            oldest_ms = table._remove_expired(slot, 0)
            assert oldest_ms in {MINUTE_MS // 2, MINUTE_MS}
    contents = [held.content for state in tables for table in state._tables for held in table.values()]
    assert len(contents) == 200
    assert {len(content) for content in contents} == {1}
    assert encode_keyed_state(taken) == before
    taken.release()
    backend.set_current_key("key 7")
    assert (rows.get(), pairs.entries()) == (("1",), ((1, 1),))


@pytest.mark.parametrize("kind", ["list", "map"])
def test_entries_are_counted_only_where_one_can_have_expired(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each look through a key group, and not while nothing is old enough."""
    backend, ttl = backend_of(), Ttl(60)
    writes: dict[str, Callable[[], Any]] = {
        "list": lambda: backend.list_state(list_of(ttl)).update(["x"]),
        "map": lambda: backend.map_state(map_of(ttl)).put(1, 1),
    }
    calls: list[str] = []

    def write() -> None:
        for key in range(20_000):
            backend.set_current_key(f"key {key}")
            writes[kind]()

    backend.advance_time(MINUTE_MS)
    backend.set_current_key("key 0")
    writes[kind]()
    table: Any = backend.tables()[kind]
    count, remove = table._entries, table._remove_expired

    def counted(entries: dict[bytes, Any]) -> int:
        calls.append("counted")
        found: int = count(entries)
        return found

    def removed(slot: int, last_ms: int) -> int:
        calls.append("looked")
        oldest_ms: int = remove(slot, last_ms)
        return oldest_ms

    monkeypatch.setattr(table, "_entries", counted)
    monkeypatch.setattr(table, "_remove_expired", removed)
    write()
    # Each group has been looked through once, since what was restored could have been older.
    assert calls == ["counted", "looked"] * MAX_PARALLELISM
    write()
    assert calls == ["counted", "looked"] * MAX_PARALLELISM
    backend.advance_time(2 * MINUTE_MS)
    for _ in range(3 * 20_000 // 5):
        writes[kind]()
    assert calls.count("looked") >= 2 * MAX_PARALLELISM
    assert calls.count("looked") <= calls.count("counted") <= calls.count("looked") + 1


def test_a_group_in_which_nothing_can_have_expired_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its oldest time is known from the last time that it was."""
    backend = backend_of()
    state = backend.value_state(value_of(Ttl(60)))
    table: Any = backend.tables()["value"]
    seen: list[int] = []
    remove = table._remove_expired

    def counted(slot: int, last_ms: int) -> int:
        seen.append(slot)
        oldest_ms: int = remove(slot, last_ms)
        return oldest_ms

    monkeypatch.setattr(table, "_remove_expired", counted)
    backend.advance_time(MINUTE_MS)
    for key in range(5_000):
        backend.set_current_key(f"key {key}")
        state.update(1)
    looked = len(seen)
    assert looked <= MAX_PARALLELISM
    backend.advance_time(2 * MINUTE_MS - 1)
    for key in range(5_000):
        backend.set_current_key(f"key {key}")
        state.update(2)
    assert len(seen) == looked


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_what_is_older_than_a_whole_group_is_looked_for_in_time(kind: str) -> None:
    """A restored subtask that is told an earlier time than before writes values that are older than all that it has."""
    ttl = Ttl(60, cleanup_entries=ENTRIES_AT_ONCE)

    def write(backend: KeyedStateBackend, now_ms: int) -> None:
        backend.advance_time(now_ms)
        writes: dict[str, Callable[[], Any]] = {
            "value": lambda: backend.value_state(value_of(ttl)).update(1),
            "list": lambda: backend.list_state(list_of(ttl)).add("x"),
            "map": lambda: backend.map_state(map_of(ttl)).put(1, 1),
        }
        for key in range(200):
            backend.set_current_key(f"{now_ms} {key}")
            writes[kind]()

    first = backend_of()
    write(first, 10 * MINUTE_MS)
    restored = backend_of(files=[file_of(first)])
    write(restored, 9 * MINUTE_MS)
    restored.advance_time(10 * MINUTE_MS)
    assert entries(restored) == 400
    restored.tables()[kind].pay(MAX_PARALLELISM * ENTRIES_AT_ONCE)  # type: ignore[attr-defined]
    assert entries(restored) == 200


@pytest.mark.item("SS-14")
def test_memory_storage_takes_it_inline() -> None:
    """Whatever the storage: the strategy knows streams alone."""
    backend, change = filled(10)
    change(1)
    runner = StrategyRunner(KeyedStateStrategy(backend))
    handle = runner.snapshot(1, 0, MemoryStreamFactory(), CHECKPOINT).result().primary
    assert handle is not None
    assert handle.data == bytes_of(backend)  # type: ignore[union-attr]


def test_a_table_of_another_codec_names_state_group_and_codec() -> None:
    """Where restored bytes are not what the codec writes, though it has the same name."""
    writer = backend_of()
    state = writer.value_state(ValueStateDescriptor("text", PairCodec("mine", str.encode, bytes.decode)))
    writer.set_current_key("a")
    state.update("no number")
    reader = backend_of(files=[KeyedFile(bytes_of(writer), "file")])
    with pytest.raises(SnapshotCorrupt, match=r"state 'text', key group [0-9]+, codec 'pair/mine'"):
        reader.value_state(ValueStateDescriptor("text", PairCodec("mine", Int64Codec().encode, Int64Codec().decode)))
    assert bytes_of(reader) == bytes_of(writer)
