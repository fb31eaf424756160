"""Snapshot strategies: what runs where, cancellation, who releases what, local copies."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import pytest

from partfile.errors import NotApplied, PartfileError, SnapshotCancelled, StateTooLarge
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import (
    EMPTY,
    CloseableRegistry,
    OperatorStateStrategy,
    PrimaryAndLocalStreamProvider,
    PrimaryStreamProvider,
    RunningSnapshot,
    SnapshotOptions,
    SnapshotResult,
    StrategyRunner,
    encode_resources,
    open_result_stream,
)
from partfile.snapshot.streams import BufferedStream, CollectedBytes, FileStreamFactory, MemoryStreamFactory, Scope
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.state_file import StateMetaInfo
    from partfile.snapshot.strategy import ResultStreamProvider, Supplier
    from partfile.snapshot.streams import CheckpointOutputStream, CheckpointStreamFactory
    from partfile.stores.base import Store


# A snapshot strategy whose calls, thread and releases a test can look at, and which stops where the test wants.

WAIT_S = 30


class Resources:
    """Counts its releases."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        """Count."""
        self.released += 1


class Strategy:
    """Writes one piece, and stops where the test wants to look."""

    def __init__(self, data: bytes = b"state", before_end: Callable[[], object] = lambda: None) -> None:
        self.data = data
        self.before_end = before_end
        self.resources = Resources()
        self.calls: list[tuple[object, ...]] = []
        self.thread = 0

    def sync_prepare_resources(self, options: SnapshotOptions) -> Resources:
        """Take the counter."""
        self.calls.append(("sync", options.kind, threading.get_ident()))
        return self.resources

    def async_snapshot(
        self,
        resources: Resources,
        checkpoint_id: int,
        timestamp_ms: int,
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Write through a registered stream."""
        self.calls.append(("async", resources, checkpoint_id, timestamp_ms, options.kind))

        def supplier(registry: CloseableRegistry) -> SnapshotResult:
            self.thread = threading.get_ident()
            stream = streams.create(Scope.EXCLUSIVE)
            registry.register(stream)
            stream.write(self.data)
            self.before_end()
            registry.unregister(stream)
            return SnapshotResult(stream.close_and_get_handle())

        return supplier


def files(base: Path) -> list[str]:
    return [path.name for path in base.rglob("*") if path.is_file()]


def run(
    strategy: Strategy,
    store: Store,
    executor: Executor | None = None,
    kind: Literal["checkpoint", "savepoint"] = "checkpoint",
) -> RunningSnapshot:
    streams = FileStreamFactory(store, "job", 3, inline_threshold_bytes=0)
    return StrategyRunner(strategy, executor).snapshot(3, 99, streams, SnapshotOptions(kind))


# Both parts of a snapshot: what runs where, and who releases what.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with LocalStore(str(tmp_path)) as store:
        yield store


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.mark.item("SS-02", "SS-04", "SS-34")
def test_a_backend_calls_two_methods(store: Store) -> None:
    """The runner calls the synchronous part, then the asynchronous one with everything it was given."""
    strategy = Strategy()
    run(strategy, store, kind="savepoint")
    assert strategy.calls == [
        ("sync", "savepoint", threading.get_ident()),
        ("async", strategy.resources, 3, 99, "savepoint"),
    ]
    assert SnapshotOptions("savepoint").is_savepoint
    assert not SnapshotOptions().is_savepoint


@pytest.mark.item("SS-08")
def test_both_ways_of_running_come_to_the_same(store: Store, executor: Executor) -> None:
    """Inline in the caller's thread or on a pool: the same state is behind the handle."""
    inline, pooled = Strategy(), Strategy()
    results = [run(inline, store).result(), run(pooled, store, executor).result(WAIT_S)]
    storage = CheckpointStorage(store, "job")
    assert [storage.read_bytes(result.primary) for result in results if result.primary] == [b"state", b"state"]
    assert inline.thread == threading.get_ident() != pooled.thread


@pytest.mark.item("SS-03")
def test_the_caller_goes_on_while_the_state_is_written(store: Store, executor: Executor) -> None:
    """With an executor the snapshot returns before the asynchronous part has ended."""
    go_on = threading.Event()
    strategy = Strategy(before_end=lambda: go_on.wait(WAIT_S))
    running = run(strategy, store, executor)
    with pytest.raises(TimeoutError):
        running.result(0.01)
    go_on.set()
    assert running.result(WAIT_S).primary is not None


@pytest.mark.item("SS-06")
@pytest.mark.parametrize("pooled", [False, True])
def test_success_releases_once(store: Store, executor: Executor, *, pooled: bool) -> None:
    """Resources are released when the state is written, and a late cancellation changes nothing."""
    strategy = Strategy()
    running = run(strategy, store, executor if pooled else None)
    handle = running.result(WAIT_S).primary
    assert handle is not None
    assert strategy.resources.released == 1
    assert not running.cancel()
    assert strategy.resources.released == 1
    assert running.result().primary == handle
    assert CheckpointStorage(store, "job").read_bytes(handle) == b"state"


@pytest.mark.item("SS-06")
@pytest.mark.parametrize("pooled", [False, True])
def test_failure_releases_once(store: Store, executor: Executor, *, pooled: bool) -> None:
    """The error of the asynchronous part is the result's, and resources are released."""

    def fail() -> None:
        raise OSError("disk on fire")

    strategy = Strategy(before_end=fail)
    running = run(strategy, store, executor if pooled else None)
    with pytest.raises(OSError, match="fire"):
        running.result(WAIT_S)
    assert strategy.resources.released == 1


@pytest.mark.item("SS-06")
def test_an_interrupt_releases_once(store: Store) -> None:
    """What is no error of the snapshot goes straight through the caller, and resources are released."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    strategy = Strategy(before_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(strategy, store)
    assert strategy.resources.released == 1


@pytest.mark.item("SS-06")
def test_a_strategy_that_cannot_begin_releases_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the asynchronous part cannot even be made, the error is raised at once."""
    strategy = Strategy()
    monkeypatch.setattr(strategy, "async_snapshot", lambda *_: (_ for _ in ()).throw(OSError("no")).__next__())
    with pytest.raises(OSError, match="no"):
        run(strategy, store)
    assert strategy.resources.released == 1


@pytest.mark.item("SS-06")
def test_an_executor_that_takes_nothing_releases_once(store: Store) -> None:
    """If the pool is shut down, the error is raised at once."""
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    strategy = Strategy()
    with pytest.raises(RuntimeError):
        run(strategy, store, pool)
    assert strategy.resources.released == 1


def test_a_snapshot_that_was_not_started_has_no_result(store: Store) -> None:
    """Waiting for it would never end."""
    strategy = Strategy()
    streams = FileStreamFactory(store, "job", 3)
    supplier = strategy.async_snapshot(strategy.resources, 3, 0, streams, SnapshotOptions())
    with pytest.raises(PartfileError, match="not been started"):
        RunningSnapshot(supplier, strategy.resources, streams).result()


@pytest.mark.item("SS-05")
def test_a_local_handle_needs_a_primary_one(store: Store) -> None:
    """What the coordinator does not know cannot be restored from."""
    handle = run(Strategy(), store).result().primary
    assert SnapshotResult(handle, handle).local == handle
    with pytest.raises(ValueError, match="without a primary"):
        SnapshotResult(None, handle)


class Backend:
    """Full resources of another kind of backend: entries that were encoded long ago."""

    def __init__(self, infos: tuple[StateMetaInfo, ...], entries: list[tuple[int, bytes]]) -> None:
        self.infos = infos
        self._entries = entries

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """State ids and elements."""
        return iter(self._entries)

    def release(self) -> None:
        """Nothing is held."""


@pytest.mark.item("SS-09")
def test_one_writer_writes_the_resources_of_any_backend() -> None:
    """Live objects and stored bytes of the same state come to the same file."""
    states = OperatorStateStore()
    items = ListStateDescriptor("items", JsonCodec())
    states.list_state(items).update([1, "x"])
    live = OperatorStateStrategy(states).sync_prepare_resources(SnapshotOptions())
    stored = Backend((items.info("split"),), [(0, b"1"), (0, b'"x"')])
    assert encode_resources(live) == encode_resources(stored)


# Snapshots that are cancelled: before, while and after they write; no file stays, resources are released once.


@pytest.mark.item("SS-06", "SS-07")
def test_cancelled_while_writing(store: Store, executor: Executor, tmp_path: Path) -> None:
    """A cancellation in the middle closes the stream: the late end raises, no file is left, released once."""
    reached, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        go_on.wait(WAIT_S)

    strategy = Strategy(before_end=stop)
    running = run(strategy, store, executor)
    reached.wait(WAIT_S)
    assert running.cancel()
    go_on.set()
    with pytest.raises(SnapshotCancelled, match="not registered any more"):
        running.result(WAIT_S)
    assert files(tmp_path) == []
    assert strategy.resources.released == 1


@pytest.mark.item("SS-06", "SS-07")
def test_cancelled_after_the_file_was_created(store: Store, tmp_path: Path) -> None:
    """A cancellation after the stream was handed back: the file that no checkpoint will name is deleted."""
    strategy = Strategy()
    streams = FileStreamFactory(store, "job", 3, inline_threshold_bytes=0)
    supplier = strategy.async_snapshot(strategy.resources, 3, 0, streams, SnapshotOptions())

    def late(registry: CloseableRegistry) -> SnapshotResult:
        result = supplier(registry)
        assert len(files(tmp_path)) == 1
        registry.close()
        return result

    running = RunningSnapshot(late, strategy.resources, streams)
    running.start(None)
    with pytest.raises(SnapshotCancelled):
        running.result()
    assert files(tmp_path) == []
    assert strategy.resources.released == 1


@pytest.mark.item("SS-06", "SS-07")
def test_cancelled_before_it_began(store: Store, executor: Executor, tmp_path: Path) -> None:
    """A cancellation of a snapshot that still waits in the pool: its supplier is never called, released once."""
    go_on = threading.Event()
    executor.submit(go_on.wait, WAIT_S)
    strategy = Strategy()
    running = run(strategy, store, executor)
    assert running.cancel()
    go_on.set()
    with pytest.raises(SnapshotCancelled, match="before"):
        running.result(WAIT_S)
    executor.submit(int).result(WAIT_S)
    assert (strategy.thread, strategy.resources.released) == (0, 1)
    assert files(tmp_path) == []


# What a cancellation closes, it closes once.


class Door:
    """Counts how often it is closed, in one order for all doors."""

    def __init__(self, log: list[Door], error: Exception | None = None) -> None:
        self.log = log
        self.error = error

    def close(self) -> None:
        """Note it."""
        self.log.append(self)
        if self.error is not None:
            raise self.error


@pytest.mark.item("SS-07")
def test_closing_closes_each_once_and_the_newest_first() -> None:
    """What is registered is closed by the registry; a second close does nothing."""
    log: list[Door] = []
    registry, doors = CloseableRegistry(), [Door(log), Door(log)]
    for door in doors:
        registry.register(door)
    assert not registry.closed
    registry.close()
    registry.close()
    assert log == doors[::-1]
    assert registry.closed


@pytest.mark.item("SS-07")
def test_what_was_unregistered_is_not_closed() -> None:
    """After unregistering it is the owner's again."""
    log: list[Door] = []
    registry, door = CloseableRegistry(), Door(log)
    registry.register(door)
    registry.unregister(door)
    registry.close()
    assert log == []


@pytest.mark.item("SS-07")
def test_a_late_end_is_noticed() -> None:
    """Unregistering after the registry was closed raises, and so does a second unregistering."""
    registry, door = CloseableRegistry(), Door([])
    registry.register(door)
    registry.close()
    with pytest.raises(SnapshotCancelled, match="not registered any more"):
        registry.unregister(door)


@pytest.mark.item("SS-07")
def test_registering_with_a_closed_registry_closes_at_once() -> None:
    """A stream that is opened too late does not stay open."""
    log: list[Door] = []
    registry, door = CloseableRegistry(), Door(log)
    registry.close()
    with pytest.raises(SnapshotCancelled):
        registry.register(door)
    assert log == [door]


@pytest.mark.item("SS-07")
def test_an_error_does_not_keep_the_others_open() -> None:
    """All are closed although one raises; its error comes out."""
    log: list[Door] = []
    registry = CloseableRegistry()
    doors = [Door(log), Door(log, OSError("stuck")), Door(log)]
    for door in doors:
        registry.register(door)
    with pytest.raises(OSError, match="stuck"):
        registry.close()
    assert len(log) == 3


@pytest.mark.item("SS-07")
def test_owner_and_cancellation_never_both_get_it() -> None:
    """Of an owner that unregisters and a cancellation at the same moment exactly one closes."""
    for _ in range(200):
        log: list[Door] = []
        registry, door = CloseableRegistry(), Door(log)
        registry.register(door)
        barrier = threading.Barrier(2)
        owned: list[Door] = []

        def end(
            registry: CloseableRegistry = registry,
            door: Door = door,
            barrier: threading.Barrier = barrier,
            owned: list[Door] = owned,
        ) -> None:
            barrier.wait()
            try:
                registry.unregister(door)
            except SnapshotCancelled:
                return
            owned.append(door)

        thread = threading.Thread(target=end)
        thread.start()
        barrier.wait()
        registry.close()
        thread.join()
        assert len(log) + len(owned) == 1


# Local copies of state: written beside the primary, and never worth a failed checkpoint.

CHECKPOINT = SnapshotOptions()
SAVEPOINT = SnapshotOptions("savepoint")


def primary(base: Path) -> FileStreamFactory:
    return FileStreamFactory(LocalStore(str(base / "primary")), "job", 5, inline_threshold_bytes=0)


def copies(base: Path) -> LocalStateStore:
    return LocalStateStore(LocalStore(str(base / "local")), "aid_1/jid_job/vtx_o_sti_0")


class OneCopy(LocalStateStore):
    """Has the stream that it is made with."""

    def __init__(self, stream: CheckpointOutputStream) -> None:
        self._stream = stream

    def create_stream(self, _checkpoint_id: int) -> CheckpointOutputStream:
        """The stream."""
        return self._stream


def opened(
    streams: CheckpointStreamFactory, local: LocalStateStore | None, options: SnapshotOptions = CHECKPOINT
) -> ResultStreamProvider:
    return open_result_stream(streams, Scope.EXCLUSIVE, 5, options, local)


def finalized_without_copy(provider: ResultStreamProvider, caplog: pytest.LogCaptureFixture, why: str) -> StateHandle:
    """End a snapshot whose copy failed, which the log tells once it has ended; returns the primary handle."""
    with caplog.at_level(logging.WARNING):
        assert caplog.text == ""
        result = provider.close_and_finalize()
    assert result.primary is not None
    assert result.local is None
    assert why in caplog.text
    return result.primary


def files_below(base: Path) -> list[str]:
    return sorted(path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file())


@pytest.mark.item("SS-19", "SS-21", "LR-12", "LR-16")
def test_a_copy_holds_the_same_bytes(tmp_path: Path) -> None:
    """Every write goes to both; the copy lies in chk-N of the subtask's directory under a name of its own."""
    provider = opened(primary(tmp_path), copies(tmp_path))
    for piece in (b"ab", b"", b"cde"):
        provider.stream.write(piece)
    assert provider.stream.position == 5
    result = provider.close_and_finalize()
    assert isinstance(result.primary, FileHandle)
    assert isinstance(result.local, FileHandle)
    assert result.local.path.startswith("chk-5/")
    assert (tmp_path / "primary/job" / result.primary.path).read_bytes() == b"abcde"
    assert (tmp_path / "local/aid_1/jid_job/vtx_o_sti_0" / result.local.path).read_bytes() == b"abcde"
    again = opened(primary(tmp_path), copies(tmp_path))
    again.stream.write(b"x")
    assert again.close_and_finalize().local != result.local


@pytest.mark.item("SS-18", "SS-19")
@pytest.mark.parametrize(("with_local", "options"), [(False, CHECKPOINT), (True, SAVEPOINT), (False, SAVEPOINT)])
def test_no_copy_without_local_recovery_or_of_a_savepoint(
    tmp_path: Path, options: SnapshotOptions, *, with_local: bool
) -> None:
    """The primary is written alone, and nothing appears in the local directory."""
    provider = opened(primary(tmp_path), copies(tmp_path) if with_local else None, options)
    assert isinstance(provider, PrimaryStreamProvider)
    provider.stream.write(b"x")
    result = provider.close_and_finalize()
    assert result.primary is not None
    assert result.local is None
    assert len(files_below(tmp_path)) == 1


@pytest.mark.item("SS-18")
def test_a_checkpoint_with_local_recovery_is_doubled(tmp_path: Path) -> None:
    """The choice is the doubling provider exactly then."""
    assert isinstance(opened(primary(tmp_path), copies(tmp_path)), PrimaryAndLocalStreamProvider)


@pytest.mark.item("SS-05", "SS-19", "SS-23")
def test_nothing_written_is_the_empty_result(tmp_path: Path) -> None:
    """Both providers come to the one empty result, and no file."""
    for local in (None, copies(tmp_path)):
        assert opened(primary(tmp_path), local).close_and_finalize() is EMPTY
    assert files_below(tmp_path) == []


@pytest.mark.item("SS-20", "LR-02")
def test_a_local_directory_that_cannot_be_written_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the directory should be: logged, and the snapshot has its primary handle alone."""
    store = LocalStore(str(tmp_path / "local"))
    store.create_file("sub", b"")
    provider = opened(primary(tmp_path), LocalStateStore(store, "sub"))
    provider.stream.write(b"x")
    finalized_without_copy(provider, caplog, "no local copy")


@pytest.mark.item("LR-02", "LR-16")
def test_a_copy_that_cannot_be_created_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A local disk that is full when the file is created: logged, no local handle, the checkpoint is good."""
    store = intercept(LocalStore(str(tmp_path / "local")), FailAt(1, NotApplied("disk full"), only={"create_file"}))
    provider = opened(primary(tmp_path), LocalStateStore(store, "sub"))
    provider.stream.write(b"x")
    finalized_without_copy(provider, caplog, "disk full")


@pytest.mark.item("LR-16")
def test_a_failed_write_of_the_copy_is_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the first failure the copy gets nothing more; it is reported when the snapshot ends, not before."""
    secondary = MemoryStreamFactory(max_state_bytes=3).create(Scope.EXCLUSIVE)
    provider = PrimaryAndLocalStreamProvider(primary(tmp_path).create(Scope.EXCLUSIVE), OneCopy(secondary), 5)
    with caplog.at_level(logging.WARNING):
        for piece in (b"ab", b"cd", b"e"):
            provider.stream.write(piece)
    assert finalized_without_copy(provider, caplog, "max_state_bytes=3").size_bytes == 5
    with pytest.raises(SnapshotCancelled):
        secondary.write(b"x")


@pytest.mark.item("LR-16")
def test_a_copy_at_another_position_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy that lost bytes, or has too many, is not believed."""
    secondary = MemoryStreamFactory().create(Scope.EXCLUSIVE)
    secondary.write(b"stray")
    provider = PrimaryAndLocalStreamProvider(primary(tmp_path).create(Scope.EXCLUSIVE), OneCopy(secondary), 5)
    provider.stream.write(b"ab")
    finalized_without_copy(provider, caplog, "at byte 7, the state at 2")


@pytest.mark.item("LR-03")
def test_a_failed_primary_fails_the_snapshot(tmp_path: Path) -> None:
    """The error comes out, of a write and of the end alike, and no copy is left."""
    provider = opened(MemoryStreamFactory(max_state_bytes=3), copies(tmp_path))
    provider.stream.write(b"abc")
    with pytest.raises(StateTooLarge):
        provider.stream.write(b"d")
    provider.close()

    def fail(_data: bytes) -> FileHandle:
        raise NotApplied("primary full")

    stream = BufferedStream(CollectedBytes(1), check=lambda _: None, keep=fail, discard=lambda _: None)
    local = FileStreamFactory(LocalStore(str(tmp_path / "local")), "", 5, inline_threshold_bytes=0)
    copy = local.create(Scope.EXCLUSIVE)
    provider = PrimaryAndLocalStreamProvider(stream, OneCopy(copy), 5)
    provider.stream.write(b"x")
    with pytest.raises(NotApplied, match="primary full"):
        provider.close_and_finalize()
    with pytest.raises(SnapshotCancelled):
        copy.write(b"y")
    assert files_below(tmp_path) == []


@pytest.mark.item("SS-07", "LR-16")
def test_closing_discards_both(tmp_path: Path) -> None:
    """A cancellation reaches primary and copy."""
    provider = opened(primary(tmp_path), copies(tmp_path))
    provider.stream.write(b"x")
    provider.close()
    provider.close()
    with pytest.raises(SnapshotCancelled):
        provider.close_and_finalize()
    assert files_below(tmp_path) == []
