"""Incremental snapshots of keyed state in RocksDB: what they write, what is deleted, and restores from them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import (
    ConfigError,
    NotApplied,
    PartfileError,
    SnapshotCancelled,
    SnapshotCorrupt,
    StateTooLarge,
    StoreError,
)
from partfile.snapshot.coordinator import discard
from partfile.snapshot.documents import (
    CheckpointMetadata,
    FileHandle,
    InlineHandle,
    OperatorState,
    SubtaskState,
    encode_document,
)
from partfile.snapshot.keyed import shared_files
from partfile.snapshot.keyed.codecs import BytesCodec, Float64Codec, Int64Codec, PairCodec, TextCodec
from partfile.snapshot.keyed.descriptors import Earlier, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keys import KeyCodec, group_range
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions, SortedRows
from partfile.snapshot.keyed.rocksdb.files import NativeRows
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import (
    NativeFile,
    SharedFiles,
    decode_incremental,
    encode_incremental,
    is_incremental,
)
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.storage import CheckpointStorage, DriverMemoryStorageSettings, FileStreamSettings
from partfile.snapshot.strategy import (
    CloseableRegistry,
    RunningSnapshot,
    SnapshotOptions,
    SnapshotResult,
    StrategyRunner,
)
from partfile.snapshot.streams import Scope
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from partfile.testing.faults import CrashAt, FailAt, Recorder, SimulatedCrash, intercept
from support.files.disks import small_disk
from support.processes.deadline import ended
from support.state.keyed import (
    BACKENDS,
    MAX_PARALLELISM,
    TEXT_KEYS,
    backend_of,
    bytes_of,
    encode_keyed_state,
    file_of,
    filled,
    list_of,
    map_of,
    mean_of,
    value_of,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    import rocksdict

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.streams import CheckpointStreamFactory
    from partfile.testing.faults import When

SIDES: tuple[When, When] = ("before", "after")
MINUTE_MS = 60_000


class Job:
    """One subtask on RocksDB, whose state files all lie in files of the storage."""

    def __init__(self, base: Path, backend: KeyedStateBackend | None = None) -> None:
        self.base = base
        self.store: Any = LocalStore(str(base / "checkpoints"))
        self.storage = self.storage_on(self.store)
        self._change: Callable[[int], None] = lambda _number: None
        if backend is None:
            backend, self._change = filled(30, RocksDBBackend)
        assert isinstance(backend, RocksDBBackend)
        self.backend = backend
        self.strategy = IncrementalStrategy(backend)

    @staticmethod
    def storage_on(store: Any) -> CheckpointStorage:
        """The checkpoints of the job in a store."""
        return CheckpointStorage(store, "job", FileStreamSettings(inline_threshold_bytes=0))

    def change(self, number: int) -> None:
        """Change all rows by a number."""
        self._change(number)

    def snapshot(
        self, checkpoint_id: int, kind: Any = "checkpoint", pool: Any = None, storage: CheckpointStorage | None = None
    ) -> StateHandle:
        """Take one; returns its handle."""
        streams = (storage or self.storage).stream_factory(checkpoint_id)
        running = StrategyRunner(self.strategy, pool).snapshot(checkpoint_id, 0, streams, SnapshotOptions(kind=kind))
        handle = running.result(30).primary
        assert handle is not None
        return handle

    def start_savepoint(self, checkpoint_id: int) -> SnapshotResult:
        """Take a savepoint; returns its result."""
        streams = self.storage.stream_factory(checkpoint_id)
        running = StrategyRunner(self.strategy).snapshot(checkpoint_id, 0, streams, SnapshotOptions(kind="savepoint"))
        return running.result(30)

    def files(self) -> set[str]:
        """All state files of the job."""
        directory = self.base / "checkpoints" / "job"
        return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}

    def shared(self, handle: StateHandle) -> set[str]:
        """The files in ``shared/`` that a snapshot names."""
        document = decode_incremental(self.storage.read_bytes(handle), "a document")
        return {file.path for file in document.shared_files()}

    def check(self, handle: StateHandle, expected: bytes) -> None:
        """Both backends can be restored from it, with any parallelism, and have the same rows."""
        for make in BACKENDS:
            with read_keyed_files(self.storage, [handle]) as (found,):
                assert found.source == "primary"
                whole = backend_of(make, files=[found.file])
                parts = [backend_of(make, subtask, 3, [found.file]) for subtask in range(3)]
            for register in (value_of, list_of, map_of, mean_of):
                registered(whole, register)
            assert bytes_of(whole) == expected
            joined = backend_of(HeapBackend, files=[file_of(part) for part in parts])
            assert bytes_of(joined) == expected
            for backend in (whole, *parts):
                backend.close()


def registered(backend: KeyedStateBackend, descriptor: Callable[[], Any]) -> Any:
    """The state of a descriptor."""
    described = descriptor()
    return getattr(backend, f"{described.kind}_state")(described)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job with state of every kind."""
    made = Job(tmp_path)
    made.change(1)
    yield made
    made.backend.close()


@pytest.mark.item("RI-02", "RI-04", "RI-05", "RI-06", "RI-08", "RI-13", "SB-11")
def test_a_snapshot_writes_what_is_new_and_any_backend_restores_it(job: Job) -> None:
    """Files with rows go to ``shared/`` once; the engine's lists and the document to ``chk-N`` each time."""
    first = job.snapshot(1)
    expected = bytes_of(job.backend)
    written = job.files()
    named = job.shared(first)
    assert named
    assert named == {path for path in written if path.startswith("shared/")}
    assert isinstance(first, FileHandle)
    assert {path for path in written if path.startswith("chk-1/")} > {first.path}
    job.check(first, expected)
    job.strategy.confirm(1)
    job.backend.set_current_key("key 1")
    registered(job.backend, value_of).update(77)
    second = job.snapshot(2)
    again = bytes_of(job.backend)
    assert again != expected
    assert job.shared(second) > named
    assert len(job.shared(second) - named) == 1
    assert {path for path in job.files() - written if path.startswith("shared/")} == job.shared(second) - named
    job.check(second, again)
    job.check(first, expected)


@pytest.mark.item("RI-04")
def test_nothing_new_writes_no_rows(job: Job) -> None:
    """All files are named again."""
    first = job.snapshot(1)
    job.strategy.confirm(1)
    assert job.shared(job.snapshot(2)) == job.shared(first)


@pytest.mark.item("RI-03", "RI-07")
@pytest.mark.parametrize("end", ["under way", "aborted", "complete"])
def test_a_file_has_one_handle_whatever_becomes_of_its_checkpoints(job: Job, end: str) -> None:
    """It is written once, as long as the engine has it."""
    job.snapshot(1)
    job.strategy.confirm(1)
    job.change(2)
    second = job.snapshot(2)
    if end == "aborted":
        job.strategy.abort(2)
    if end == "complete":
        job.strategy.confirm(2)
    assert job.shared(job.snapshot(3)) == job.shared(second)
    job.change(3)
    fourth = job.snapshot(4)
    assert job.shared(fourth) > job.shared(second)
    job.check(fourth, bytes_of(job.backend))


@pytest.mark.item("RI-03")
@pytest.mark.parametrize("end", ["aborted", "complete", "under way"])
def test_files_of_an_aborted_checkpoint_go_when_the_engine_has_replaced_them(job: Job, end: str) -> None:
    """Those that another checkpoint may name stay: their deletion is the registry's."""
    first = job.snapshot(1)
    if end == "aborted":
        job.strategy.abort(1)
        job.strategy.confirm(1)
    if end == "complete":
        job.strategy.confirm(1)
        job.strategy.abort(1)
    job.change(2)
    merged(job.backend)
    second = job.snapshot(2)
    assert not job.shared(second) & job.shared(first)
    kept = job.shared(second) if end == "aborted" else job.shared(first) | job.shared(second)
    assert {path for path in job.files() if path.startswith("shared/")} == kept
    job.check(second, bytes_of(job.backend))


@pytest.mark.item("RI-03")
def test_a_file_stays_while_another_checkpoint_may_still_be_acknowledged(job: Job) -> None:
    """One of the two that name it was aborted, and the engine has replaced it; the other one can be restored."""
    aborted, under_way = job.snapshot(1), job.snapshot(2)
    assert job.shared(under_way) == job.shared(aborted)
    expected = bytes_of(job.backend)
    job.strategy.abort(1)
    job.change(2)
    merged(job.backend)
    assert not job.shared(job.snapshot(3)) & job.shared(under_way)
    job.check(under_way, expected)


@pytest.mark.item("RI-03", "RI-11")
def test_a_checkpoint_under_way_keeps_its_files_whatever_is_told_late(job: Job, rng: random.Random) -> None:
    """Several at a time, which the subtask hears about late or never, as their coordinator deletes what it may."""
    registry = SharedFiles(job.storage)
    pending: list[tuple[int, StateHandle, bytes]] = []
    untold: list[tuple[int, bool]] = []
    completed = 0
    for checkpoint_id in range(1, 40):
        job.change(checkpoint_id + 1)
        if rng.random() < 0.2:
            merged(job.backend)
        pending.append((checkpoint_id, job.snapshot(checkpoint_id), bytes_of(job.backend)))
        while pending and rng.random() < 0.5:
            done, handle, expected = pending.pop(0)
            is_complete = rng.random() < 0.8
            untold.append((done, is_complete))
            if is_complete:
                completed += 1
                registry.register(done, [handle])
                registry.release(done)
                for _, held, its_state in [(done, handle, expected), *pending]:
                    with read_keyed_files(job.storage, [held]) as (found,):
                        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == its_state
        while untold and rng.random() < 0.5:
            number, is_complete = untold.pop(0)
            if rng.random() < 0.8:
                (job.strategy.confirm if is_complete else job.strategy.abort)(number)
    assert completed > 3


def test_two_snapshots_at_the_same_time_name_the_same_files(job: Job) -> None:
    """The second one waits for the first, which is held up with its first file."""
    began, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert go_on.wait(30)

    streams: Any = CancelledAt(job.storage.stream_factory(1), 1, hold)
    with ThreadPoolExecutor(2) as pool:
        running = [StrategyRunner(job.strategy, pool).snapshot(1, 0, streams, SnapshotOptions())]
        assert began.wait(30)
        running.append(
            StrategyRunner(job.strategy, pool).snapshot(2, 0, job.storage.stream_factory(2), SnapshotOptions())
        )
        go_on.set()
        first, second = (one.result(30).primary for one in running)
    assert first is not None
    assert second is not None
    assert job.shared(first) == job.shared(second)


@pytest.mark.item("RI-09", "RI-10", "RI-11")
@pytest.mark.parametrize("retained", [1, 3])
def test_shared_files_go_with_the_last_checkpoint_that_names_them(job: Job, retained: int) -> None:
    """Each retained checkpoint can be restored at every time, and what is left is what they name."""
    registry = SharedFiles(job.storage)
    known: dict[int, tuple[StateHandle, bytes]] = {}
    deleted = 0
    for checkpoint_id in range(1, 13):
        job.change(checkpoint_id + 1)
        if checkpoint_id % 4 == 0:
            merged(job.backend)
        known[checkpoint_id] = job.snapshot(checkpoint_id), bytes_of(job.backend)
        job.strategy.confirm(checkpoint_id)
        registry.register(checkpoint_id, [known[checkpoint_id][0]])
        if len(known) > retained:
            oldest = min(known)
            del known[oldest]
            job.storage.delete_checkpoint(oldest)
            deleted += len(registry.release(min(known)))
            assert registry.release(min(known)) == []
        named = set().union(*(job.shared(handle) for handle, _ in known.values()))
        assert {path for path in job.files() if path.startswith("shared/")} == named
        if checkpoint_id % 4 == 0:
            for handle, expected in known.values():
                job.check(handle, expected)
    assert deleted > 5


@pytest.mark.item("RI-11")
def test_after_a_restart_the_registry_knows_what_retained_checkpoints_name(job: Job) -> None:
    """A file that no checkpoint was registered with is left alone: a snapshot under way may name it."""
    handles = []
    for checkpoint_id in (1, 2):
        job.change(checkpoint_id + 1)
        handles.append(job.snapshot(checkpoint_id))
        job.strategy.confirm(checkpoint_id)
    job.change(9)
    under_way = job.snapshot(3)
    restarted = SharedFiles(job.storage)
    for checkpoint_id, handle in zip((2, 1), reversed(handles), strict=True):
        restarted.register(checkpoint_id, [handle])
    restarted.release(2)
    files = {path for path in job.files() if path.startswith("shared/")}
    assert files == job.shared(handles[1]) | job.shared(under_way)


@pytest.mark.item("RI-10", "RI-11", "SP-12")
@pytest.mark.parametrize("retained", [1, 2])
def test_a_savepoint_frees_no_file_that_a_later_checkpoint_names(job: Job, rng: random.Random, retained: int) -> None:
    """It is a checkpoint of the log, and names no file. However many there are between two that do, and whatever fails.

    What is left in the end is what the newest incremental one names.
    """
    registry = SharedFiles(job.storage)
    known: dict[int, tuple[StateHandle, bytes]] = {}
    newest: set[str] = set()
    deleted = held = 0
    for checkpoint_id in range(1, 41):
        if rng.random() < 0.5:
            job.change(checkpoint_id + 1)
        if rng.random() < 0.2:
            merged(job.backend)
        kind = "savepoint" if rng.random() < 0.5 else "checkpoint"
        handle = job.snapshot(checkpoint_id, kind=kind)
        if rng.random() < 0.2:
            job.strategy.abort(checkpoint_id)
            continue
        job.strategy.confirm(checkpoint_id)
        known[checkpoint_id] = handle, bytes_of(job.backend)
        registry.register(checkpoint_id, [handle])
        newest = job.shared(handle) if kind == "checkpoint" else newest
        if len(known) > retained:
            oldest = min(known)
            del known[oldest]
            job.storage.delete_checkpoint(oldest)
            deleted += len(registry.release(min(known)))
        held += kind == "savepoint" and newest <= job.files()
        for kept, expected in known.values():
            with read_keyed_files(job.storage, [kept]) as (found,):
                assert bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
    assert deleted > 5
    assert held > 5
    last = job.snapshot(41)
    job.strategy.confirm(41)
    registry.register(41, [last])
    registry.release(41)
    assert {path for path in job.files() if path.startswith("shared/")} == job.shared(last)
    job.check(last, bytes_of(job.backend))


@pytest.mark.item("RI-11")
def test_a_registration_that_fails_frees_no_file(job: Job) -> None:
    """Of two subtasks, the document of one cannot be read: the registry does not know what the other one names."""
    first = job.snapshot(1)
    job.strategy.confirm(1)
    registry = SharedFiles(job.storage)
    registry.register(1, [first])
    second, expected = job.snapshot(2), bytes_of(job.backend)
    job.change(2)
    merged(job.backend)
    damaged = job.snapshot(3)
    assert isinstance(damaged, FileHandle)
    job.store.delete_file(job.storage.path(damaged.path))
    for handles in ([damaged, second], [second, damaged]):
        with pytest.raises(SnapshotCorrupt):
            registry.register(2, handles)
        assert registry.release(2) == []
    job.check(second, expected)


@pytest.mark.item("RI-12")
def test_a_snapshot_tells_what_it_has_written_and_what_a_restore_reads(job: Job) -> None:
    """The second one has written less, and its whole is what its files have."""
    written: list[int] = []
    for checkpoint_id in (1, 2):
        before = {path: (job.base / "checkpoints/job" / path).stat().st_size for path in job.files()}
        streams = job.storage.stream_factory(checkpoint_id)
        running = StrategyRunner(job.strategy).snapshot(checkpoint_id, 0, streams, SnapshotOptions())
        result = running.result(30)
        assert result.primary is not None
        new = job.files() - before.keys()
        assert result.written_bytes == sum((job.base / "checkpoints/job" / path).stat().st_size for path in new)
        document = decode_incremental(*job.storage.read_shown(result.primary))
        named = sum(file.handle.size_bytes for file in document.files)
        assert result.full_bytes == named + result.primary.size_bytes
        written.append(result.written_bytes)
        assert (result.known_bytes > 0) == (checkpoint_id == 2)
    assert written[1] < written[0]
    savepoint = job.start_savepoint(3)
    assert savepoint.written_bytes == savepoint.full_bytes == len(bytes_of(job.backend))


def test_a_registration_reads_no_large_canonical_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no shared files. A document that would be as large is refused when it is written, and leaves nothing."""
    incremental = job.snapshot(1)
    for key in range(200):
        job.backend.set_current_key(f"key {key}")
        registered(job.backend, value_of).update(key)
    savepoint = job.snapshot(2, kind="savepoint")
    job.change(2)
    merged(job.backend)
    third = job.snapshot(3)
    most_bytes = max(incremental.size_bytes, third.size_bytes)
    assert savepoint.size_bytes > most_bytes
    monkeypatch.setattr(shared_files, "MAX_INCREMENTAL_BYTES", most_bytes)
    recorder = Recorder()
    registry = SharedFiles(Job.storage_on(intercept(job.store, recorder)))
    registry.register(2, [incremental, savepoint])
    assert recorder.names == ["read_file"]
    registry.register(3, [third])
    assert registry.release(2) == []
    assert set(registry.release(3)) == job.shared(incremental)
    monkeypatch.setattr(shared_files, "MAX_INCREMENTAL_BYTES", 1000)
    before = job.files()
    with pytest.raises(StateTooLarge, match=r"the list of \d+ files of RocksDB has \d+ bytes, more than 1000"):
        job.snapshot(4)
    assert job.files() == before


def test_an_earlier_registration_does_not_bring_a_file_back(job: Job) -> None:
    """Whatever the order in which checkpoints are registered, the last one that names a file counts."""
    handle = job.snapshot(1)
    registry = SharedFiles(job.storage)
    registry.register(5, [handle])
    registry.register(1, [handle])
    assert registry.release(5) == []


@pytest.mark.item("RI-02", "SS-06")
def test_the_links_go_with_the_snapshot(job: Job) -> None:
    """Whatever its end is. What the engine replaces meanwhile is still in the snapshot."""
    directory = Path(job.backend.database.path).parent
    name = Path(job.backend.database.path).name

    def links() -> list[str]:
        return [path.name for path in directory.glob(f"{name}-*")]

    view: Any = job.strategy.sync_prepare_resources(SnapshotOptions())
    expected = bytes_of(job.backend)
    (linked,) = links()
    sorted_file = next((directory / linked).glob("*.sst"))
    assert sorted_file.stat().st_nlink == 2
    job.change(2)
    merged(job.backend)
    streams = job.storage.stream_factory(1)
    supplier = job.strategy.async_snapshot(view, 1, 0, streams, SnapshotOptions())
    handle = supplier(CloseableRegistry()).primary
    assert handle is not None
    view.release()
    assert links() == []
    job.check(handle, expected)
    store = intercept(job.store, FailAt(2, NotApplied("no room")))
    with pytest.raises(NotApplied):
        job.snapshot(2, storage=Job.storage_on(store))
    assert links() == []


@pytest.mark.item("SP-12", "SB-11")
def test_a_savepoint_is_the_canonical_file(job: Job) -> None:
    """The same bytes as of the heap; it shares no file."""
    job.snapshot(1)
    job.strategy.confirm(1)
    assert job.storage.read_bytes(job.snapshot(2, kind="savepoint")) == bytes_of(job.backend)


def test_states_that_are_not_registered_are_carried_on(tmp_path: Path, job: Job) -> None:
    """They are in no file of the engine. A state that is registered later is in one."""
    expected = bytes_of(job.backend)
    with read_keyed_files(job.storage, [job.snapshot(1)]) as (found,):
        other = Job(tmp_path / "other", backend_of(RocksDBBackend, files=[found.file]))
    other.check(other.snapshot(1), expected)
    other.strategy.confirm(1)
    other.backend.list_state(list_of())
    other.check(other.snapshot(2), expected)
    other.strategy.confirm(2)
    for register in (value_of, map_of, mean_of):
        registered(other.backend, register)
    handle = other.snapshot(3)
    assert decode_incremental(other.storage.read_bytes(handle), "a document").carried is None
    other.check(handle, expected)
    other.backend.close()


@pytest.mark.item("TT-19")
def test_what_has_expired_stays_expired(tmp_path: Path) -> None:
    """Files hold such values; a restored subtask may be told an earlier time. Lists with gaps are numbered anew."""
    ttl = Ttl("10 minutes")
    backend = backend_of(RocksDBBackend)
    job = Job(tmp_path, backend)
    value, rows = backend.value_state(value_of(ttl)), backend.list_state(list_of(ttl))
    for at, minute in enumerate((0, 4, 8)):
        backend.advance_time(minute * MINUTE_MS)
        for key in ("a", "b") if at else ("a", "gone"):
            backend.set_current_key(key)
            value.update(at)
            rows.add(f"{at}")
    backend.advance_time(11 * MINUTE_MS)
    # Of the list of a, the first element is removed. Whatever else has expired is there.
    backend.tables()["list"].pay(2)  # type: ignore[attr-defined]
    handles = job.snapshot(1), job.snapshot(2, kind="savepoint")
    backend.close()
    for make in BACKENDS:
        for told in (0, 5, 11, 16, 30):
            found = [state_at(job, handle, make, told, ttl) for handle in handles]
            assert found[0] == found[1], told


def state_at(job: Job, handle: StateHandle, make: Any, minute: int, ttl: Ttl) -> list[Any]:
    """What a backend shows that was restored and told a time, and its canonical file."""
    with read_keyed_files(job.storage, [handle]) as (found,):
        backend = backend_of(make, files=[found.file])
    backend.advance_time(minute * MINUTE_MS)
    value, rows = backend.value_state(value_of(ttl)), backend.list_state(list_of(ttl))
    seen: list[Any] = []
    for key in ("a", "b", "gone"):
        backend.set_current_key(key)
        seen += [value.value(), rows.get()]
    seen.append(bytes_of(backend))
    backend.close()
    return seen


@pytest.mark.item("SB-13", "RI-01")
@pytest.mark.parametrize("make", [*BACKENDS, IncrementalStrategy], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("settings", [DriverMemoryStorageSettings(), FileStreamSettings()], ids=["memory", "files"])
def test_any_backend_goes_with_any_storage(tmp_path: Path, make: Any, settings: Any) -> None:
    """State that is small enough travels inline, whatever wrote it. Snapshots are full unless a program says not."""
    backend, change = filled(30, HeapBackend if make is HeapBackend else RocksDBBackend)
    change(1)
    kind: Any = IncrementalStrategy if make is IncrementalStrategy else KeyedStateStrategy
    strategy = kind(backend)
    storage = CheckpointStorage(LocalStore(str(tmp_path)), "job", settings)
    running = StrategyRunner(strategy).snapshot(1, 0, storage.stream_factory(1), SnapshotOptions())
    handle = running.result().primary
    assert handle is not None
    assert is_incremental(storage.read_bytes(handle)) == (make is IncrementalStrategy)
    with read_keyed_files(storage, [handle]) as (found,):
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == bytes_of(backend)
    backend.close()


@pytest.mark.item("RI-14")
def test_four_files_are_written_and_read_at_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first four wait for each other."""

    def together(act: Callable[..., Any]) -> Callable[..., Any]:
        barrier, first = threading.Barrier(4), iter(range(4))

        def one(*arguments: Any) -> Any:
            if next(first, None) is not None:
                barrier.wait(30)
            return act(*arguments)

        return one

    streams: Any = CancelledAt(job.storage.stream_factory(1), 0, lambda: None)
    streams.keep = together(streams.keep)
    running = StrategyRunner(job.strategy).snapshot(1, 0, streams, SnapshotOptions())
    handle = running.result(60).primary
    assert handle is not None
    document = job.storage.read_bytes(handle)
    reads = together(job.storage.read_bytes)
    monkeypatch.setattr(job.storage, "read_bytes", lambda one: document if one == handle else reads(one))
    with read_keyed_files(job.storage, [handle]) as (found,):
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == bytes_of(job.backend)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"last_group": 16}, "key groups"),
        ({"first_group": 3, "last_group": 2}, "key groups"),
        ({"states": "twice"}, "states are not those"),
        ({"expired_ms": {"value": 5}}, "of which states values expire"),
        ({"files": "twice"}, "names a file twice"),
    ],
)
def test_a_document_that_contradicts_itself_is_damage(job: Job, change: dict[str, Any], problem: str) -> None:
    """Its checksum is right: another program wrote it."""
    document = decode_incremental(job.storage.read_bytes(job.snapshot(1)), "a document")
    changed = {name: getattr(document, name) * 2 if value == "twice" else value for name, value in change.items()}
    data = encode_document("incremental-keyed-state", document.model_copy(update=changed))
    with pytest.raises(SnapshotCorrupt, match=problem):
        decode_incremental(data, "a document")


@pytest.mark.item("RI-11", "RI-13")
@pytest.mark.parametrize("path", ["chk-9/_metadata", f"taskowned/{'a' * 32}.state", f"{'a' * 32}.state", "shared"])
def test_a_document_that_shares_files_elsewhere_is_damage(job: Job, path: str) -> None:
    """The registry would delete what another owner has."""
    handle = job.snapshot(1)
    document = decode_incremental(job.storage.read_bytes(handle), "a document")
    made_up = NativeFile(name="999999.sst", handle=FileHandle(path=path, size_bytes=1, crc32=1))
    data = encode_incremental(document.model_copy(update={"files": (*document.files, made_up)}))
    registry = SharedFiles(job.storage)
    with pytest.raises(SnapshotCorrupt, match=f"it names {path} as a file of several checkpoints"):
        registry.register(1, [InlineHandle(data=data)])
    registry.register(1, [handle])
    job.change(2)
    registry.register(2, [job.snapshot(2)])
    assert path not in registry.release(2)


def test_files_of_other_options_of_the_engine_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """More levels than by default, with which RocksDB opens none of them, and values in files of their own."""

    def customize(options: rocksdict.Options) -> None:
        options.set_num_levels(9)
        options.set_enable_blob_files(True)
        options.set_min_blob_size(0)

    groups = group_range(0, 1, MAX_PARALLELISM)
    options = RocksDBOptions(directory=str(tmp_path / "scratch"), customize=customize)
    job = Job(tmp_path, RocksDBBackend(TEXT_KEYS, groups, MAX_PARALLELISM, options=options))
    state = job.backend.value_state(value_of())
    for key in range(1000):
        job.backend.set_current_key(f"{key}")
        state.update(key)
    job.backend.database.column("value").flush()
    engine = job.backend.database._opened.engine
    assert engine is not None
    engine.get_column_family("state-value").compact_range(None, None)
    handle, expected = job.snapshot(1), bytes_of(job.backend)
    job.backend.close()
    with read_keyed_files(job.storage, [handle]) as (found,):
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
        backend = backend_of(RocksDBBackend, files=[found.file])
    assert "the rows of" in caplog.text
    assert "are read, because its files cannot be opened" in caplog.text
    assert bytes_of(backend) == expected
    backend.close()


def test_rows_that_are_in_files_take_no_memory_while_they_are_written(job: Job) -> None:
    """Nor does a view hold the database open: its links are its own."""
    view: Any = job.strategy.sync_prepare_resources(SnapshotOptions())
    assert job.backend.context.frozen == 0
    expected = bytes_of(job.backend)
    job.backend.close()
    supplier = job.strategy.async_snapshot(view, 1, 0, job.storage.stream_factory(1), SnapshotOptions())
    handle = supplier(CloseableRegistry()).primary
    assert handle is not None
    view.release()
    job.check(handle, expected)


def test_an_empty_backend_writes_nothing(tmp_path: Path) -> None:
    """No state is registered."""
    backend = backend_of(RocksDBBackend)
    job = Job(tmp_path, backend)
    running = StrategyRunner(job.strategy).snapshot(1, 0, job.storage.stream_factory(1), SnapshotOptions())
    assert running.result().primary is None
    assert job.files() == set()
    backend.close()


@pytest.mark.item("SS-06", "SS-07")
def test_a_snapshot_that_fails_leaves_nothing(job: Job) -> None:
    """At each call of the store in turn."""
    failed = 0
    while True:
        store = intercept(job.store, FailAt(failed + 1, NotApplied("no room"), only={"create_file"}))
        try:
            handle = job.snapshot(1, storage=Job.storage_on(store))
        except NotApplied:
            assert job.files() == set()
            failed += 1
            continue
        break
    assert failed > 5
    job.check(handle, bytes_of(job.backend))


class CancelledAt:
    """Streams with one of whose files the snapshot is cancelled.

    Args:
        streams: The streams.
        at: The file, counted from 1.
        cancel: Cancels the snapshot.
    """

    def __init__(self, streams: CheckpointStreamFactory, at: int, cancel: Callable[[], object]) -> None:
        self.discard = streams.discard
        self._streams = streams
        self._left = at
        self._cancel = cancel

    def keep(self, data: bytes, scope: Scope) -> StateHandle:
        """Keep it."""
        self._left -= 1
        if not self._left:
            self._cancel()
        return self._streams.keep(data, scope)


@pytest.mark.item("SS-06", "SS-07")
def test_a_snapshot_that_is_cancelled_leaves_nothing(job: Job) -> None:
    """With each of its files in turn, also the last one, which is the document."""
    at, is_cancelled = 0, True
    while is_cancelled:
        at += 1
        registry = CloseableRegistry()
        streams: Any = CancelledAt(job.storage.stream_factory(1), at, registry.close)
        strategy = IncrementalStrategy(job.backend)
        view: Any = strategy.sync_prepare_resources(SnapshotOptions())
        supplier = strategy.async_snapshot(view, 1, 0, streams, SnapshotOptions())
        running = RunningSnapshot(supplier, view, streams)
        running._registry = registry
        try:
            result = running.run()
        except SnapshotCancelled:
            assert job.files() == set(), at
        else:
            is_cancelled = False
            handle = result.primary
    assert handle is not None
    # As many as were kept by the one that was not cancelled: the files, and the document.
    assert at - 1 == len(decode_incremental(job.storage.read_bytes(handle), "a document").files) + 1


@pytest.mark.item("SS-07", "CC-13")
@pytest.mark.parametrize("is_inline", [False, True])
def test_what_comes_too_late_is_deleted_but_for_shared_files(job: Job, is_inline: bool) -> None:
    """By the coordinator: the document, all that it names in ``chk-N``, and pieces of states that are carried on."""
    first = job.snapshot(2)
    before = job.files()
    carried = StrategyRunner(KeyedStateStrategy(job.backend, piece_bytes=400))
    streams = job.storage.stream_factory(3)
    pieces = carried.snapshot(3, 0, streams, SnapshotOptions()).result().primary
    made = job.snapshot(3)
    document = decode_incremental(job.storage.read_bytes(made), "a document").model_copy(update={"carried": pieces})
    data = encode_incremental(document)
    late = InlineHandle(data=data) if is_inline else streams.keep(data, Scope.EXCLUSIVE)
    assert len(job.files() - before) > 12
    # Nothing is known of what cannot be read, and what another checkpoint has is left alone.
    with_all = job.files()
    assert not discard(job.storage, 4, late)
    assert not discard(job.storage, 3, first)
    assert job.files() == with_all
    assert discard(job.storage, 3, late)
    assert isinstance(made, FileHandle)
    assert job.files() == before | job.shared(made) | {made.path}
    assert discard(job.storage, 3, late)
    job.check(first, bytes_of(job.backend))


def test_of_what_comes_too_late_nothing_goes_that_the_checkpoint_names(job: Job) -> None:
    """Neither its files, nor itself; nor a file of another checkpoint, whatever a document says."""
    first = job.snapshot(2)
    handle = job.snapshot(3)
    document = decode_incremental(job.storage.read_bytes(handle), "a document")
    lists = [file.handle for file in document.files if not file.name.endswith(".sst")]
    assert len(lists) > 1
    operators = {"o": OperatorState(parallelism=1, subtasks=(SubtaskState(subtask=0, handle=lists[0]),))}
    checkpoint = CheckpointMetadata(
        checkpoint_id=3,
        kind="checkpoint",
        job="job",
        epoch=1,
        nonce="n" * 32,
        log_id="c" * 32,
        predecessor=None,
        ids_ahead=1,
        time_ms=1,
        writer="0",
        operators=operators,
    )
    job.storage.create_checkpoint(checkpoint)
    named = NativeFile(name="CURRENT", handle=FileHandle(path="chk-3/_metadata", size_bytes=1, crc32=1))
    other = NativeFile(name="MANIFEST", handle=first)
    above = FileHandle(path=f"{'a' * 32}.state", size_bytes=1, crc32=1)
    job.store.create_file(f"job/{above.path}", b"x")
    made_up = document.model_copy(update={"files": (*document.files, named, other), "carried": above})
    late = job.storage.stream_factory(3).keep(encode_incremental(made_up), Scope.EXCLUSIVE)
    before = job.files()
    assert discard(job.storage, 3, late)
    assert isinstance(late, FileHandle)
    assert before - job.files() == {late.path} | {one.path for one in lists[1:] if isinstance(one, FileHandle)}
    job.check(first, bytes_of(job.backend))


@pytest.mark.item("RI-13")
def test_a_file_that_is_damaged_or_gone_refuses_the_restore(job: Job, tmp_path: Path) -> None:
    """Each file in turn; nothing of the restore is left on this machine."""
    handle = job.snapshot(1)
    expected = bytes_of(job.backend)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in sorted(job.files()):
        path = tmp_path / "checkpoints" / "job" / name
        data = path.read_bytes()
        # Its bytes with one more are of another length; those with another bit are not.
        other = bytes((data[0] ^ 1,)) + data[1:] if data else b"x"
        for damaged in (None, data[:-1] or b"y", data + b"x", other):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            restore = read_keyed_files(job.storage, [handle], directory=str(scratch))
            with pytest.raises(SnapshotCorrupt) as raised, restore:
                pass
            assert name in str(raised.value)
            assert list(scratch.iterdir()) == []
        path.write_bytes(data)
    job.check(handle, expected)


# Files that a backend opens


def opened(job: Job, handle: StateHandle) -> RocksDBBackend:
    """A backend that begins with the files of a snapshot; none of its rows is read."""
    with read_keyed_files(job.storage, [handle]) as (found,), pytest.MonkeyPatch.context() as patched:
        patched.setattr(NativeRows, "some", _refuse)
        backend = backend_of(RocksDBBackend, files=[found.file])
    assert isinstance(backend, RocksDBBackend)
    return backend


def _refuse(_rows: object, group: int) -> Any:
    raise AssertionError(f"rows of key group {group} were read")


def unchanged(_backend: KeyedStateBackend) -> None:
    """No state is registered."""


def registers(backend: KeyedStateBackend) -> None:
    """One state is registered, and changed."""
    registered(backend, value_of)
    backend.set_current_key("key 3")
    registered(backend, value_of).update(-3)


def registers_all(backend: KeyedStateBackend) -> None:
    """All are, and lists grow."""
    for register in (value_of, list_of, map_of, mean_of):
        registered(backend, register)
    backend.set_current_key("key 4")
    registered(backend, list_of).add("more")
    registered(backend, map_of).remove(1)


def renames(backend: KeyedStateBackend) -> None:
    """A state has another name now, and another one is begun."""
    backend.list_state(ListStateDescriptor("rows", TextCodec(), formerly="list"))
    backend.set_current_key("key 5")
    backend.list_state(ListStateDescriptor("new", TextCodec())).add("anew")


def drops(backend: KeyedStateBackend) -> None:
    """A state is of no use any more, and another one is begun."""
    backend.drop_state("map")
    backend.set_current_key("key 6")
    backend.map_state(MapStateDescriptor("new", KeyCodec("integer"), TextCodec())).put(1, "anew")


def converts(backend: KeyedStateBackend) -> None:
    """Values are in another codec now, in one state under another name."""
    floats = ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), float),))
    backend.value_state(floats)
    backend.list_state(ListStateDescriptor("rows", Int64Codec(), formerly="list", earlier=(Earlier(TextCodec(), int),)))
    backend.set_current_key("key 7")
    backend.list_state(ListStateDescriptor("new", TextCodec())).add("anew")


@pytest.mark.item("SB-11", "RI-13")
@pytest.mark.parametrize("program", [unchanged, registers, registers_all, renames, drops, converts])
def test_what_is_opened_goes_on_as_what_is_read(job: Job, program: Callable[[KeyedStateBackend], None]) -> None:
    """Whatever the next program does with its states; further snapshots of either kind have all of them."""
    handle = job.snapshot(1)
    with read_keyed_files(job.storage, [handle]) as (found,):
        read = backend_of(HeapBackend, files=[found.file])
    backend = opened(job, handle)
    for number, change in ((2, program), (3, unchanged)):
        change(read)
        change(backend)
        expected = bytes_of(read)
        assert bytes_of(backend) == expected
        job.strategy = IncrementalStrategy(backend)
        handle = job.snapshot(number)
        assert decode_incremental(job.storage.read_bytes(handle), "a document").carried is None
        backend.close()
        with read_keyed_files(job.storage, [handle]) as (found,):
            assert bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
        backend = opened(job, handle)
        assert bytes_of(backend) == expected
        read = backend_of(HeapBackend, files=[file_of(read)])
    backend.close()


def test_a_value_that_cannot_be_converted_leaves_what_was_opened(job: Job) -> None:
    """The error names it, and the state is carried on as it was; so is one that another program asks for wrongly."""
    expected = bytes_of(job.backend)
    backend = opened(job, job.snapshot(1))

    def refuse(value: int) -> float:
        raise ValueError(f"{value} is too much")

    wrong: list[Any] = [
        ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), refuse),)),
        ValueStateDescriptor("list", Int64Codec()),
    ]
    for described in wrong:
        with pytest.raises(PartfileError):
            backend.value_state(described)
        assert bytes_of(backend) == expected
    backend.close()


def test_a_full_disk_at_a_conversion_loses_nothing_of_what_was_opened(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows before are in no file any more; the next snapshot has them."""
    expected = bytes_of(job.backend)
    backend = opened(job, job.snapshot(1))

    def full(_rows: SortedRows, _pairs: object) -> None:
        raise StoreError("no space")

    floats = ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), float),))
    with monkeypatch.context() as patched:
        patched.setattr(SortedRows, "write", full)
        with pytest.raises(StoreError, match="no space"):
            backend.value_state(floats)
    assert bytes_of(backend) == expected
    job.strategy = IncrementalStrategy(backend)
    job.check(job.snapshot(2), expected)
    backend.value_state(floats)
    backend.close()


def test_a_value_of_an_opened_file_that_cannot_be_decoded_is_named(job: Job) -> None:
    """By state, key group and codec, as the heap names it when the state is asked for."""
    backend = opened(job, job.snapshot(1))
    codec = PairCodec[str]("text", str.encode, lambda _data: str("".index("no text")))
    codec.info = TextCodec().info
    rows = backend.list_state(ListStateDescriptor("list", codec))
    backend.set_current_key("key 1")
    with pytest.raises(SnapshotCorrupt, match=r"state 'list', key group [0-9]+, codec 'text': .* cannot decode"):
        rows.get()
    backend.close()


def test_a_view_of_what_was_opened_is_of_its_instant(job: Job) -> None:
    """Whatever the states that it holds become afterwards, and however late it is written."""
    expected = bytes_of(job.backend)
    backend = opened(job, job.snapshot(1))
    view = backend.freeze()
    registers_all(backend)
    backend.drop_state("largest")
    backend.close()
    assert encode_keyed_state(view) == expected
    view.release()


def test_files_of_another_range_of_key_groups_are_read(job: Job) -> None:
    """Only those of the very range are opened."""
    handle, expected = job.snapshot(1), bytes_of(job.backend)
    with read_keyed_files(job.storage, [handle]) as (found,):
        made = [backend_of(RocksDBBackend, subtask, 2, [found.file]) for subtask in range(2)]
    assert bytes_of(backend_of(HeapBackend, files=[file_of(one) for one in made])) == expected
    for one in made:
        one.close()


def test_the_files_that_were_opened_are_links(tmp_path: Path) -> None:
    """On one disk no byte is copied; the files of the restore stay as they are."""
    job = LinkedJob(tmp_path)
    job.change(1)
    handle, expected = job.snapshot(1), bytes_of(job.backend)
    options = RocksDBOptions(directory=str(tmp_path / "engine"))
    with read_keyed_files(job.storage, [handle], job.local, str(tmp_path / "scratch")) as (found,):
        made = partial(RocksDBBackend, options=options)
        backends = [backend_of(made, files=[found.file]) for _ in range(2)]
        for backend in backends:
            registers_all(backend)
            assert isinstance(backend, RocksDBBackend)
            assert identities(sorted(Path(backend.database.path).glob("*.sst"))) & identities(job.links(1))
            backend.close()
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
    job.backend.close()


# Copies on this machine


# The files of the restored checkpoint, which the next ones may name.


def reopened(job: Job, handle: StateHandle, *, claims: CheckpointStorage | None = None) -> None:
    """Have the job go on from a snapshot, as another process."""
    job.backend.close()
    job.backend = opened(job, handle)
    job.strategy = IncrementalStrategy(job.backend, claims=claims)
    states = [registered(job.backend, register) for register in (value_of, list_of)]

    def change(number: int) -> None:
        for key in range(30):
            job.backend.set_current_key(f"key {key}")
            states[0].update(number)
            states[1].add(f"{number}")

    job._change = change


@pytest.mark.item("RI-04")
@pytest.mark.parametrize("is_claimed", [True, False])
def test_the_first_snapshot_after_a_restore_names_files_that_it_claims(job: Job, is_claimed: bool) -> None:
    """And writes none of them again; without a claim it writes all."""
    first, expected = job.snapshot(1), bytes_of(job.backend)
    reopened(job, first, claims=job.storage_on(LocalStore(str(job.base / "checkpoints"))) if is_claimed else None)
    second = job.snapshot(2)
    assert len(job.shared(first)) > 2
    if is_claimed:
        assert job.shared(second) == job.shared(first)
    else:
        assert not job.shared(second) & job.shared(first)
    job.check(second, expected)
    job.change(2)
    third = job.snapshot(3)
    assert job.shared(third) > job.shared(second)
    job.check(third, bytes_of(job.backend))


@pytest.mark.item("RI-03", "RI-11")
def test_claimed_files_are_deleted_by_the_registry_alone(job: Job) -> None:
    """Not when the engine has replaced them, and not when a checkpoint is aborted: the restored one names them."""
    first, expected = job.snapshot(1), bytes_of(job.backend)
    reopened(job, first, claims=job.storage)
    job.snapshot(2)
    job.strategy.abort(2)
    job.change(2)
    merged(job.backend)
    third = job.snapshot(3)
    replaced = job.shared(first) - job.shared(third)
    assert replaced
    job.check(first, expected)
    registry = SharedFiles(job.storage)
    registry.register(1, [first])
    registry.register(3, [third])
    assert set(registry.release(3)) == replaced
    job.check(third, bytes_of(job.backend))


def test_files_of_another_job_are_not_claimed(tmp_path: Path, job: Job) -> None:
    """Nor those that are not there any more, whose links were read, nor by a second strategy of a backend."""
    first, expected = job.snapshot(1), bytes_of(job.backend)
    elsewhere = CheckpointStorage(LocalStore(str(tmp_path / "elsewhere")), "job")
    other_job = CheckpointStorage(job.store, "other")
    for at, claims in enumerate((elsewhere, other_job)):
        reopened(job, first, claims=claims)
        assert not job.shared(job.snapshot(2 + at)) & job.shared(first)
    reopened(job, first, claims=job.storage)
    job.strategy = IncrementalStrategy(job.backend, claims=job.storage)
    assert not job.shared(job.snapshot(5)) & job.shared(first)
    reopened(job, first, claims=job.storage)
    gone = min(job.shared(first))
    job.store.delete_file(f"job/{gone}")
    sixth = job.snapshot(6)
    assert job.shared(sixth) & job.shared(first) == job.shared(first) - {gone}
    job.check(sixth, expected)


@pytest.mark.parametrize("store", [LocalStore, MemoryMetadataStore])
def test_a_file_that_is_cut_in_the_storage_is_not_claimed(tmp_path: Path, store: Any) -> None:
    """A restore that read a link does not see it. It is written again, and the others are named."""
    job = LinkedJob(tmp_path)
    job.change(1)
    job.store = LocalStore(str(tmp_path / "other")) if store is LocalStore else MemoryMetadataStore()
    job.storage = job.storage_on(job.store)
    first, expected = job.snapshot(1), bytes_of(job.backend)
    cut, *others = sorted(job.shared(first))
    path = job.storage.path(cut)
    data = job.store.read_file(path, 1 << 20)
    job.store.delete_file(path)
    job.store.create_file(path, data[:-1])
    with read_keyed_files(job.storage, [first], job.local) as (found,):
        assert found.source == "local"
        backend = backend_of(RocksDBBackend, files=[found.file])
    assert isinstance(backend, RocksDBBackend)
    job.strategy = IncrementalStrategy(backend, claims=job.storage)
    second = job.snapshot(2)
    assert job.shared(second) & job.shared(first) == set(others)
    assert len(job.shared(second)) == len(job.shared(first))
    job.check(second, expected)
    backend.close()
    job.backend.close()


def test_files_are_claimed_where_the_next_checkpoints_are(tmp_path: Path, job: Job) -> None:
    """Another server may have the address of the one that was read, and none of its files."""
    first, second = (job.storage_on(MemoryMetadataStore()) for _ in range(2))
    handle, expected = job.snapshot(1, storage=first), bytes_of(job.backend)
    for claims, is_claimed in ((second, False), (first, True)):
        with read_keyed_files(first, [handle]) as (found,):
            backend: Any = backend_of(RocksDBBackend, files=[found.file])
        strategy = IncrementalStrategy(backend, claims=claims)
        other = Job(tmp_path / f"{is_claimed}", backend)
        other.strategy, other.storage = strategy, claims
        again = other.snapshot(2)
        job.storage = first
        assert bool(other.shared(again) & job.shared(handle)) == is_claimed
        other.check(again, expected)
        other.backend.close()


@pytest.mark.item("RI-03", "RI-11")
def test_runs_that_claim_and_die_lose_no_file(job: Job, rng: random.Random) -> None:
    """Each goes on from the newest complete checkpoint, with a registry that is told of the retained one alone.

    Checkpoints are complete late or never, and their subtask hears of it late or never.
    """
    newest, expected = job.snapshot(1), bytes_of(job.backend)
    registry = SharedFiles(job.storage)
    registry.register(1, [newest])
    pending: list[tuple[int, StateHandle, bytes]] = []
    runs = claimed = 0
    for checkpoint_id in range(2, 50):
        if rng.random() < 0.15:
            before = job.shared(newest)
            reopened(job, newest, claims=job.storage)
            pending, registry, runs = [], SharedFiles(job.storage), runs + 1
            registry.register(checkpoint_id - 1, [newest])
            handle = job.snapshot(checkpoint_id)
            claimed += bool(job.shared(handle) & before)
            pending.append((checkpoint_id, handle, bytes_of(job.backend)))
            continue
        job.change(checkpoint_id)
        if rng.random() < 0.2:
            merged(job.backend)
        pending.append((checkpoint_id, job.snapshot(checkpoint_id), bytes_of(job.backend)))
        while pending and rng.random() < 0.5:
            done, handle, state = pending.pop(0)
            is_complete = rng.random() < 0.7
            if rng.random() < 0.7:
                (job.strategy.confirm if is_complete else job.strategy.abort)(done)
            if is_complete:
                newest, expected = handle, state
                registry.register(done, [handle])
                registry.release(done)
        for _, handle, state in [(0, newest, expected), *pending]:
            with read_keyed_files(job.storage, [handle]) as (found,):
                assert bytes_of(backend_of(HeapBackend, files=[found.file])) == state
    assert runs > 2
    assert claimed > 1


class LinkedJob(Job):
    """One whose snapshots leave links on this machine."""

    def __init__(self, base: Path) -> None:
        options = RocksDBOptions(directory=str(base / "engine"))
        backend, change = filled(30, partial(RocksDBBackend, options=options))
        super().__init__(base, backend)
        self._change = change
        self.local = LocalStateStore(LocalStore(str(base / "local")), "job/operator/0")
        self.strategy = IncrementalStrategy(self.backend, self.local)

    def links(self, checkpoint_id: int) -> list[Path]:
        """Those of one checkpoint."""
        return sorted((self.base / "local" / "job/operator/0" / f"chk-{checkpoint_id}").glob("*.link"))

    def engine_files(self) -> list[Path]:
        """The files of the database with rows."""
        return sorted(Path(self.backend.database.path).glob("*.sst"))

    def lose_files(self, handle: StateHandle) -> None:
        """Delete all that the checkpoint names in its storage, but for its document."""
        for file in decode_incremental(self.storage.read_bytes(handle), "a document").files:
            if isinstance(file.handle, FileHandle):
                self.store.delete_file(self.storage.path(file.handle.path))

    def check_read(self, handle: StateHandle, expected: bytes, source: str) -> None:
        """A restore, in this process or another, says from where it was read, and has the same rows."""
        for local in (self.local, LocalStateStore(LocalStore(str(self.base / "local")), "job/operator/0")):
            with read_keyed_files(self.storage, [handle], local) as (found,):
                assert found.source == source
                backend = backend_of(HeapBackend, files=[found.file])
            for register in (value_of, list_of, map_of, mean_of):
                registered(backend, register)
            assert bytes_of(backend) == expected


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedJob]:
    """A job with state of every kind, whose snapshots leave links."""
    made = LinkedJob(tmp_path)
    made.change(1)
    yield made
    made.backend.close()


def identities(paths: list[Path]) -> set[int]:
    return {path.stat().st_ino for path in paths}


@pytest.mark.item("LR-01", "LR-06", "LR-13")
def test_copies_of_an_incremental_snapshot_are_links(linked: LinkedJob) -> None:
    """To the engine's own files. A restore needs nothing else, and leaves them whole for the next one."""
    handle = linked.snapshot(1)
    assert identities(linked.engine_files()) < identities(linked.links(1))
    expected = bytes_of(linked.backend)
    linked.lose_files(handle)
    for _ in range(2):
        linked.check_read(handle, expected, "local")
    with pytest.raises(SnapshotCorrupt, match="is missing"), read_keyed_files(linked.storage, [handle]):
        pass


@pytest.mark.item("LR-05", "LR-13")
def test_each_checkpoint_has_links_to_all_its_files(linked: LinkedJob) -> None:
    """To those as well that an earlier one has written; the copies of checkpoints go as all copies do."""
    linked.snapshot(1)
    linked.backend.set_current_key("key 1")
    registered(linked.backend, value_of).update(77)
    handle = linked.snapshot(2)
    expected = bytes_of(linked.backend)
    assert identities(linked.engine_files()) & identities(linked.links(1)) & identities(linked.links(2))
    linked.lose_files(handle)
    linked.local.confirm(2)
    assert linked.links(1) == []
    linked.check_read(handle, expected, "local")
    linked.local.abort(2)
    assert linked.links(2) == []
    assert linked.snapshot(3, kind="savepoint") is not None
    assert linked.links(3) == []


@pytest.mark.item("SS-07", "LR-16")
@pytest.mark.parametrize("when", ["before the links", "after the links", "at the end"])
def test_a_snapshot_that_is_cancelled_as_it_ends_leaves_no_links(
    linked: LinkedJob, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor anything of its own in the storage. Files of rows are there for the next snapshot, or are deleted by one."""
    running: list[RunningSnapshot] = []
    link = linked.local.link

    def cancelled(checkpoint_id: int, files: Any) -> bool:
        if when == "before the links":
            running[0].cancel()
        is_kept = link(checkpoint_id, files)
        assert linked.links(1)
        if when == "after the links":
            running[0].cancel()
        return is_kept

    monkeypatch.setattr(linked.local, "link", cancelled)
    streams = linked.storage.stream_factory(1)
    view: Any = linked.strategy.sync_prepare_resources(SnapshotOptions())
    supplier = linked.strategy.async_snapshot(view, 1, 0, streams, SnapshotOptions())

    def supply(registry: CloseableRegistry) -> SnapshotResult:
        result = supplier(registry)
        assert len(linked.files()) > 5
        running[0].cancel()
        return result

    running.append(RunningSnapshot(supply, view, streams))
    with pytest.raises(SnapshotCancelled):
        running[0].run()
    monkeypatch.undo()
    assert linked.links(1) == []
    left = linked.files()
    assert left
    assert all(path.startswith("shared/") for path in left)
    linked.strategy.abort(1)
    linked.change(2)
    merged(linked.backend)
    handle = linked.snapshot(2)
    assert not linked.files() & left
    linked.check(handle, bytes_of(linked.backend))


@pytest.mark.item("LR-06", "LR-07", "LR-13")
def test_a_file_whose_link_is_damaged_is_read_from_the_storage(linked: LinkedJob) -> None:
    """Each in turn; the others are read from this machine all the same."""
    handle = linked.snapshot(1)
    expected = bytes_of(linked.backend)
    for link in linked.links(1):
        data = link.read_bytes()
        for damaged in (None, data[:-1], bytes((data[0] ^ 1,)) + data[1:]):
            # Another file in its place: the engine has the bytes of the link.
            link.unlink(missing_ok=True)
            if damaged is not None:
                link.write_bytes(damaged)
            linked.check_read(handle, expected, "primary")
        link.unlink(missing_ok=True)
        link.write_bytes(data)
    linked.lose_files(handle)
    linked.check_read(handle, expected, "local")


@pytest.mark.item("LR-06")
def test_what_travels_inline_is_from_nowhere_on_this_machine(
    linked: LinkedJob, caplog: pytest.LogCaptureFixture
) -> None:
    """Where files have links beside it, these count; where there is nothing else, the checkpoint does."""
    caplog.set_level("INFO", "partfile")
    inline_all = CheckpointStorage(linked.store, "all", FileStreamSettings())
    inline_some = CheckpointStorage(linked.store, "some", FileStreamSettings(inline_threshold_bytes=100))
    for number, storage, source in ((1, inline_all, "primary"), (2, inline_some, "local")):
        linked.strategy = IncrementalStrategy(linked.backend, linked.local)
        handle = linked.snapshot(number, storage=storage)
        document = decode_incremental(storage.read_bytes(handle), "a document")
        files = [file for file in document.files if isinstance(file.handle, FileHandle)]
        assert bool(files) == (source == "local")
        assert len(files) < len(document.files)
        caplog.clear()
        with read_keyed_files(storage, [handle], linked.local) as (found,):
            assert found.source == source
        assert f"of the {len(document.files)} files of" in caplog.text
        assert f", {len(files)} are from this machine" in caplog.text


@pytest.mark.item("LR-06")
@pytest.mark.parametrize("piece_bytes", [400, 64 << 20])
def test_states_that_are_carried_on_are_read_from_the_storage(linked: LinkedJob, piece_bytes: int) -> None:
    """This machine has no copy of them, though it has links to all files of the engine."""
    handle = linked.snapshot(3)
    streams = linked.storage.stream_factory(3)
    canonical = StrategyRunner(KeyedStateStrategy(linked.backend, piece_bytes=piece_bytes))
    carried = canonical.snapshot(3, 0, streams, SnapshotOptions()).result().primary
    document = decode_incremental(linked.storage.read_bytes(handle), "a document")
    with_carried = streams.keep(encode_incremental(document.model_copy(update={"carried": carried})), Scope.EXCLUSIVE)
    for one, source in ((handle, "local"), (with_carried, "primary")):
        with read_keyed_files(linked.storage, [one], linked.local) as (found,):
            assert found.source == source


@pytest.mark.item("LR-02", "LR-14")
def test_links_that_cannot_be_made_fail_no_checkpoint(
    linked: LinkedJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On another disk, of which the log speaks once; and in a store that is not on this machine."""
    with small_disk(tmp_path / "disk", "1m") as disk, LocalStore(str(disk)) as store:
        for local, times in ((store, 1), (MemoryMetadataStore(), 2)):
            caplog.clear()
            linked.strategy = IncrementalStrategy(linked.backend, LocalStateStore(local, "sub"))
            handles = [linked.snapshot(number) for number in (1, 2)]
            assert caplog.text.count("the snapshot has no local copy") == times
            assert not list(disk.rglob("*.link"))
            linked.check_read(handles[1], bytes_of(linked.backend), "primary")


@pytest.mark.item("LR-02")
def test_a_kill_between_two_links_harms_no_copy(linked: LinkedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the checkpoint before are whole; and the checkpoint is tried again under its id."""
    first = linked.snapshot(1)
    expected = bytes_of(linked.backend)
    linked.change(2)
    link, made = os.link, list[object]()

    def killed(source: str, target: Path, **of_store: Any) -> None:
        if not of_store:
            if len(made) == 2:
                raise SimulatedCrash
            made.append(target)
        link(source, target, **of_store)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", killed)
        with pytest.raises(SimulatedCrash):
            linked.snapshot(2)
    assert len(linked.links(2)) == len(made) == 2
    second = linked.snapshot(2)
    linked.check_read(first, expected, "local")
    linked.lose_files(second)
    linked.check_read(second, bytes_of(linked.backend), "local")


def test_a_full_disk_of_this_machine_refuses_the_restore(job: Job, tmp_path: Path) -> None:
    """A real one; nothing is left there, and the storage's files are as they were."""
    handle = job.snapshot(1)
    with small_disk(tmp_path / "disk", "8k") as disk:
        restore = read_keyed_files(job.storage, [handle], directory=str(disk))
        with pytest.raises(StoreError, match="No space left on device") as raised, restore:
            pass
        assert "directory='/var/tmp'" in raised.value.hint
        assert list(disk.iterdir()) == []
    job.check(handle, bytes_of(job.backend))


def test_a_link_that_is_gone_fails_the_snapshot(job: Job) -> None:
    """Nothing of it is left in the storage."""
    view: Any = job.strategy.sync_prepare_resources(SnapshotOptions())
    supplier = job.strategy.async_snapshot(view, 1, 0, job.storage.stream_factory(1), SnapshotOptions())
    # A directory in the place of a file, and the last name of all.
    Path(view.directory, "zzz.sst").mkdir()
    with pytest.raises(StoreError, match=r"zzz\.sst cannot be read"):
        supplier(CloseableRegistry())
    assert job.files() == set()
    Path(view.directory, "zzz.sst").rmdir()
    view.release()


def test_a_child_of_a_fork_is_refused_and_does_not_hang(job: Job) -> None:
    """While the files of a restore are open. The parent goes on."""
    handle = job.snapshot(1)
    with read_keyed_files(job.storage, [handle]) as (found,):
        directory = found.file._files._directory  # type: ignore[attr-defined]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ConfigError, match="was forked"):
                    list(found.file.rows(0))
                found.file.close()  # type: ignore[attr-defined]
                code = 0
            finally:
                os._exit(code)
        assert ended(child) == 0
        assert Path(directory).exists()
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == bytes_of(job.backend)
    assert not Path(directory).exists()


@pytest.mark.item("RI-03", "RI-11", "SS-06")
def test_a_kill_at_any_call_leaves_a_checkpoint_that_can_be_restored(tmp_path: Path) -> None:
    """Of snapshots, registrations and deletions: the newest complete checkpoint has all its files."""

    def life(job: Job, storage: CheckpointStorage, complete: dict[int, tuple[StateHandle, bytes]]) -> None:
        registry = SharedFiles(storage)
        for checkpoint_id in (1, 2, 3):
            job.change(checkpoint_id + 1)
            handle = job.snapshot(checkpoint_id, storage=storage)
            complete[checkpoint_id] = handle, bytes_of(job.backend)
            job.strategy.confirm(checkpoint_id)
            registry.register(checkpoint_id, [handle])
            storage.delete_checkpoint(checkpoint_id - 1)
            registry.release(checkpoint_id)

    def begun(name: str) -> Job:
        job = Job(tmp_path / name)
        job.change(1)
        return job

    recorder = Recorder()
    job = begun("counted")
    life(job, Job.storage_on(intercept(job.store, recorder)), {})
    job.backend.close()
    calls = len(recorder.calls)
    assert calls > 20
    for at in range(1, calls + 1):
        for when in SIDES:
            job = begun(f"{at}-{when}")
            complete: dict[int, tuple[StateHandle, bytes]] = {}
            with pytest.raises((SimulatedCrash, PartfileError)):
                life(job, Job.storage_on(intercept(job.store, CrashAt(at, when))), complete)
            if complete:
                handle, expected = complete[max(complete)]
                with read_keyed_files(job.storage, [handle]) as (found,):
                    assert bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
            job.backend.close()


@pytest.mark.item("RI-04", "SB-07")
def test_after_changing_one_row_in_a_hundred_little_is_written(tmp_path: Path) -> None:
    """At most a tenth of all."""
    backend = backend_of(RocksDBBackend)
    job = Job(tmp_path, backend)
    state = backend.value_state(ValueStateDescriptor("state", BytesCodec()))
    for key in range(5000):
        backend.set_current_key(f"{key}")
        state.update(os.urandom(200))

    def written() -> int:
        return sum((tmp_path / "checkpoints" / "job" / name).stat().st_size for name in job.files())

    job.snapshot(1)
    job.strategy.confirm(1)
    full = written()
    for key in range(0, 5000, 100):
        backend.set_current_key(f"{key}")
        state.update(os.urandom(200))
    handle = job.snapshot(2)
    assert written() - full < full / 10
    with read_keyed_files(job.storage, [handle]) as (found,):
        assert bytes_of(backend_of(HeapBackend, files=[found.file])) == bytes_of(backend)
    backend.close()


def merged(backend: Any) -> None:
    """Have the engine merge all its files."""
    for state in ("value", "list", "map", "mean"):
        backend.database.column(state).flush()
        engine = backend.database._opened.engine
        engine.get_column_family(f"state-{state}").compact_range(None, None)
