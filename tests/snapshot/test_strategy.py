"""Both parts of a snapshot: what runs where, what a cancellation leaves, and who releases what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import pytest

from partfile.filesystems.errors import PartfileError, SnapshotCancelled
from partfile.filesystems.local import LocalStore
from partfile.snapshot.codecs import JsonCodec
from partfile.snapshot.operator_snapshot import OperatorStateStrategy, encode_resources
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.result import SnapshotResult
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import RunningSnapshot, SnapshotOptions, StrategyRunner
from partfile.snapshot.stream_factory import FileStreamFactory
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from partfile.filesystems.port import Store
    from partfile.snapshot.closing import CloseableRegistry
    from partfile.snapshot.state_info import StateMetaInfo
    from partfile.snapshot.strategy import Supplier
    from partfile.snapshot.stream_factory import CheckpointStreamFactory

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

    def sync_prepare_resources(self, checkpoint_id: int) -> Resources:
        """Take the counter."""
        self.calls.append(("sync", checkpoint_id, threading.get_ident()))
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with LocalStore(str(tmp_path)) as store:
        yield store


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


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


@pytest.mark.item("SS-02", "SS-04", "SS-34")
def test_a_backend_calls_two_methods(store: Store) -> None:
    """The runner calls the synchronous part, then the asynchronous one with everything it was given."""
    strategy = Strategy()
    run(strategy, store, kind="savepoint")
    assert strategy.calls == [
        ("sync", 3, threading.get_ident()),
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
    """A cancellation after the stream was handed back: the file that nobody will name is deleted."""
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
    live = OperatorStateStrategy(states).sync_prepare_resources(1)
    stored = Backend((items.info("split"),), [(0, b"1"), (0, b'"x"')])
    assert encode_resources(live) == encode_resources(stored)
