"""Output streams of a snapshot: bytes go in, a handle comes out, or nothing is left."""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from partfile.filesystems.errors import SnapshotCancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.model import StateHandle


class Scope(Enum):
    """Whose a file of state is, and so which directory it lies in and who deletes it."""

    EXCLUSIVE = "exclusive"
    """Of one checkpoint, and deleted with it: ``chk-N/``."""
    SHARED = "shared"
    """Of several checkpoints: ``shared/``. Deleted with the job; nothing writes any yet."""
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
    """What a stream has taken so far: a buffer of fixed size, and the full buffers before it. Not thread safe.

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
        self._buffer += data
        if len(self._buffer) >= self._buffer_bytes:
            self._sealed.append(bytes(self._buffer))
            self._buffer.clear()

    def take(self) -> bytes:
        """All of it in one piece; nothing is held afterwards."""
        pieces, self._sealed = [*self._sealed, bytes(self._buffer)], []
        self._buffer.clear()
        return b"".join(pieces)


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
        """Append ``data``; see ``CheckpointOutputStream``."""
        with self._lock:
            self._check_open()
            self._check(self.position + len(data))
            self._collected.add(data)

    def close_and_get_handle(self) -> StateHandle | None:
        """End the stream; see ``CheckpointOutputStream``."""
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
        """Discard what was written; see ``CheckpointOutputStream``."""
        with self._lock:
            self._is_discarded = True
            self._collected.take()

    def _check_open(self) -> None:
        if self._is_discarded or self._is_ended:
            raise SnapshotCancelled("the stream of the snapshot is closed")
