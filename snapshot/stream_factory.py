"""Where the streams of a checkpoint lead: to files with small state inline, or into the memory of the coordinator."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import ConfigError, StateTooLarge
from partfile.filesystems.tokens import new_token
from partfile.snapshot import layout
from partfile.snapshot.model import FileHandle, InlineHandle
from partfile.snapshot.streams import BufferedStream, CollectedBytes, Scope

if TYPE_CHECKING:
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.streams import CheckpointOutputStream

DEFAULT_INLINE_THRESHOLD_BYTES = 20 * 1024
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
DEFAULT_WRITE_BUFFER_BYTES = 4096
DEFAULT_MAX_STATE_BYTES = 5 << 20
DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES = 10 << 20


class CheckpointStreamFactory(Protocol):
    """Opens the streams of one subtask for one checkpoint. Source: Flink's ``CheckpointStreamFactory``, as of 1.20."""

    def create(self, scope: Scope) -> CheckpointOutputStream:
        """Open a stream whose file, if it comes to one, belongs to ``scope``."""

    def discard(self, handle: StateHandle) -> None:
        """Delete what a handle of this factory names and no checkpoint does. Idempotent."""


class FileStreamFactory:
    """State above a threshold lies in a file of its own, created whole and exclusively; smaller state travels inline.

    Args:
        store: Where the files are.
        directory: The job's directory below the base of ``store``; empty for the base itself.
        checkpoint_id: The checkpoint; its directory takes what is exclusive to it. None for a savepoint, which shares
            nothing: ``directory`` is its own and takes everything.
        inline_threshold_bytes: Up to this size state travels inline, at most 1 MiB.
        write_buffer_bytes: Size of a stream's buffer; at least the threshold is used.

    Raises:
        ConfigError: A size cannot be used.
    """

    def __init__(
        self,
        store: MetadataStore,
        directory: str,
        checkpoint_id: int | None,
        *,
        inline_threshold_bytes: int = DEFAULT_INLINE_THRESHOLD_BYTES,
        write_buffer_bytes: int = DEFAULT_WRITE_BUFFER_BYTES,
    ) -> None:
        check_file_streams(inline_threshold_bytes, write_buffer_bytes)
        self._store = store
        self._directory = directory
        self._checkpoint_id = checkpoint_id
        self._inline_threshold_bytes = inline_threshold_bytes
        self.buffer_bytes = max(write_buffer_bytes, inline_threshold_bytes)
        """Size of a stream's buffer in effect."""

    def create(self, scope: Scope) -> CheckpointOutputStream:
        """Open a stream; its file lies in ``chk-N/``, ``shared/`` or ``taskowned/``, a savepoint's in its own."""
        return BufferedStream(
            CollectedBytes(self.buffer_bytes),
            check=lambda _position: None,
            keep=lambda data: self._keep(data, scope),
            discard=self.discard,
        )

    def discard(self, handle: StateHandle) -> None:
        """Delete the file of a handle; inline state is gone with its handle."""
        if isinstance(handle, FileHandle):
            self._store.delete_file(layout.below(self._directory, handle.path))

    def _keep(self, data: bytes, scope: Scope) -> StateHandle:
        if len(data) <= self._inline_threshold_bytes:
            return InlineHandle(data=data)
        name = layout.state_path(self._directory_of(scope), new_token())
        self._store.create_file(layout.below(self._directory, name), data)
        return FileHandle(path=name, size_bytes=len(data), crc32=crc32_of(data))

    def _directory_of(self, scope: Scope) -> str:
        if self._checkpoint_id is None:
            return ""
        if scope is Scope.EXCLUSIVE:
            return layout.checkpoint_directory(self._checkpoint_id)
        return layout.SHARED if scope is Scope.SHARED else layout.TASK_OWNED


class MemoryStreamFactory:
    """All state travels inline and lives in the coordinator's memory; no file is written.

    One factory serves one acknowledgement, whose size is capped whatever the state's own limit is.

    Args:
        max_state_bytes: A larger piece of state fails its checkpoint.
        max_acknowledgement_bytes: All state of one acknowledgement together; more fails its checkpoint.
    """

    def __init__(
        self,
        *,
        max_state_bytes: int = DEFAULT_MAX_STATE_BYTES,
        max_acknowledgement_bytes: int = DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES,
    ) -> None:
        self._max_state_bytes = max_state_bytes
        self._max_acknowledgement_bytes = max_acknowledgement_bytes
        self._lock = threading.Lock()
        self._acknowledged_bytes = 0

    def create(self, scope: Scope) -> CheckpointOutputStream:  # noqa: ARG002 - memory has no directories.
        """Open a stream; memory is the same for every scope."""
        return BufferedStream(
            CollectedBytes(DEFAULT_WRITE_BUFFER_BYTES), check=self._check, keep=self._keep, discard=self.discard
        )

    def discard(self, handle: StateHandle) -> None:
        """Count a handle's state out of the acknowledgement."""
        with self._lock:
            self._acknowledged_bytes -= handle.size_bytes

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_state_bytes:
            raise StateTooLarge(
                f"state of {size_bytes} bytes is larger than max_state_bytes={self._max_state_bytes}",
                hint="Configure a checkpoint directory, or raise the limit.",
            )
        if self._acknowledged_bytes + size_bytes > self._max_acknowledgement_bytes:
            raise StateTooLarge(
                f"an acknowledgement with {self._acknowledged_bytes + size_bytes} bytes of state is larger than "
                f"max_acknowledgement_bytes={self._max_acknowledgement_bytes}",
                hint="Configure a checkpoint directory: its files do not travel in acknowledgements.",
            )

    def _keep(self, data: bytes) -> StateHandle:
        with self._lock:
            self._check(len(data))
            self._acknowledged_bytes += len(data)
        return InlineHandle(data=data)


def check_file_streams(inline_threshold_bytes: int, write_buffer_bytes: int) -> None:
    """Refuse sizes that streams to files cannot work with.

    Raises:
        ConfigError: Names the option.
    """
    if not 0 <= inline_threshold_bytes <= MAX_INLINE_THRESHOLD_BYTES:
        raise ConfigError(
            f"inline_threshold_bytes is {inline_threshold_bytes}; allowed are 0 to {MAX_INLINE_THRESHOLD_BYTES}",
            hint="Inline state lies in the metadata, which every start reads whole.",
        )
    if write_buffer_bytes < 1:
        raise ConfigError(f"write_buffer_bytes is {write_buffer_bytes}; it must be at least 1")
