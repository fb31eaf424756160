"""The first bytes of an open file, as a file of their own."""

from __future__ import annotations

import io
import os
from typing import Any

from partfile.recovery.layout import part_too_short


class ValidPrefix(io.RawIOBase):
    """Reads an open file up to its valid length and never beyond.

    Args:
        file: Open for reading; closed with this one.
        valid_length: In bytes.
        path: Of the file, for messages.

    Raises:
        PartMissing: On reading, where the file ends before its valid length.
    """

    def __init__(self, file: Any, valid_length: int, path: str) -> None:
        super().__init__()
        self._file = file
        self._valid_length = valid_length
        self._path = path
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; the end is the valid length."""
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._valid_length}
        position = starts[whence] + offset
        if position < 0:
            raise ValueError(f"position {position} is before the start of {self._path!r}")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Read up to the valid length."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._valid_length - self._position)
        if wanted <= 0:
            return 0
        if self._file.tell() != self._position:
            self._file.seek(self._position)
        data = self._file.read(wanted)
        if not data:
            raise part_too_short(self._path, self._position, self._valid_length)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._file.close()
        super().close()


def valid_prefix(file: Any, valid_length: int, path: str) -> io.BufferedReader:
    """The valid part of an open file, buffered; see ``ValidPrefix``."""
    return io.BufferedReader(ValidPrefix(file, valid_length, path))
