"""The first bytes of an open file, as a file of their own."""

from __future__ import annotations

import io
from typing import Any

from partfile.filesystems.seekable_file import SeekableFile
from partfile.recovery.layout import part_too_short


class ValidPrefix(SeekableFile):
    """Reads an open file up to its valid length and never beyond.

    Args:
        file: Open for reading; closed with this one.
        valid_length: In bytes.
        path: Of the file, for messages.

    Raises:
        PartMissing: On reading, where the file ends before its valid length.
    """

    def __init__(self, file: Any, valid_length: int, path: str) -> None:
        super().__init__(path)
        self._file = file
        self._valid_length = valid_length

    @property
    def _end(self) -> int:
        return self._valid_length

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
