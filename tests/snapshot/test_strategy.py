"""Both parts of a snapshot: what runs where, and who releases what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from observed_strategy import WAIT_S, Strategy, run

from partfile.errors import PartfileError
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import (
    OperatorStateStrategy,
    RunningSnapshot,
    SnapshotOptions,
    SnapshotResult,
    encode_resources,
)
from partfile.snapshot.streams import FileStreamFactory
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from partfile.snapshot.state_file import StateMetaInfo
    from partfile.stores.base import Store


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
