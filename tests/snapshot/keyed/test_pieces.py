"""Canonical keyed state in several files: where it is cut, how it is written, restored and deleted."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError, NotApplied, SnapshotCancelled, SnapshotCorrupt, StateTooLarge
from partfile.snapshot.coordinator import discard
from partfile.snapshot.documents import FileHandle, InlineHandle, encode_document
from partfile.snapshot.keyed import pieces
from partfile.snapshot.keyed.codecs import BytesCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange
from partfile.snapshot.keyed.pieces import canonical_files, read_canonical
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import decode_incremental
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.piece_list import PieceList, decode_piece_list, encode_piece_list
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import RunningSnapshot, SnapshotOptions, SnapshotResult, StrategyRunner
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import CrashAt, FailAt, SimulatedCrash, intercept
from support.state.keyed import BACKENDS, backend_of, bytes_of, filled, list_of, map_of, mean_of, value_of

if TYPE_CHECKING:
    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend

PIECE_BYTES = 600
ROW_BYTES = 8


class Job:
    """One subtask whose state is written in pieces."""

    def __init__(self, base: Path, make: Any = HeapBackend, *, copies: bool = False, threshold_bytes: int = 0) -> None:
        self.store = LocalStore(str(base / "checkpoints"))
        self.threshold_bytes = threshold_bytes
        self.storage = self.storage_on(self.store)
        self.local = LocalStateStore(LocalStore(str(base / "local")), "subtask-0") if copies else None
        self.backend, self.change = filled(30, make)
        self.change(1)
        self.strategy = KeyedStateStrategy(self.backend, self.local, piece_bytes=PIECE_BYTES)

    def storage_on(self, store: Any) -> CheckpointStorage:
        """The checkpoints of the job in a store."""
        return CheckpointStorage(store, "job", FileStreamSettings(inline_threshold_bytes=self.threshold_bytes))

    def start(self, checkpoint_id: int = 1, store: Any = None, kind: Any = "checkpoint") -> RunningSnapshot:
        """Take a snapshot, in this thread."""
        streams = self.storage_on(store or self.store).stream_factory(checkpoint_id)
        return StrategyRunner(self.strategy).snapshot(checkpoint_id, 0, streams, SnapshotOptions(kind=kind))

    def snapshot(self, checkpoint_id: int = 1, store: Any = None) -> StateHandle:
        """Its handle."""
        handle = self.start(checkpoint_id, store).result(30).primary
        assert handle is not None
        return handle

    def list_of(self, handle: StateHandle) -> PieceList:
        """What a handle names."""
        return decode_piece_list(*self.storage.read_shown(handle))

    def files(self) -> list[str]:
        """All files of the job."""
        base = Path(self.store.base, "job")
        return sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job on the heap."""
    return Job(tmp_path)


def registered(backend: KeyedStateBackend) -> KeyedStateBackend:
    """A backend, with the four states of a job registered."""
    for described in (value_of(), list_of(), map_of(), mean_of()):
        getattr(backend, f"{described.kind}_state")(described)
    return backend


def rows_of(files: list[Any]) -> list[tuple[int, str, bytes, bytes]]:
    """All rows of restored files, in their order."""
    return [
        (group, name, row, value)
        for file in files
        for group in file.groups
        for name, (rows, values) in file.rows(group)
        for row, value in zip(rows, values, strict=True)
    ]


def cut(backend: KeyedStateBackend, piece_bytes: int) -> list[pieces.CanonicalFile]:
    """The files of what a backend holds."""
    taken = backend.freeze()
    found = list(canonical_files(taken, piece_bytes))
    taken.release()
    return found


@pytest.mark.item("SP-12", "SB-11", "SS-12")
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300)), max_size=40), st.integers(1, 900))
def test_where_state_is_cut(sizes: list[tuple[int, int]], piece_bytes: int) -> None:
    """Both backends give the same files, with all rows in order. A file is full, or ends with a key group."""
    found = []
    for make in BACKENDS:
        backend = backend_of(make)
        value, rows = backend.value_state(ValueStateDescriptor("bytes", BytesCodec())), backend.list_state(list_of())
        for key, size_bytes in sizes:
            backend.set_current_key(f"key {key}")
            value.update(bytes(size_bytes))
            rows.add("x" * size_bytes)
        found.append((cut(backend, piece_bytes), bytes_of(backend)))
        backend.close()
    (files, whole), again = found
    assert again == (files, whole)
    read = [KeyedFile(file.data, "a piece") for file in files]
    assert rows_of(read) == rows_of([KeyedFile(whole, "whole")])
    assert (files[0].groups.first, files[-1].groups.last) == (0, 15)
    blocks_bytes = [len(file._blocks) for file in read]
    for at, file in enumerate(read):
        assert blocks_bytes[at] <= piece_bytes or len(rows_of([file])) == 1
        if at + 1 < len(read):
            first, then = file.groups, read[at + 1].groups
            assert then.first in {first.last, first.last + 1}
            assert blocks_bytes[at] > 0
            if then.first == first.last:
                # The key group is larger than a file: nothing but it is in this one.
                assert {group for group, *_ in rows_of([file])} == {first.last}
    if blocks_bytes == [len(KeyedFile(whole, "whole")._blocks)]:
        assert [file.data for file in files] == [whole]


def test_chunks_of_rows_do_not_move_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows a backend gives together."""
    backend, change = filled(60)
    change(1)
    expected = cut(backend, PIECE_BYTES)
    assert len(expected) > 10
    monkeypatch.setattr("partfile.snapshot.keyed.heap.ROWS_AT_ONCE", 3)
    assert cut(backend, PIECE_BYTES) == expected


@pytest.mark.item("SP-12", "SB-11", "SP-23", "KS-02")
@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("threshold_bytes", [0, 60 << 10])
def test_any_backend_restores_pieces_with_any_parallelism(tmp_path: Path, make: Any, threshold_bytes: int) -> None:
    """The list is a file or inline, and some of the pieces too."""
    job = Job(tmp_path, make, threshold_bytes=threshold_bytes)
    job.change(2)
    expected = bytes_of(job.backend)
    handle = job.snapshot()
    assert isinstance(handle, InlineHandle if threshold_bytes else FileHandle)
    assert len(job.list_of(handle).pieces) > 5
    for other in BACKENDS:
        for parallelism in (1, 2, 3, 8):
            with read_keyed_files(job.storage, [handle]) as (found,):
                assert found.source == "primary"
                parts = [backend_of(other, at, parallelism, [found.file]) for at in range(parallelism)]
                assert found.source == "primary"
            whole = [KeyedFile(bytes_of(registered(part)), "a part") for part in parts]
            joined = backend_of(HeapBackend, files=whole)
            assert bytes_of(joined) == expected
            for part in parts:
                part.close()
    job.backend.close()


@pytest.mark.item("SP-12")
@pytest.mark.parametrize("make", BACKENDS)
def test_a_key_group_in_several_pieces(tmp_path: Path, make: Any) -> None:
    """Its rows are cut, also within a list; each state has all of them again."""
    backend = make(KeyCodec("string"), KeyGroupRange(0, 0), 1)
    rows = backend.list_state(list_of())
    for key in ("a", "b"):
        backend.set_current_key(key)
        rows.add_all([f"{at:03}" for at in range(100)])
    files = cut(backend, PIECE_BYTES)
    assert len(files) > 4
    storage = CheckpointStorage(LocalStore(str(tmp_path)), "job", FileStreamSettings(inline_threshold_bytes=0))
    strategy = KeyedStateStrategy(backend, piece_bytes=PIECE_BYTES)
    handle = StrategyRunner(strategy).snapshot(1, 0, storage.stream_factory(1), SnapshotOptions()).result().primary
    assert handle is not None
    for other in BACKENDS:
        with read_keyed_files(storage, [handle]) as (found,):
            restored = other(KeyCodec("string"), KeyGroupRange(0, 0), 1, [found.file])
        # Not registered, and registered.
        assert cut(restored, PIECE_BYTES) == files
        state = restored.list_state(list_of())
        restored.set_current_key("b")
        assert list(state.get()) == [f"{at:03}" for at in range(100)]
        assert cut(restored, PIECE_BYTES) == files
        state.add("more")
        assert list(state.get())[-1] == "more"
        restored.close()
    backend.close()


@pytest.mark.item("RI-12")
def test_a_snapshot_in_pieces_tells_the_bytes_of_all(job: Job) -> None:
    """All of them were written for it."""
    result = job.start().result(30)
    files = [Path(job.store.base, "job", path) for path in job.files()]
    assert result.written_bytes == result.full_bytes == sum(path.stat().st_size for path in files)
    assert SnapshotResult().full_bytes == 0


@pytest.mark.item("SS-11")
def test_rescaling_reads_only_the_pieces_with_its_key_groups(job: Job) -> None:
    """Each once."""
    handle = job.snapshot()
    listed = job.list_of(handle).pieces
    read: list[str] = []

    def noted(piece: Any) -> KeyedFile:
        read.append(piece.path)
        return KeyedFile(*job.storage.read_shown(piece))

    for subtask, groups in enumerate((range(8), range(8, 16))):
        read.clear()
        backend_of(HeapBackend, subtask, 2, [read_canonical(*job.storage.read_shown(handle), noted)])
        overlapping = [one for one in listed if one.first_group <= groups[-1] and one.last_group >= groups[0]]
        assert read == [one.handle.path for one in overlapping if isinstance(one.handle, FileHandle)]
        assert len(read) < len(listed)


@pytest.mark.item("SS-06", "RI-13")
def test_a_failure_at_each_store_call_leaves_no_piece(tmp_path: Path) -> None:
    """Nor a copy of one; the next snapshot completes."""
    job = Job(tmp_path, copies=True)
    failed = 0
    while True:
        try:
            job.snapshot(1, intercept(job.store, FailAt(failed + 1, NotApplied("no room"), only={"create_file"})))
        except NotApplied:
            assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
            failed += 1
            continue
        break
    assert failed > 5
    assert len(job.files()) == failed


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_kill_at_each_store_call_of_a_snapshot(tmp_path: Path, side: Any) -> None:
    """The snapshot before can be restored; what the killed one left goes with its directory."""
    job = Job(tmp_path)
    first, expected = job.snapshot(1), bytes_of(job.backend)
    kept = job.files()
    job.change(2)
    killed = 0
    while True:
        try:
            job.snapshot(2, intercept(job.store, CrashAt(killed + 1, side)))
        except SimulatedCrash:
            killed += 1
            job.storage.delete_checkpoint(2)
            assert job.files() == kept
            with read_keyed_files(job.storage, [first]) as (found,):
                assert bytes_of(backend_of(files=[found.file])) == expected
            continue
        break
    assert killed > 5


@pytest.mark.parametrize("make", BACKENDS)
def test_a_kill_or_a_failure_at_each_store_call_of_a_restore(tmp_path: Path, make: Any) -> None:
    """Nothing is changed by it."""
    job = Job(tmp_path)
    handle, expected = job.snapshot(), bytes_of(job.backend)
    for fault in (CrashAt, lambda at: FailAt(at, NotApplied("no route"))):
        for at in range(1, 100):
            store = intercept(job.store, fault(at))
            try:
                with read_keyed_files(job.storage_on(store), [handle]) as (found,):
                    restored = backend_of(make, files=[found.file])
            except (SimulatedCrash, NotApplied):
                continue
            assert at > 5
            assert bytes_of(restored) == expected
            restored.close()
            break


@pytest.mark.item("SS-07", "CC-13")
@pytest.mark.parametrize("threshold_bytes", [0, 300])
def test_what_is_discarded_is_deleted_with_all_pieces(tmp_path: Path, threshold_bytes: int) -> None:
    """By the coordinator, when it comes too late."""
    job = Job(tmp_path, threshold_bytes=threshold_bytes)
    handle = job.snapshot(3)
    assert len(job.files()) > 5
    assert discard(job.storage, 3, handle)
    assert job.files() == []
    assert discard(job.storage, 3, handle)
    # A list that is small enough travels inline, and its pieces are files.
    listed = [job.list_of(job.snapshot(at)) for at in (3, 4)]
    inline = [InlineHandle(data=encode_piece_list(one)) for one in listed]
    before = set(job.files())
    assert discard(job.storage, 3, inline[0])
    gone = before - set(job.files())
    assert gone == {file.path for file in listed[0].files()}
    assert not discard(job.storage, 4, InlineHandle(data=b"no list"))
    # What another checkpoint has is left alone.
    discard(job.storage, 3, inline[1])
    assert set(job.files()) == before - gone


def test_a_snapshot_that_is_cancelled_as_it_ends_deletes_all_pieces(job: Job) -> None:
    """Its last file is written, and its result has not been given out."""
    running: list[RunningSnapshot] = []
    streams = job.storage.stream_factory(1)
    view = job.strategy.sync_prepare_resources(SnapshotOptions())
    supplier = job.strategy.async_snapshot(view, 1, 0, streams, SnapshotOptions())

    def supply(registry: Any) -> SnapshotResult:
        result = supplier(registry)
        assert len(job.files()) > 5
        running[0].cancel()
        return result

    running.append(RunningSnapshot(supply, view, streams))
    with ThreadPoolExecutor(1) as pool:
        running[0].start(pool)
        with pytest.raises(SnapshotCancelled):
            running[0].result(30)
    assert job.files() == []


@pytest.mark.item("LR-06", "LR-07")
def test_each_piece_has_a_copy_on_this_machine(tmp_path: Path) -> None:
    """A restore from copies alone is local; a piece whose copy is damaged is read from the storage."""
    job = Job(tmp_path, copies=True)
    handle, expected = job.snapshot(), bytes_of(job.backend)
    (tmp_path / "checkpoints").rename(tmp_path / "away")
    with read_keyed_files(job.storage, [handle], job.local) as (found,):
        assert bytes_of(backend_of(files=[found.file])) == expected
        assert found.source == "local"
    (tmp_path / "away").rename(tmp_path / "checkpoints")
    listed = job.list_of(handle).pieces
    for piece, data in ((listed[0].handle, b""), (listed[1].handle, b"partfile keyed-state 2 0 00000000\n\n")):
        # Damaged, or written by a newer partfile.
        other = LocalStore(str(tmp_path / "other"))
        assert isinstance(piece, FileHandle)
        local = LocalStateStore(other, "subtask-0")
        stream = local.create_stream(1)
        stream.write(data or b"x")
        copy = stream.close_and_get_handle()
        assert copy is not None
        assert local.keep(1, piece, copy)
        if not data:
            next((tmp_path / "other").rglob("*.state")).write_bytes(b"y")
        with read_keyed_files(job.storage, [handle], local) as (found,):
            assert bytes_of(backend_of(files=[found.file])) == expected
            assert found.source == "primary"
        other.delete_directory("subtask-0/chk-1")


@pytest.mark.item("ST-03")
@pytest.mark.parametrize("make", BACKENDS)
def test_a_value_that_no_file_takes_is_refused(tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its state and key group; nothing is left of the files before it. One that is larger than a piece is not."""
    job = Job(tmp_path, make)
    monkeypatch.setattr(pieces, "MAX_PIECE_BYTES", 2000)
    large = job.backend.value_state(ValueStateDescriptor("large", BytesCodec()))
    job.backend.set_current_key("key 7")
    large.update(bytes(1800))
    assert len(job.list_of(job.snapshot(1)).pieces) > 5
    kept = job.files()
    large.update(bytes(2000))
    with pytest.raises(StateTooLarge, match=r"state 'large', key group \d+: one value takes 2047 bytes .* a file 2000"):
        job.snapshot(2)
    assert job.files() == kept
    job.backend.close()


@pytest.mark.parametrize("piece_bytes", [0, -1, 1 << 28, 1.5, None])
def test_a_size_that_cannot_be_used_is_refused(piece_bytes: Any) -> None:
    """By both strategies."""
    backend = backend_of(RocksDBBackend)
    for strategy in (KeyedStateStrategy, IncrementalStrategy):
        with pytest.raises(ConfigError, match="piece_bytes="):
            strategy(backend, piece_bytes=piece_bytes)  # type: ignore[arg-type]
    backend.close()


def test_a_savepoint_of_the_incremental_strategy_is_in_the_same_pieces(tmp_path: Path) -> None:
    """As that of the heap; the list has other names."""
    heap, rocksdb = Job(tmp_path / "heap"), Job(tmp_path / "rocksdb", RocksDBBackend)
    assert isinstance(rocksdb.backend, RocksDBBackend)
    rocksdb.strategy = IncrementalStrategy(rocksdb.backend, piece_bytes=PIECE_BYTES)  # type: ignore[assignment]
    found = []
    for job in (heap, rocksdb):
        handle = job.start(1, kind="savepoint").result(30).primary
        assert handle is not None
        found.append([job.storage.read_bytes(piece.handle) for piece in job.list_of(handle).pieces])
    assert found[0] == found[1]
    rocksdb.backend.close()


def changed(found: PieceList, **changes: Any) -> PieceList:
    """A list that was made up."""
    return PieceList.model_construct(**{**dict(found), **changes})


@pytest.mark.item("SS-10")
def test_a_list_or_a_piece_that_is_not_the_right_one_is_refused(job: Job) -> None:
    """Pieces that are missing, out of order, another's, or in another directory; states that are no keyed state."""
    found = job.list_of(job.snapshot())
    first, second, *others = found.pieces
    handle = first.handle
    assert isinstance(handle, FileHandle)
    elsewhere = first.model_copy(update={"handle": handle.model_copy(update={"path": "shared/x.state"})})
    operator = found.states[0].model_copy(update={"type": "OPERATOR", "mode": "split"})
    swapped = (
        first.model_copy(update={"handle": second.handle}),
        second.model_copy(update={"handle": first.handle}),
        *others,
    )
    made_up = [
        changed(found, pieces=()),
        changed(found, pieces=(first, *others)),
        changed(found, pieces=(second, first, *others)),
        changed(found, pieces=swapped),
        changed(found, pieces=(elsewhere, second, *others)),
        changed(found, max_parallelism=15),
        changed(found, max_parallelism=1 << 20),
        changed(found, states=(*found.states, found.states[0])),
        changed(found, states=(operator, *found.states[1:])),
        changed(found, states=found.states[1:]),
        changed(found, pieces=(first, first.model_copy(update={"first_group": first.last_group}), *others)),
    ]
    for one in made_up:
        data = encode_document("state-pieces", one)
        with pytest.raises((SnapshotCorrupt, ConfigError)):
            backend_of(files=[read_canonical(data, "a list", lambda at: KeyedFile(*job.storage.read_shown(at)))])
    data = encode_piece_list(found)
    whole = backend_of(files=[read_canonical(data, "a list", lambda at: KeyedFile(*job.storage.read_shown(at)))])
    assert bytes_of(whole) == bytes_of(job.backend)


def test_rows_of_two_pieces_that_do_not_ascend_are_refused() -> None:
    """Of a key group that they share."""
    backend = HeapBackend(KeyCodec("string"), KeyGroupRange(0, 0), 1)
    rows = backend.list_state(list_of())
    backend.set_current_key("a")
    rows.add_all([f"{at:03}" for at in range(40)])
    files = [KeyedFile(file.data, "a piece") for file in cut(backend, PIECE_BYTES)]
    listed = [
        {"first_group": 0, "last_group": 0, "handle": InlineHandle(data=bytes((at,)))} for at in range(len(files))
    ]
    for order in (listed, listed[::-1], [listed[0], *listed]):
        found = PieceList(key=("string",), max_parallelism=1, states=backend.infos, pieces=tuple(order))
        data = encode_piece_list(found)
        restored = read_canonical(data, "a list", lambda handle: files[handle.data[0]])  # type: ignore[union-attr]
        if order is listed:
            assert len(rows_of([restored])) == 40
            continue
        with pytest.raises(SnapshotCorrupt, match="the rows in key group 0 do not ascend"):
            rows_of([restored])


def test_one_piece_is_in_memory(tmp_path: Path) -> None:
    """Of eight MiB of state two at a time when it is written, and one when RocksDB is restored."""
    backend = backend_of()
    large = backend.value_state(ValueStateDescriptor("large", BytesCodec()))
    for key in range(2048):
        backend.set_current_key(f"key {key}")
        large.update(bytes(4 << 10))
    storage = CheckpointStorage(LocalStore(str(tmp_path)), "job")
    running = StrategyRunner(KeyedStateStrategy(backend, piece_bytes=512 << 10))
    tracemalloc.start()
    try:
        handle = running.snapshot(1, 0, storage.stream_factory(1), SnapshotOptions()).result().primary
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
        assert handle is not None
        tracemalloc.reset_peak()
        with read_keyed_files(storage, [handle]) as (found,):
            restored = backend_of(RocksDBBackend, files=[found.file])
            assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert bytes_of(restored) == bytes_of(backend)
    restored.close()


@pytest.mark.item("TT-02")
@pytest.mark.parametrize("time", [b"", b"1234567", b"\xff" * 8])
@pytest.mark.parametrize("described", [value_of(Ttl(60)), list_of(Ttl(60))])
def test_a_restored_value_without_a_time_is_refused(time: bytes, described: Any) -> None:
    """Before RocksDB has any row: it would never expire, or have expired."""
    backend = HeapBackend(KeyCodec("string"), KeyGroupRange(0, 0), 1)
    getattr(backend, f"{described.kind}_state")(described)
    rows = [b"\1a\0" + (bytes(8) if described.kind == "list" else b"")], [time]

    file: Any = KeyedFile(bytes_of(backend), "a file")
    file.rows = lambda _group: iter([(described.name, rows)])
    with pytest.raises(SnapshotCorrupt, match=r"key group 0: a value of \d bytes has no time"):
        RocksDBBackend(KeyCodec("string"), KeyGroupRange(0, 0), 1, [file])


def test_what_rocksdb_has_taken_in_is_in_its_files(tmp_path: Path) -> None:
    """Also what is not registered: the next incremental snapshot names the engine's files alone."""
    job = Job(tmp_path)
    with read_keyed_files(job.storage, [job.snapshot()]) as (found,):
        backend = backend_of(RocksDBBackend, files=[found.file])
    assert isinstance(backend, RocksDBBackend)
    backend.value_state(value_of())
    running = StrategyRunner(IncrementalStrategy(backend))
    handle = running.snapshot(2, 0, job.storage.stream_factory(2), SnapshotOptions()).result().primary
    assert handle is not None
    document = decode_incremental(*job.storage.read_shown(handle))
    assert document.carried is None
    assert [info.name for info in document.states] == ["list", "map", "mean", "value"]
    with read_keyed_files(job.storage, [handle]) as (found,):
        assert bytes_of(backend_of(files=[found.file])) == bytes_of(job.backend)
    backend.close()
