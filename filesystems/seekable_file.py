"""What every file shares that is read from a position: how it is moved."""

from __future__ import annotations

import io
import os
from abc import abstractmethod

_AT_ONCE_BYTES = 1 << 20


class SeekableFile(io.RawIOBase):
    """A file to read, at a position of its own; a subclass says where it ends, and reads by ``readinto``.

    Args:
        path: Of the file, for messages.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._position = 0

    @property
    @abstractmethod
    def _end(self) -> int:
        """Bytes up to where it can be read."""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def readall(self) -> bytes:
        """Read all that is left; Python itself would ask for a few KiB at a time."""
        pieces = []
        while piece := self.read(_AT_ONCE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; beyond the end nothing is read."""
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}
        position = starts[whence] + offset
        if position < 0:
            raise ValueError(f"position {position} is before the start of {self._path!r}")
        self._position = position
        return position
