"""Output streams of a snapshot: bytes go in, a handle comes out, or nothing is left."""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from partfile.errors import ConfigError, SnapshotCancelled, StateTooLarge
from partfile.snapshot import documents
from partfile.snapshot.documents import FileHandle, InlineHandle
from partfile.stores.checksums import crc32_of
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.documents import StateHandle
    from partfile.stores.base import MetadataStore


class Scope(Enum):
    """The owner of a file of state: this decides its directory, and when it is deleted."""

    EXCLUSIVE = "exclusive"
    """Of one checkpoint, and deleted with it: ``chk-N/``."""
    SHARED = "shared"
    """Of several checkpoints: ``shared/``. Deleted when none of them is left, or with the job."""
    TASK_OWNED = "task-owned"
    """Of the task; no coordinator deletes it: ``taskowned/``."""


class CheckpointOutputStream(Protocol):
    """Takes the bytes of one piece of state. Source: Flink's ``CheckpointStateOutputStream``, as of 1.20."""

    @property
    def position(self) -> int:
        """Bytes written so far."""

    def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            SnapshotCancelled: The stream is closed.
            StateTooLarge: The storage does not take that much.
        """

    def close_and_get_handle(self) -> StateHandle | None:
        """End the stream and return what the checkpoint names; None if nothing was written.

        Durability: a file is durable before its handle exists.

        Raises:
            SnapshotCancelled: The stream was closed before; nothing of it is left.
        """

    def close(self) -> None:
        """Discard what was written and leave nothing behind; does nothing after the handle was given out. Idempotent.

        Another thread may call it, also while the stream is being ended.
        """


class CollectedBytes:
    """The bytes of a stream so far: a buffer of fixed size, and the full buffers before it. Not thread safe.

    Args:
        buffer_bytes: Size at which the buffer is sealed; a single larger write is sealed as it is.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray()
        self._sealed: list[bytes] = []
        self.position = 0
        """Bytes taken so far."""

    def add(self, data: bytes) -> None:
        """Append ``data``."""
        self.position += len(data)
        if len(data) >= self._buffer_bytes:
            self._seal()
            # No copy, if it is bytes.
            self._sealed.append(bytes(data))
            return
        self._buffer += data
        if len(self._buffer) >= self._buffer_bytes:
            self._seal()

    def take(self) -> bytes:
        """All of it in one piece; nothing is held afterwards."""
        self._seal()
        pieces, self._sealed = self._sealed, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _seal(self) -> None:
        if self._buffer:
            self._sealed.append(bytes(self._buffer))
            self._buffer.clear()


class BufferedStream:
    """A stream that collects everything and hands it over whole when it ends, as no store takes metadata in pieces.

    Args:
        collected: Takes the bytes.
        check: Raises if the stream may not grow to this position.
        keep: Makes a handle of the bytes.
        discard: Deletes what a handle names; called if the stream is closed while ``keep`` runs.
    """

    def __init__(
        self,
        collected: CollectedBytes,
        *,
        check: Callable[[int], None],
        keep: Callable[[bytes], StateHandle],
        discard: Callable[[StateHandle], None],
    ) -> None:
        self._collected = collected
        self._check = check
        self._keep = keep
        self._discard = discard
        self._lock = threading.Lock()
        self._is_ended = False
        self._is_discarded = False

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._collected.position

    def write(self, data: bytes) -> None:
        """Collect ``data``."""
        with self._lock:
            self._check_open()
            self._check(self.position + len(data))
            self._collected.add(data)

    def close_and_get_handle(self) -> StateHandle | None:
        """Hand everything over; if the stream is closed meanwhile, what became of it is discarded."""
        with self._lock:
            self._check_open()
            self._is_ended = True
            data = self._collected.take()
        handle = self._keep(data) if data else None
        with self._lock:
            is_discarded = self._is_discarded
        if is_discarded:
            if handle is not None:
                self._discard(handle)
            raise SnapshotCancelled("the stream was closed while it was being ended")
        return handle

    def close(self) -> None:
        """Drop what was collected."""
        with self._lock:
            self._is_discarded = True
            self._collected.take()

    def _check_open(self) -> None:
        if self._is_discarded or self._is_ended:
            raise SnapshotCancelled("the stream of the snapshot is closed")


DEFAULT_INLINE_THRESHOLD_BYTES = 20 * 1024
MAX_INLINE_THRESHOLD_BYTES = 1 << 20
DEFAULT_WRITE_BUFFER_BYTES = 4096
DEFAULT_MAX_STATE_BYTES = 5 << 20
DEFAULT_MAX_ACKNOWLEDGEMENT_BYTES = 10 << 20


class CheckpointStreamFactory(Protocol):
    """Opens the streams of one subtask for one checkpoint. Source: Flink's ``CheckpointStreamFactory``, as of 1.20."""

    def create(self, scope: Scope) -> CheckpointOutputStream:
        """Open a stream whose file, if it comes to one, belongs to ``scope``."""

    def keep(self, data: bytes, scope: Scope) -> StateHandle:
        """Keep bytes that are whole already, and return what the checkpoint names.

        Durability: a file is durable before its handle exists.

        Raises:
            StateTooLarge: The storage does not take that much; nothing was written.
        """

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
            keep=lambda data: self.keep(data, scope),
            discard=self.discard,
        )

    def discard(self, handle: StateHandle) -> None:
        """Delete the file of a handle; inline state is gone with its handle."""
        if isinstance(handle, FileHandle):
            self._store.delete_file(documents.below(self._directory, handle.path))

    def keep(self, data: bytes, scope: Scope) -> StateHandle:
        """Inline up to the threshold, else in a file of its own that is created whole."""
        if len(data) <= self._inline_threshold_bytes:
            return InlineHandle(data=data)
        name = documents.state_path(self._directory_of(scope), new_token())
        self._store.create_file(documents.below(self._directory, name), data)
        return FileHandle(path=name, size_bytes=len(data), crc32=crc32_of(data))

    def _directory_of(self, scope: Scope) -> str:
        if self._checkpoint_id is None:
            return ""
        if scope is Scope.EXCLUSIVE:
            return documents.checkpoint_directory(self._checkpoint_id)
        return documents.SHARED if scope is Scope.SHARED else documents.TASK_OWNED


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

    def create(self, scope: Scope) -> CheckpointOutputStream:
        """Open a stream; memory is the same for every scope."""
        return BufferedStream(
            CollectedBytes(DEFAULT_WRITE_BUFFER_BYTES),
            check=self._check,
            keep=lambda data: self.keep(data, scope),
            discard=self.discard,
        )

    def discard(self, handle: StateHandle) -> None:
        """Count a handle's state out of the acknowledgement."""
        with self._lock:
            self._acknowledged_bytes -= handle.size_bytes

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_state_bytes:
            raise StateTooLarge(
                f"state of {size_bytes} bytes is larger than max_state_bytes={self._max_state_bytes}",
                hint=(
                    "Raise the limit, as max_state_bytes=BYTES; or keep the checkpoints on a file system: "
                    "FileSystemStorageSettings(url=URL)"
                ),
            )
        if self._acknowledged_bytes + size_bytes > self._max_acknowledgement_bytes:
            raise StateTooLarge(
                f"an acknowledgement with {self._acknowledged_bytes + size_bytes} bytes of state is larger than "
                f"max_acknowledgement_bytes={self._max_acknowledgement_bytes}",
                hint=(
                    "Keep the checkpoints on a file system, whose files do not travel in acknowledgements: "
                    "FileSystemStorageSettings(url=URL)"
                ),
            )

    def keep(self, data: bytes, scope: Scope) -> StateHandle:  # noqa: ARG002 - memory has no directories.
        """Inline, if one piece of state and one acknowledgement may be that large."""
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
            hint=(
                "Inline state lies in the metadata, which every start reads whole. Write for instance "
                "inline_threshold_bytes=20480."
            ),
        )
    if write_buffer_bytes < 1:
        raise ConfigError(f"write_buffer_bytes is {write_buffer_bytes}; it must be at least 1")
