"""Staged objects of parts that are finished: deleted many at a time, since each request costs."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.filesystems.s3_access import S3Access

logger = logging.getLogger("partfile")
_MOST_WAITING = 500


class Garbage:
    """What may be deleted: nothing needs it, and leaving it does no harm, so no failure counts. Thread safe.

    Args:
        access: The store's objects.
    """

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        # Each once: a server was seen to crash over a key that one request named twice.
        self._paths: dict[str, None] = {}

    def add(self, paths: Iterable[str]) -> None:
        """Delete these, soon."""
        with self._lock:
            self._paths |= dict.fromkeys(paths)
            is_full = len(self._paths) >= _MOST_WAITING
        if is_full:
            self.delete()

    def delete(self) -> None:
        """Delete what waits."""
        with self._lock:
            paths, self._paths = list(self._paths), {}
        try:
            self._access.delete_many(paths)
        except PartfileError as error:
            logger.warning("%d staged objects of finished parts stay, for the cleaner: %s", len(paths), error)
