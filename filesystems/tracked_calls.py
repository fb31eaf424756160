"""System calls that know which descriptors are open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partfile.filesystems.posix import PosixCalls

if TYPE_CHECKING:
    from partfile.filesystems.posix import Access


class TrackedCalls(PosixCalls):
    """Remembers open descriptors, so that a test can count leaks or play the dying process."""

    def __init__(self) -> None:
        self.open_descriptors: set[int] = set()

    def open_base(self, path: str) -> int:
        """See ``PosixCalls.open_base``."""
        return self._track(super().open_base(path))

    def open_directory(self, directory: int, segment: str) -> int:
        """See ``PosixCalls.open_directory``."""
        return self._track(super().open_directory(directory, segment))

    def create(self, directory: int, name: str) -> int:
        """See ``PosixCalls.create``."""
        return self._track(super().create(directory, name))

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """See ``PosixCalls.open_existing``."""
        return self._track(super().open_existing(directory, name, access))

    def close(self, descriptor: int) -> None:
        """See ``PosixCalls.close``."""
        self.open_descriptors.discard(descriptor)
        super().close(descriptor)

    def die(self) -> None:
        """Close everything as the kernel does for a dead process, which also frees its locks."""
        while self.open_descriptors:
            os.close(self.open_descriptors.pop())

    def _track(self, descriptor: int) -> int:
        self.open_descriptors.add(descriptor)
        return descriptor
