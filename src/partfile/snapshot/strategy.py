"""The snapshot of an operator's state: copied while the operator waits, written while it goes on."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from partfile.errors import ConfigError, PartfileError, SnapshotCancelled
from partfile.snapshot.operator_state import ListState, encode_element, encode_map
from partfile.snapshot.state_file import encode_states
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.operator_state import BroadcastState, OperatorStateStore
    from partfile.snapshot.state_file import NamedState, StateMetaInfo
    from partfile.snapshot.streams import CheckpointOutputStream, CheckpointStreamFactory

    Supplier = Callable[["CloseableRegistry"], "SnapshotResult"]
    Encoder = Callable[[], Iterator[bytes]]


logger = logging.getLogger("partfile")
Resources = TypeVar("Resources", bound="SnapshotResources")


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """Handles of one piece of state. Source: Flink's ``SnapshotResult``, as of 1.20.

    Raises:
        ValueError: There is a local copy of nothing.
    """

    primary: StateHandle | None = None
    """The handle for the coordinator; None if there is no state."""
    local: StateHandle | None = None
    """A copy on this machine, for a faster restore; the coordinator never sees it."""
    pieces: tuple[StateHandle, ...] = ()
    """What ``primary`` names in its turn and no other snapshot does: it is deleted with it."""
    beside_bytes: int = 0
    """Of files that were written for it and that later snapshots may name."""
    known_bytes: int = 0
    """Of files that it names and that earlier snapshots have written."""

    def __post_init__(self) -> None:
        if self.local is not None and self.primary is None:
            raise ValueError("a snapshot result has a local handle without a primary one")

    @property
    def written_bytes(self) -> int:
        """So much was written to the checkpoint's storage, or travels inline."""
        own = self.pieces if self.primary is None else (*self.pieces, self.primary)
        return sum(handle.size_bytes for handle in own) + self.beside_bytes

    @property
    def full_bytes(self) -> int:
        """So much a restore reads: what was written, and what earlier snapshots have written."""
        return self.written_bytes + self.known_bytes


EMPTY = SnapshotResult()
"""The result of a snapshot without state."""


class Closeable(Protocol):
    """Anything that is released by ``close``, which may be called twice and from another thread."""

    def close(self) -> None:
        """Release it."""


class CloseableRegistry:
    """Closes what is registered, once, when it is closed itself; thread safe.

    The asynchronous part of a snapshot registers its streams here, so that a cancellation reaches them.
    Source: Flink's ``CloseableRegistry``, as of 1.20.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: dict[int, Closeable] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been called."""
        with self._lock:
            return self._closed

    def register(self, closeable: Closeable) -> None:
        """Close ``closeable`` when the registry is closed.

        Raises:
            SnapshotCancelled: The registry is closed already; ``closeable`` has been closed.
        """
        with self._lock:
            if not self._closed:
                self._registered[id(closeable)] = closeable
                return
        closeable.close()
        raise SnapshotCancelled("the snapshot was cancelled before its stream was registered")

    def unregister(self, closeable: Closeable) -> None:
        """Hand ``closeable`` back to its owner, which closes it from here on.

        Raises:
            SnapshotCancelled: It is not registered any more: a cancellation has closed it.
        """
        with self._lock:
            if self._registered.pop(id(closeable), None) is None:
                raise SnapshotCancelled("the stream is not registered any more: the snapshot was cancelled")

    def close(self) -> None:
        """Close everything that is registered, the newest first; a second call does nothing.

        Every one is closed, whatever the others raise; the first error is raised at the end.
        """
        with self._lock:
            self._closed = True
            registered, self._registered = list(self._registered.values()), {}
        errors: list[Exception] = []
        for closeable in reversed(registered):
            try:
                closeable.close()
            except Exception as error:  # noqa: BLE001 - the others must be closed all the same.
                errors.append(error)
        if errors:
            raise errors[0]


class SnapshotResources(Protocol):
    """A view of the state that the synchronous part has taken; no later change reaches it."""

    def release(self) -> None:
        """Give it up. Called exactly once, when the asynchronous part has ended, failed or been cancelled."""


class FullSnapshotResources(SnapshotResources, Protocol):
    """A full view that one writer can write, whichever backend it is of.

    Source: Flink's ``FullSnapshotResources``, as of 1.20.
    """

    @property
    def infos(self) -> Sequence[StateMetaInfo]:
        """Name, type, mode and codecs of each state; a state's place here is its id."""

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """State id and encoded element, in the order of the ids."""


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """The purpose of a snapshot."""

    kind: Literal["checkpoint", "savepoint"] = "checkpoint"

    def __post_init__(self) -> None:
        # A savepoint that was taken as a checkpoint would go with it.
        if self.kind not in ("checkpoint", "savepoint"):
            raise ConfigError(
                f"SnapshotOptions: kind={self.kind!r} is no kind of snapshot",
                hint="Write SnapshotOptions('checkpoint') or SnapshotOptions('savepoint').",
            )

    @property
    def is_savepoint(self) -> bool:
        """Whether a user asked for it, to keep and to move."""
        return self.kind == "savepoint"


class SnapshotStrategy(Protocol[Resources]):
    """The two parts of a snapshot of one backend. Source: Flink's ``SnapshotStrategy``, as of 1.20."""

    def sync_prepare_resources(self, options: SnapshotOptions) -> Resources:
        """Take a view of the state, in the thread that changes it and in bounded time.

        Args:
            options: What the snapshot is for.
        """

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
            timestamp_ms: The coordinator's time at its trigger, in milliseconds since 1970.
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
        self._is_done = False
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
            self._is_done = not self._registry.closed
        if not self._is_done:
            for handle in result.pieces:
                discard_logged(self._streams, handle)
            if result.primary is not None:
                discard_logged(self._streams, result.primary)
            raise SnapshotCancelled("the snapshot was cancelled while it was written")
        return result

    def start(self, executor: Executor | None) -> None:
        """Begin to write: in the caller's thread, or on ``executor``."""
        if executor is not None:
            self._future = executor.submit(self.run)
            # Its owner may shut the executor down, which then takes the snapshot from its queue.
            self._future.add_done_callback(lambda future: self.release() if future.cancelled() else None)
            return
        self._future = Future()
        # Another thread may cancel the snapshot meanwhile, and not the future, which is to have the error.
        self._future.set_running_or_notify_cancel()
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
        """Give the snapshot up: close its streams, leave no file of its own or copy of one, release the resources.

        What was written for later snapshots too is its strategy's to delete. A file that cannot be deleted is logged.

        Returns:
            Whether that was in time; if not, the result stands and is the caller's.
        """
        with self._lock:
            if self._is_done:
                return False
            self._registry.close()
        if self._future is not None:
            self._future.cancel()
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

        Raises:
            ConfigError: ``options`` are none.
        """
        given: object = options
        if not isinstance(given, SnapshotOptions):
            raise ConfigError(
                f"options={options!r:.50} are none of a snapshot", hint="Write options=SnapshotOptions('savepoint')."
            )
        resources = self._strategy.sync_prepare_resources(options)
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


class ResultStreamProvider(Protocol):
    """One stream and its result. Source: Flink's ``CheckpointStreamWithResultProvider``, as of 1.20."""

    @property
    def stream(self) -> CheckpointOutputStream:
        """Takes the bytes, and is what a cancellation closes."""

    def close_and_finalize(self) -> SnapshotResult:
        """End the stream and return its handles; the empty result if nothing was written."""

    def close(self) -> None:
        """Discard everything. Idempotent."""


class PrimaryStreamProvider:
    """One stream to the primary storage."""

    def __init__(self, stream: CheckpointOutputStream) -> None:
        self.stream = stream

    def close_and_finalize(self) -> SnapshotResult:
        """End the stream and return its handle."""
        handle = self.stream.close_and_get_handle()
        return EMPTY if handle is None else SnapshotResult(handle)

    def close(self) -> None:
        """Discard everything."""
        self.stream.close()


class PrimaryAndLocalStreamProvider:
    """One stream that is doubled to a copy on this machine, whose failure never fails the snapshot.

    Args:
        primary: The stream that counts.
        local: Keeps the copy.
        checkpoint_id: The checkpoint.
    """

    def __init__(self, primary: CheckpointOutputStream, local: LocalStateStore, checkpoint_id: int) -> None:
        self.stream = DuplicatingStream(primary, local.create_stream(checkpoint_id))
        self._local = local
        self._checkpoint_id = checkpoint_id

    def close_and_finalize(self) -> SnapshotResult:
        """End both streams and return their handles, without a local one if there is no copy."""
        try:
            handle = self.stream.close_and_get_handle()
        except BaseException:
            self.stream.close()
            raise
        if handle is None:
            return EMPTY
        copy = self.stream.end_secondary()
        is_kept = copy is not None and self._local.keep(self._checkpoint_id, handle, copy)
        return SnapshotResult(handle, copy if is_kept else None)

    def close(self) -> None:
        """Discard everything."""
        self.stream.close()


class DuplicatingStream:
    """Writes everything to two streams. An error of the second is remembered, and reported when the snapshot ends.

    Source: Flink's ``DuplicatingCheckpointOutputStream``, as of 1.20.
    """

    def __init__(self, primary: CheckpointOutputStream, secondary: CheckpointOutputStream) -> None:
        self._primary = primary
        self._secondary = secondary
        self._secondary_error: Exception | None = None

    @property
    def position(self) -> int:
        """Bytes written to the primary stream."""
        return self._primary.position

    def write(self, data: bytes) -> None:
        """Append ``data`` to both; only an error of the primary is raised."""
        self._primary.write(data)
        if self._secondary_error is not None:
            return
        try:
            self._secondary.write(data)
        except Exception as error:  # noqa: BLE001 - a copy is never worth a failed checkpoint.
            self._give_up(error)
            return
        if self._secondary.position != self._primary.position:
            places = f"the local copy is at byte {self._secondary.position}, the state at {self._primary.position}"
            self._give_up(SnapshotCancelled(places))

    def close_and_get_handle(self) -> StateHandle | None:
        """End the primary stream and return its handle."""
        return self._primary.close_and_get_handle()

    def end_secondary(self) -> StateHandle | None:
        """End the secondary stream and return its handle; None, with a warning, if anything about it has failed."""
        if self._secondary_error is None:
            try:
                return self._secondary.close_and_get_handle()
            except Exception as error:  # noqa: BLE001 - likewise.
                self._give_up(error)
        logger.warning("the snapshot has no local copy: %s", self._secondary_error)
        return None

    def close(self) -> None:
        """Discard both."""
        try:
            self._primary.close()
        finally:
            self._secondary.close()

    def _give_up(self, error: Exception) -> None:
        self._secondary_error = error
        self._secondary.close()


class _Copies:
    """The local copies of one snapshot, which go when it is cancelled."""

    def __init__(self, local: LocalStateStore, checkpoint_id: int) -> None:
        self._local = local
        self._checkpoint_id = checkpoint_id

    def close(self) -> None:
        """Delete them."""
        self._local.abort(self._checkpoint_id)


def abort_copies_with(registry: CloseableRegistry, local: LocalStateStore | None, checkpoint_id: int) -> None:
    """Have the local copies of a snapshot deleted if it is cancelled from here on, or has been before.

    A strategy calls it when all of them are made. A snapshot can still be cancelled until its result is given out.

    Args:
        registry: Of the snapshot.
        local: Where the copies are; None has none.
        checkpoint_id: The checkpoint.
    """
    if local is not None:
        # Of one that was cancelled before, they are gone now, and who runs the snapshot deletes the rest.
        with suppress(SnapshotCancelled):
            registry.register(_Copies(local, checkpoint_id))


def discard_logged(streams: CheckpointStreamFactory, handle: StateHandle) -> None:
    """Delete a state file that no checkpoint names; a failure is logged."""
    try:
        streams.discard(handle)
    except PartfileError as error:
        logger.warning("a state file that no checkpoint names could not be deleted: %s", error)


def open_result_stream(
    streams: CheckpointStreamFactory,
    scope: Scope,
    checkpoint_id: int,
    options: SnapshotOptions,
    local: LocalStateStore | None = None,
) -> ResultStreamProvider:
    """Open the stream of a snapshot: doubled where local copies are wanted, unless it is a savepoint.

    Args:
        streams: Opens the primary stream.
        scope: Whose the primary file is.
        checkpoint_id: The checkpoint.
        options: What the snapshot is for.
        local: Where local copies go; None keeps none.
    """
    primary = streams.create(scope)
    if local is None or options.is_savepoint:
        return PrimaryStreamProvider(primary)
    return PrimaryAndLocalStreamProvider(primary, local, checkpoint_id)


class CopiedStates:
    """The states of an operator as they were at the synchronous part: copies, which no other code changes."""

    def __init__(self, states: OperatorStateStore) -> None:
        self._copies = [
            *(_list_copy(state) if isinstance(state, ListState) else _map_copy(state) for state in states.registered),
            *(_carried(state) for state in states.carried),
        ]

    @property
    def infos(self) -> tuple[StateMetaInfo, ...]:
        """Name, type, mode and codecs of each state."""
        return tuple(info for info, _ in self._copies)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """State id and encoded element, in the order of the ids."""
        for state_id, (_, encoded) in enumerate(self._copies):
            for element in encoded():
                yield state_id, element

    def release(self) -> None:
        """Forget the copies."""
        self._copies = []


class OperatorStateStrategy:
    """Full snapshots of an operator's state. Source: Flink's ``DefaultOperatorStateBackendSnapshotStrategy``, 1.20.

    Args:
        states: The live states.
    """

    def __init__(self, states: OperatorStateStore) -> None:
        self._states = states

    def sync_prepare_resources(self, options: SnapshotOptions) -> CopiedStates:  # noqa: ARG002 - of the protocol.
        """Copy every state with its own codec; elements that cannot change are not copied but shared."""
        return CopiedStates(self._states)

    def async_snapshot(
        self,
        resources: FullSnapshotResources,
        checkpoint_id: int,
        timestamp_ms: int,  # noqa: ARG002 - of the protocol.
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return what writes the copies to one stream of exclusive scope."""
        if not resources.infos:
            return lambda _registry: EMPTY
        return writing(
            lambda: encode_resources(resources),
            lambda: open_result_stream(streams, Scope.EXCLUSIVE, checkpoint_id, options),
        )


def writing(encode: Callable[[], bytes], open_stream: Callable[[], ResultStreamProvider]) -> Supplier:
    """What writes a view to one stream and leaves nothing if it fails or is cancelled.

    Args:
        encode: The view as bytes.
        open_stream: Opens the stream.
    """

    def write(registry: CloseableRegistry) -> SnapshotResult:
        provider = open_stream()
        registry.register(provider)
        try:
            provider.stream.write(encode())
            registry.unregister(provider)
            return provider.close_and_finalize()
        except BaseException:
            provider.close()
            raise

    return write


def encode_resources(resources: FullSnapshotResources) -> bytes:
    """The whole view as a state file, whichever backend it is of.

    Raises:
        UnencodableState: A codec has no form for a value.
    """
    elements: list[list[bytes]] = [[] for _ in resources.infos]
    for state_id, element in resources.entries():
        elements[state_id].append(element)
    return encode_states(zip(resources.infos, elements, strict=True))


def _list_copy(state: ListState[Any]) -> tuple[StateMetaInfo, Encoder]:
    codec = state.codec
    copies = [codec.copy(element) for element in state.get()]
    encode = partial(encode_element, state.info.name, codec)
    return state.info, lambda: map(encode, copies)


def _map_copy(state: BroadcastState[Any, Any]) -> tuple[StateMetaInfo, Encoder]:
    keys, values = state.descriptor.key_codec, state.descriptor.value_codec
    copies = [(keys.copy(key), values.copy(value)) for key, value in state.entries()]
    return state.info, lambda: iter((encode_map(state.descriptor, copies),))


def _carried(state: NamedState) -> tuple[StateMetaInfo, Encoder]:
    return state.info, lambda: iter(state.elements)
