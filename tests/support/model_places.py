"""What the processes of the model see of the disk: local files whose times are the steps of the schedule."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partfile.testing.faults import TrackedCalls

if TYPE_CHECKING:
    from collections.abc import Callable


class ClockedCalls(TrackedCalls):
    """System calls after which a file was changed when the clock says so; what has no clock cannot be repeated.

    Args:
        now_ms: The clock of the disk, in milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self._now_ms = now_ms

    def create(self, directory: int, name: str) -> int:
        """See ``PosixCalls.create``."""
        descriptor = super().create(directory, name)
        self._touch(descriptor)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        """See ``PosixCalls.write``."""
        taken = super().write(descriptor, data)
        self._touch(descriptor)
        return taken

    def truncate(self, descriptor: int, length: int) -> None:
        """See ``PosixCalls.truncate``."""
        super().truncate(descriptor, length)
        self._touch(descriptor)

    def _touch(self, descriptor: int) -> None:
        changed_ns = self._now_ms() * 1_000_000
        os.utime(descriptor, ns=(changed_ns, changed_ns))
