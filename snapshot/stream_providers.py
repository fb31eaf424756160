"""Streams that yield a whole snapshot result: to the primary storage alone, or doubled to a local disk."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.errors import SnapshotCancelled
from partfile.snapshot.result import EMPTY, SnapshotResult
from partfile.snapshot.stream_factory import FileStreamFactory
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.strategy import SnapshotOptions
    from partfile.snapshot.stream_factory import CheckpointStreamFactory
    from partfile.snapshot.streams import CheckpointOutputStream

logger = logging.getLogger("partfile")


class ResultStreamProvider(Protocol):
    """One stream and its result. Source: Flink's ``CheckpointStreamWithResultProvider``, as of 1.20."""

    @property
    def stream(self) -> CheckpointOutputStream:
        """Takes the bytes, and is what a cancellation closes."""

    def close_and_finalize(self) -> SnapshotResult:
        """End the stream and return its handles; the empty result if nothing was written."""

    def close(self) -> None:
        """Discard everything. Idempotent."""


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """Where a subtask keeps copies of its state on this machine, as ``chk-N/<token>``.

    They are read back by ``FileHandle`` paths relative to ``directory``.
    """

    store: MetadataStore
    directory: str
    """The subtask's directory below the base of ``store``."""


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


class PrimaryAndSecondaryStreamProvider:
    """One stream that is doubled to a secondary one, whose failure never fails the snapshot."""

    def __init__(self, primary: CheckpointOutputStream, secondary: CheckpointOutputStream) -> None:
        self.stream = DuplicatingStream(primary, secondary)

    def close_and_finalize(self) -> SnapshotResult:
        """End both streams and return their handles, without a local one if the secondary has failed."""
        try:
            handle = self.stream.close_and_get_handle()
        except BaseException:
            self.stream.close()
            raise
        return EMPTY if handle is None else SnapshotResult(handle, self.stream.end_secondary())

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


def open_result_stream(
    streams: CheckpointStreamFactory,
    scope: Scope,
    checkpoint_id: int,
    options: SnapshotOptions,
    local: LocalCopies | None = None,
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
    copies = FileStreamFactory(local.store, local.directory, checkpoint_id, inline_threshold_bytes=0)
    return PrimaryAndSecondaryStreamProvider(primary, copies.create(Scope.EXCLUSIVE))
