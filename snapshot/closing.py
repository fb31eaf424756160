"""A registry of what must be closed when a snapshot is cancelled."""

from __future__ import annotations

import threading
from typing import Protocol

from partfile.filesystems.errors import SnapshotCancelled


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
        """Hand ``closeable`` back to its owner, who closes it from here on.

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
