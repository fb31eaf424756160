"""How state becomes a snapshot: a quick synchronous part that copies, and an asynchronous one that writes."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from partfile.filesystems.errors import PartfileError, SnapshotCancelled
from partfile.snapshot.closing import CloseableRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from partfile.snapshot.result import SnapshotResult
    from partfile.snapshot.state_info import StateMetaInfo
    from partfile.snapshot.stream_factory import CheckpointStreamFactory

    Supplier = Callable[[CloseableRegistry], SnapshotResult]


class SnapshotResources(Protocol):
    """What the synchronous part has taken: a view of the state that no later change reaches."""

    def release(self) -> None:
        """Give it up. Called exactly once, when the asynchronous part has ended, failed or been cancelled."""


class FullSnapshotResources(SnapshotResources, Protocol):
    """A full view that one writer can write, whichever backend it is of.

    Source: Flink's ``FullSnapshotResources``, as of 1.20.
    """

    @property
    def infos(self) -> Sequence[StateMetaInfo]:
        """What is said of each state; a state's place here is its id."""

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """State id and encoded element, in the order of the ids."""


Resources = TypeVar("Resources", bound=SnapshotResources)


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What a snapshot is for."""

    kind: Literal["checkpoint", "savepoint"] = "checkpoint"

    @property
    def is_savepoint(self) -> bool:
        """Whether a user asked for it, to keep and to move."""
        return self.kind == "savepoint"


class SnapshotStrategy(Protocol[Resources]):
    """The two parts of a snapshot of one backend. Source: Flink's ``SnapshotStrategy``, as of 1.20."""

    def sync_prepare_resources(self, checkpoint_id: int) -> Resources:
        """Take a view of the state, in the thread that changes it and in bounded time."""

    def async_snapshot(
        self,
        resources: Resources,
        checkpoint_id: int,
        timestamp_ms: int,
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return at once what will write the view; nothing is created before it is called.

        Args:
            resources: What the synchronous part has taken.
            checkpoint_id: The checkpoint.
            timestamp_ms: The coordinator's time at its trigger, in milliseconds since the epoch.
            streams: Opens streams for the result.
            options: What the snapshot is for.
        """


class RunningSnapshot:
    """A snapshot whose synchronous part is done: a result to wait for, or to give up."""

    def __init__(self, supplier: Supplier, resources: SnapshotResources, streams: CheckpointStreamFactory) -> None:
        self._supplier = supplier
        self._resources = resources
        self._streams = streams
        self._registry = CloseableRegistry()
        self._lock = threading.Lock()
        self._is_released = False
        self._is_settled = False
        self._future: Future[SnapshotResult] | None = None

    def run(self) -> SnapshotResult:
        """Write, then release the resources. Raises what the writing raises, or SnapshotCancelled."""
        try:
            if self._registry.closed:
                raise SnapshotCancelled("the snapshot was cancelled before it was written")
            result = self._supplier(self._registry)
        finally:
            self.release()
        with self._lock:
            self._is_settled = not self._registry.closed
        if not self._is_settled:
            if result.primary is not None:
                self._streams.discard(result.primary)
            raise SnapshotCancelled("the snapshot was cancelled while it was written")
        return result

    def start(self, executor: Executor | None) -> None:
        """Begin to write: in the caller's thread, or on ``executor``."""
        if executor is not None:
            self._future = executor.submit(self.run)
            return
        self._future = Future()
        try:
            self._future.set_result(self.run())
        except Exception as error:  # noqa: BLE001 - result() raises it, as it does for an executor's.
            self._future.set_exception(error)

    def result(self, timeout_s: float | None = None) -> SnapshotResult:
        """Wait for the handles.

        Raises:
            SnapshotCancelled: The snapshot was cancelled.
            TimeoutError: It takes longer.
        """
        if self._future is None:
            raise PartfileError("the snapshot has not been started")
        try:
            return self._future.result(timeout_s)
        except CancelledError as error:
            raise SnapshotCancelled("the snapshot was cancelled before it was written") from error

    def cancel(self) -> bool:
        """Give the snapshot up: close its streams, leave no file, release the resources.

        Returns:
            Whether that was in time; if not, the result stands and is the caller's.
        """
        with self._lock:
            if self._is_settled:
                return False
            self._registry.close()
        if self._future is not None and self._future.cancel():
            self.release()
        return True

    def release(self) -> None:
        """Release the resources, once."""
        with self._lock:
            is_released, self._is_released = self._is_released, True
        if not is_released:
            self._resources.release()


class StrategyRunner(Generic[Resources]):
    """Runs both parts of a strategy. Source: Flink's ``SnapshotStrategyRunner``, as of 1.20.

    Args:
        strategy: What to run.
        executor: Runs the asynchronous part; None runs it in the caller's thread.
    """

    def __init__(self, strategy: SnapshotStrategy[Resources], executor: Executor | None = None) -> None:
        self._strategy = strategy
        self._executor = executor

    def snapshot(
        self, checkpoint_id: int, timestamp_ms: int, streams: CheckpointStreamFactory, options: SnapshotOptions
    ) -> RunningSnapshot:
        """Run the synchronous part, and start the asynchronous one.

        An error of the asynchronous part is raised by the result; one of the synchronous part is raised here.
        """
        resources = self._strategy.sync_prepare_resources(checkpoint_id)
        try:
            supplier = self._strategy.async_snapshot(resources, checkpoint_id, timestamp_ms, streams, options)
        except BaseException:
            resources.release()
            raise
        running = RunningSnapshot(supplier, resources, streams)
        try:
            running.start(self._executor)
        except BaseException:
            running.release()
            raise
        return running
