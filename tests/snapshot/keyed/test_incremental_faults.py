"""A store that fails, or a kill, at each call of a restore of incremental snapshots, and of the deletion of files."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from partfile.errors import NotApplied, NotFound, OutcomeUnknown, SnapshotCorrupt, StoreError
from partfile.snapshot.keyed.codecs import TextCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import SharedFiles, decode_incremental, encode_incremental
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.retention import JobEnd, Retention, end_job
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import Scope
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryFiles, MemoryMetadataStore
from partfile.testing.faults import CrashAt, FailAt, Recorder, SimulatedCrash, intercept
from support.state.keyed import backend_of, bytes_of, filled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.snapshot.documents import StateHandle
    from partfile.testing.faults import When

SIDES: tuple[When, When] = ("before", "after")
CARRIED = ValueStateDescriptor("carried", TextCodec())


class Way(NamedTuple):
    """How a restore uses what it has read."""

    make: Any
    subtasks: int


WAYS = {
    "files are opened": Way(RocksDBBackend, 1),
    "rows are taken into RocksDB": Way(RocksDBBackend, 2),
    "rows are taken into the heap": Way(HeapBackend, 1),
}


def storage_on(store: Any) -> CheckpointStorage:
    """The checkpoints of the job in a store, each state in a file."""
    return CheckpointStorage(store, "job", FileStreamSettings(inline_threshold_bytes=0))


def snapshot(strategy: Any, storage: CheckpointStorage, checkpoint_id: int) -> StateHandle:
    """Take one; returns its handle."""
    streams = storage.stream_factory(checkpoint_id)
    handle = StrategyRunner(strategy).snapshot(checkpoint_id, 0, streams, SnapshotOptions()).result(30).primary
    assert handle is not None
    return handle


def with_carried(storage: CheckpointStorage, handle: StateHandle, checkpoint_id: int) -> StateHandle:
    """An incremental snapshot with a state more, which is in no file of the engine but in pieces of its own."""
    other = backend_of(HeapBackend)
    state = other.value_state(CARRIED)
    for key in range(30):
        other.set_current_key(f"key {key}")
        state.update("x" * 40)
    carried = snapshot(KeyedStateStrategy(other, piece_bytes=1000), storage, checkpoint_id)
    document = decode_incremental(storage.read_bytes(handle), "a document").model_copy(update={"carried": carried})
    return storage.stream_factory(checkpoint_id).keep(encode_incremental(document), Scope.EXCLUSIVE)


def restored(
    way: Way, handle: StateHandle, directory: Path, storage: CheckpointStorage, local: LocalStateStore | None = None
) -> bytes:
    """Restore a snapshot, as a program does; returns the canonical files of its subtasks one after the other.

    Args:
        way: How.
        handle: Of the snapshot.
        directory: For the files of RocksDB, those that are read and those of the backends.
        storage: Of the checkpoint.
        local: The links on this machine.
    """
    make = way.make
    if make is RocksDBBackend:
        make = partial(RocksDBBackend, options=RocksDBOptions(directory=str(directory)))
    made = []
    try:
        with read_keyed_files(storage, [handle, handle], local, str(directory)) as (found, _):
            made += [backend_of(make, subtask, way.subtasks, [found.file]) for subtask in range(way.subtasks)]
        return b"".join(bytes_of(backend) for backend in made)
    finally:
        for backend in made:
            backend.close()


def files_below(directory: Path) -> set[str]:
    """All that is there: files and directories."""
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*")}


@pytest.fixture(scope="module")
def kept() -> tuple[MemoryFiles, StateHandle]:
    """An incremental snapshot with states of every kind and one that is carried on in pieces, and what keeps it."""
    files = MemoryFiles()
    storage = storage_on(MemoryMetadataStore(files))
    backend, change = filled(30, RocksDBBackend)
    change(1)
    assert isinstance(backend, RocksDBBackend)
    handle = with_carried(storage, snapshot(IncrementalStrategy(backend), storage, 1), 1)
    backend.close()
    return files, handle


# The restore


@pytest.mark.item("RI-13", "SS-06")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (NotApplied("no route"), NotApplied),
        (OutcomeUnknown("no answer"), OutcomeUnknown),
        (NotFound("not there"), SnapshotCorrupt),
        (SimulatedCrash("the process ends"), SimulatedCrash),
    ],
    ids=["not applied", "unknown", "not found", "ends"],
)
def test_a_store_that_fails_at_any_call_of_a_restore_leaves_nothing_here(
    kept: tuple[MemoryFiles, StateHandle], tmp_path: Path, way: Way, fault: BaseException, told: type[BaseException]
) -> None:
    """Nor anything changed there: the next restore has all rows. Files are read, and later pieces, as a backend asks.

    What is read is given twice, so that another snapshot is open where one fails.
    """
    files, handle = kept
    before = dict(files.files)
    recorder = Recorder()
    expected = restored(way, handle, tmp_path, storage_on(intercept(MemoryMetadataStore(files), recorder)))
    assert set(recorder.names) == {"read_file"}
    assert expected.count(b"x" * 40) == 30
    calls = len(recorder.calls)
    assert calls > 18
    for at in range(1, calls + 1):
        failing = storage_on(intercept(MemoryMetadataStore(files), FailAt(at, fault)))
        with pytest.raises(told) as raised:
            restored(way, handle, tmp_path, failing)
        if told is SnapshotCorrupt:
            assert "is missing" in str(raised.value)
        assert files_below(tmp_path) == set(), at
        assert files.files == before
    assert restored(way, handle, tmp_path, storage_on(MemoryMetadataStore(files))) == expected
    assert files_below(tmp_path) == set()


@pytest.mark.item("RI-13")
def test_a_disk_that_fails_at_any_system_call_of_a_restore_is_told_as_that(
    kept: tuple[MemoryFiles, StateHandle], tmp_path: Path
) -> None:
    """With its path; nothing of the restore is left on this machine."""
    files, handle = kept
    way, scratch = WAYS["files are opened"], tmp_path / "scratch"
    scratch.mkdir()
    for path, data in files.files.items():
        (tmp_path / "store" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / path).write_bytes(data)
    expected = restored(way, handle, scratch, storage_on(MemoryMetadataStore(files)))
    # Closing what was only read fails on no file system, and opening the store is no part of the restore.
    only = {"open_directory", "stat_name", "open_existing", "stat_open", "read"}
    recorder = Recorder(only)
    LocalStore(str(tmp_path / "store"), calls=intercept(PosixCalls(), recorder)).close()
    at, is_reached = len(recorder.calls), True
    told: list[str] = []
    while is_reached:
        at += 1
        fault = FailAt(at, OSError(errno.EIO, "deliberate"), only=only)
        store = LocalStore(str(tmp_path / "store"), calls=intercept(PosixCalls(), fault))
        try:
            assert restored(way, handle, scratch, storage_on(store)) == expected
        except StoreError as error:
            told.append(str(error))
        assert files_below(scratch) == set()
        is_reached = fault.count >= at
        store.close()
    assert len(told) > 18
    assert all(os.strerror(errno.EIO) in one and str(tmp_path / "store") in one for one in told)


@pytest.mark.item("LR-07", "LR-13")
def test_links_that_fail_at_any_call_of_a_restore_do_not_matter(tmp_path: Path) -> None:
    """The storage has all files: each call of the store on this machine in turn, and all of them."""
    options = RocksDBOptions(directory=str(tmp_path / "engine"))
    backend, change = filled(30, partial(RocksDBBackend, options=options))
    change(1)
    assert isinstance(backend, RocksDBBackend)
    here, scratch = LocalStore(str(tmp_path / "local")), tmp_path / "scratch"
    storage = storage_on(MemoryMetadataStore())
    handle = snapshot(IncrementalStrategy(backend, LocalStateStore(here, "subtask-0")), storage, 1)
    backend.close()
    links = files_below(tmp_path / "local")
    way, recorder = WAYS["files are opened"], Recorder()
    expected = restored(way, handle, scratch, storage, LocalStateStore(intercept(here, recorder), "subtask-0"))
    assert len(recorder.calls) > 16
    for at, persistent in [(1, True), *((at, False) for at in range(1, len(recorder.calls) + 1))]:
        local = LocalStateStore(intercept(here, FailAt(at, NotApplied("no disk"), persistent=persistent)), "subtask-0")
        assert restored(way, handle, scratch, storage, local) == expected
        assert files_below(scratch) == set()
    assert files_below(tmp_path / "local") == links


@pytest.mark.item("LR-05", "LR-13")
@pytest.mark.parametrize("when", SIDES)
def test_a_kill_at_any_call_of_the_links_of_a_snapshot_does_not_matter(tmp_path: Path, when: When) -> None:
    """The next process restores the snapshot before it, deletes what is left of this one, and takes it anew."""
    options = RocksDBOptions(directory=str(tmp_path / "engine"))
    make = partial(RocksDBBackend, options=options)
    here, way = LocalStore(str(tmp_path / "local")), WAYS["files are opened"]
    at, is_reached = 0, True
    while is_reached:
        at += 1
        storage = storage_on(MemoryMetadataStore())
        crash = CrashAt(at, when)
        backend, change = filled(30, make)
        assert isinstance(backend, RocksDBBackend)
        change(1)
        first = snapshot(IncrementalStrategy(backend, LocalStateStore(here, "subtask-0")), storage, 1)
        expected = bytes_of(backend)
        kept = files_below(tmp_path / "local")
        change(2)
        dying = IncrementalStrategy(backend, LocalStateStore(intercept(here, crash), "subtask-0"))
        try:
            snapshot(dying, storage, 2)
        except SimulatedCrash:
            assert crash.has_crashed
        is_reached = crash.has_crashed
        # A process that ends deletes nothing more; this one has the directory of a database that is used no more.
        backend.close()
        local = LocalStateStore(here, "subtask-0")
        with read_keyed_files(storage, [first], local, str(tmp_path / "scratch")) as (found,):
            again = backend_of(make, files=[found.file])
        assert found.source == "local"
        local.begin(1)
        assert files_below(tmp_path / "local") == kept
        assert bytes_of(again) == expected
        assert isinstance(again, RocksDBBackend)
        handle = snapshot(IncrementalStrategy(again, local), storage, 2)
        again.close()
        assert restored(way, handle, tmp_path / "scratch", storage, local) == expected
        local.begin(None)
    assert at > 5


# The deletion


class Retained(NamedTuple):
    """A job that has deleted two of its four checkpoints, and none of the files that they shared."""

    files: dict[str, bytes]
    handles: dict[int, StateHandle]
    """Of all four."""
    expected: dict[int, bytes]
    unneeded: set[str]
    """Files that no retained checkpoint names."""

    def copy(self) -> MemoryFiles:
        """Files of another job that is the same."""
        made = MemoryFiles()
        made.files.update(self.files)
        return made

    def check(self, files: MemoryFiles, unneeded: set[str]) -> None:
        """What the retained checkpoints name is there with all rows, and of the rest so much."""
        storage = storage_on(MemoryMetadataStore(files))
        named = set().union(*(shared(storage, self.handles[number]) for number in (3, 4)))
        assert {path for path in files.files if "/shared/" in path} == {f"job/{path}" for path in named | unneeded}
        for number in (3, 4):
            with read_keyed_files(storage, [self.handles[number]]) as (found,):
                assert bytes_of(backend_of(HeapBackend, files=[found.file])) == self.expected[number]


def shared(storage: CheckpointStorage, handle: StateHandle) -> set[str]:
    """The files in ``shared/`` that a snapshot names."""
    return {file.path for file in decode_incremental(storage.read_bytes(handle), "a document").shared_files()}


@pytest.fixture(scope="module")
def retained() -> Iterator[Retained]:
    """Two checkpoints of four, each with other files: the engine has merged its files before each."""
    files = MemoryFiles()
    storage = storage_on(MemoryMetadataStore(files))
    backend, change = filled(30, RocksDBBackend)
    assert isinstance(backend, RocksDBBackend)
    strategy = IncrementalStrategy(backend)
    handles, expected = {}, {}
    for number in (1, 2, 3, 4):
        change(number)
        for state in ("value", "list", "map", "mean"):
            backend.database.column(state).flush()
            engine = backend.database._opened.engine
            assert engine is not None
            if number > 1:
                engine.get_column_family(f"state-{state}").compact_range(None, None)
        handles[number] = snapshot(strategy, storage, number)
        strategy.confirm(number)
        expected[number] = bytes_of(backend)
    registered = SharedFiles(storage)
    for number in (1, 2, 3, 4):
        registered.register(number, [handles[number]])
    needed = shared(storage, handles[3]) | shared(storage, handles[4])
    unneeded = (shared(storage, handles[1]) | shared(storage, handles[2])) - needed
    assert len(unneeded) > 3
    yield Retained(dict(files.files), handles, expected, unneeded)
    backend.close()


def registry_of(retained: Retained, storage: CheckpointStorage, numbers: tuple[int, ...]) -> SharedFiles:
    """A registry that knows some checkpoints."""
    made = SharedFiles(storage)
    for number in numbers:
        made.register(number, [retained.handles[number]])
    return made


@pytest.mark.item("RI-10", "RI-11")
@pytest.mark.parametrize("is_applied", [False, True])
def test_a_deletion_that_fails_is_done_by_the_next_release(retained: Retained, *, is_applied: bool) -> None:
    """At each file in turn, whether it is gone or not: all are deleted in the end, and nothing else ever."""
    for at in range(1, len(retained.unneeded) + 1):
        files = retained.copy()
        fault = FailAt(at, OutcomeUnknown("no answer"), applied=is_applied, only={"delete_file"})
        storage = storage_on(intercept(MemoryMetadataStore(files), fault))
        registry = registry_of(retained, storage, (1, 2, 3, 4))
        with pytest.raises(OutcomeUnknown):
            registry.release(3)
        left = {path.removeprefix("job/") for path in files.files} & retained.unneeded
        assert len(left) == len(retained.unneeded) - at + 1 - is_applied
        retained.check(files, left)
        assert left <= set(registry.release(3)) <= retained.unneeded
        retained.check(files, set())
        assert registry.release(3) == []


@pytest.mark.item("RI-10", "RI-11")
@pytest.mark.parametrize("when", SIDES)
@pytest.mark.parametrize("deleted", [(), (1,), (1, 2)], ids=["none", "one", "both"])
def test_a_kill_at_any_deletion_takes_nothing_that_is_retained(
    retained: Retained, when: When, deleted: tuple[int, ...]
) -> None:
    """Whichever checkpoints are still there for the next coordinator to register.

    It deletes the files of those that it knows, by then or with a later release. Files that only checkpoints name which
    it finds deleted stay until the job ends: one of a snapshot under way looks the same (R6).
    """
    for at in range(1, len(retained.unneeded) + 1):
        files = retained.copy()
        crash = CrashAt(at, when, only={"delete_file"})
        storage = storage_on(intercept(MemoryMetadataStore(files), crash))
        registry = registry_of(retained, storage, (1, 2, 3, 4))
        with pytest.raises(SimulatedCrash):
            registry.release(3)
        left = {path.removeprefix("job/") for path in files.files} & retained.unneeded
        retained.check(files, left)
        storage = storage_on(MemoryMetadataStore(files))
        known = tuple(number for number in (1, 2, 3, 4) if number not in deleted)
        registry = registry_of(retained, storage, known)
        named = set().union(*(shared(storage, retained.handles[number]) for number in known))
        registry.release(3)
        retained.check(files, left - named)
        before = shared(storage, retained.handles[3]) - shared(storage, retained.handles[4])
        assert set(registry.release(4)) == before
        assert {path.removeprefix("job/") for path in files.files if "/shared/" in path} == (
            shared(storage, retained.handles[4]) | (left - named)
        )
        end_job(storage, JobEnd.FINISHED, Retention.NEVER)
        assert not [path for path in files.files if "/shared/" in path]
