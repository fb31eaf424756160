"""A lock that no child of a fork waits for in vain."""

from __future__ import annotations

import os
import threading
import weakref


class ForkLock:
    """A lock that is free in the child of a fork, where the thread that held it in the parent is missing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_failure: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Give it up, whoever has it."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _enter_child() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_enter_child)
