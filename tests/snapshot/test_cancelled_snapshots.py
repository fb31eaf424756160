"""Snapshots that are cancelled: before, while and after they write; no file stays, resources are released once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from observed_strategy import WAIT_S, Strategy, files, run

from partfile.errors import SnapshotCancelled
from partfile.snapshot.strategy import RunningSnapshot, SnapshotOptions
from partfile.snapshot.streams import FileStreamFactory
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor
    from pathlib import Path

    from partfile.snapshot.strategy import CloseableRegistry, SnapshotResult
    from partfile.stores.base import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with LocalStore(str(tmp_path)) as store:
        yield store


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


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
