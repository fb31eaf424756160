"""A snapshot strategy whose calls, thread and releases a test can look at, and which stops where the test wants."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from partfile.snapshot.strategy import RunningSnapshot, SnapshotOptions, SnapshotResult, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory, Scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from pathlib import Path

    from partfile.snapshot.strategy import CloseableRegistry, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory
    from partfile.stores.base import Store

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
