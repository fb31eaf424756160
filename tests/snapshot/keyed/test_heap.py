"""The heap backend: snapshots that share dictionaries with the live state, and cleaning up what has expired."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.errors import SnapshotCancelled, SnapshotCorrupt, UnencodableState
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.codecs import ImmutableCodec, Int64Codec, PairCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.keyed_file import KeyedFile, encode_keyed_state
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.state_file import CodecInfo
from partfile.snapshot.strategy import LocalCopies, SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory, MemoryStreamFactory
from partfile.stores.local.store import LocalStore
from support.state.keyed import MAX_PARALLELISM, backend_of, bytes_of, list_of, map_of, mean_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.keyed.backend import KeyedStateBackend

MINUTE_MS = 60_000
CHECKPOINT, SAVEPOINT = SnapshotOptions(), SnapshotOptions(kind="savepoint")


def filled(keys: int = 200) -> tuple[KeyedStateBackend, Callable[[int], None]]:
    """A backend with values, lists and maps, and what changes all of them by a number."""
    backend = backend_of()
    value, rows, pairs = backend.value_state(value_of()), backend.list_state(list_of()), backend.map_state(map_of())
    mean = backend.aggregating_state(mean_of())

    def change(number: int) -> None:
        for key in range(keys):
            backend.set_current_key(f"key {key}")
            value.update(number)
            rows.add(f"{number}")
            pairs.put(number, [number])
            if number % 2:
                pairs.remove(number - 1)
            mean.add(number)

    return backend, change


@pytest.mark.item("SS-03", "SS-15")
def test_what_comes_after_the_synchronous_part_is_not_in_the_snapshot() -> None:
    """Of values, lists, maps, accumulators; whatever was added, changed or removed."""
    backend, change = filled()
    change(1)
    expected = bytes_of(backend)
    taken = backend.freeze()
    change(2)
    change(3)
    backend.set_current_key("another")
    backend.value_state(value_of()).update(1)
    for key in range(100):
        backend.set_current_key(f"key {key}")
        backend.value_state(value_of()).clear()
        backend.list_state(list_of()).update(["other"])
        backend.map_state(map_of()).clear()
    assert encode_keyed_state(taken) == expected
    taken.release()
    assert bytes_of(backend) != expected


def test_any_number_of_snapshots_may_be_open() -> None:
    """Each shows its own instant, in whatever order they are written and released."""
    backend, change = filled(20)
    expected, taken = [], []
    for number in range(6):
        change(number)
        expected.append(bytes_of(backend))
        taken.append(backend.freeze())
        if number == 3:
            taken[1].release()
            taken[3].release()
    change(7)
    for number in (5, 0, 4, 2):
        assert encode_keyed_state(taken[number]) == expected[number]
        taken[number].release()
        change(8 + number)


def test_a_snapshot_keeps_its_view_when_another_is_released() -> None:
    """Also where both have the same dictionaries, because nothing changed between them."""
    backend, change = filled(20)
    change(1)
    expected = bytes_of(backend)
    for kept, released in ((0, 1), (1, 0)):
        taken = [backend.freeze(), backend.freeze()]
        taken[released].release()
        change(2)
        assert encode_keyed_state(taken[kept]) == expected
        taken[kept].release()
        backend, change = filled(20)
        change(1)


def test_dictionaries_are_copied_only_while_a_snapshot_is_written() -> None:
    """And each only once, before its first change."""
    backend, change = filled(50)
    change(1)

    def tables() -> list[int]:
        return [id(table) for state in backend._tables.values() for table in state._tables]  # type: ignore[attr-defined]

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
    return [len(table) for state in backend._tables.values() for table in state._tables]  # type: ignore[attr-defined]


@pytest.mark.item("SS-17")
def test_a_snapshot_is_written_while_the_state_changes() -> None:
    """Another thread encodes the view again and again, and sees the same each time."""
    backend, change = filled(300)
    change(1)
    expected = bytes_of(backend)
    taken, is_over = backend.freeze(), threading.Event()

    def encode() -> set[bytes]:
        found = set()
        while not is_over.is_set():
            found.add(encode_keyed_state(taken))
        return found | {encode_keyed_state(taken)}

    with ThreadPoolExecutor(1) as pool:
        encoded = pool.submit(encode)
        try:
            for number in range(2, 12):
                change(number)
        finally:
            is_over.set()
        assert encoded.result() == {expected}
    taken.release()


@pytest.mark.item("SS-02", "SS-04", "SS-06", "SS-08", "SS-14", "SS-25", "SS-34")
@pytest.mark.parametrize("options", [CHECKPOINT, SAVEPOINT], ids=["checkpoint", "savepoint"])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_strategy_writes_the_canonical_file(tmp_path: Path, options: SnapshotOptions, is_pooled: bool) -> None:
    """Inline or on a pool, for a checkpoint or a savepoint; a backend without states writes nothing."""
    backend, change = filled()
    change(1)
    expected = bytes_of(backend)
    with LocalStore(str(tmp_path)) as store, ThreadPoolExecutor(1) as pool:
        streams = FileStreamFactory(store, "job", 1)
        runner = StrategyRunner(KeyedStateStrategy(backend), pool if is_pooled else None)
        handle = runner.snapshot(1, 0, streams, options).result().primary
        assert isinstance(handle, FileHandle)
        assert store.read_file(f"job/{handle.path}", 1 << 30) == expected
        assert backend.context.frozen == 0
        nothing = StrategyRunner(KeyedStateStrategy(backend_of())).snapshot(2, 0, streams, options).result()
        assert nothing.primary is None


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


@pytest.mark.item("SS-18", "LR-12")
def test_a_local_copy_is_the_same_file(tmp_path: Path) -> None:
    """Where it is wanted, and never of a savepoint."""
    backend, change = filled()
    change(1)
    with LocalStore(str(tmp_path)) as store, LocalStore(str(tmp_path / "local")) as local:
        strategy = KeyedStateStrategy(backend, LocalCopies(local, "subtask-0"))
        streams = FileStreamFactory(store, "job", 1)
        result = StrategyRunner(strategy).snapshot(1, 0, streams, CHECKPOINT).result()
        assert isinstance(result.local, FileHandle)
        assert local.read_file(f"subtask-0/{result.local.path}", 1 << 30) == bytes_of(backend)
        assert StrategyRunner(strategy).snapshot(2, 0, streams, SAVEPOINT).result().local is None


def test_what_was_restored_and_is_not_registered_is_carried_on() -> None:
    """Byte for byte, also when it is restored once more, and beside what is registered."""
    backend, change = filled()
    change(1)
    expected = bytes_of(backend)
    carried = backend_of(files=[KeyedFile(expected, "file")])
    assert bytes_of(carried) == expected
    carried.value_state(value_of())
    assert bytes_of(carried) == expected
    again = backend_of(files=[KeyedFile(bytes_of(carried), "file")])
    for register in (
        lambda: again.list_state(list_of()),
        lambda: again.map_state(map_of()),
        lambda: again.aggregating_state(mean_of()),
    ):
        register()
        assert bytes_of(again) == expected


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
    for table in backend._tables.values():  # type: ignore[attr-defined]
        for slot in range(MAX_PARALLELISM):
            oldest_ms = table._remove_expired(slot, 0)
            assert oldest_ms in {MINUTE_MS // 2, MINUTE_MS}
    tables: list[Any] = list(backend._tables.values())  # type: ignore[attr-defined]
    contents = [held.content for state in tables for table in state._tables for held in table.values()]
    assert len(contents) == 200
    assert {len(content) for content in contents} == {1}
    assert encode_keyed_state(taken) == before
    taken.release()
    backend.set_current_key("key 7")
    assert (rows.get(), pairs.entries()) == (("1",), ((1, 1),))


def test_a_group_in_which_nothing_can_have_expired_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its oldest time is known from the last time that it was."""
    backend = backend_of()
    state = backend.value_state(value_of(Ttl(60)))
    table = backend._tables["value"]  # type: ignore[attr-defined]
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


def test_a_large_batch_is_as_its_rows(rng: Any) -> None:
    """Groups are found by columns, rows by their bytes: the same state comes of both."""
    keys = [f"key {rng.randrange(1000)}" for _ in range(3000)]
    alone, batched = backend_of(), backend_of()
    state = alone.value_state(value_of())
    for number, key in enumerate(keys):
        alone.set_current_key(key)
        state.update(number)
    batched.value_state(value_of()).update_batch(batched.key_batch(pa.array(keys)), list(range(len(keys))))
    assert bytes_of(alone) == bytes_of(batched)


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
