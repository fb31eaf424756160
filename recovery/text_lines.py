"""Lines and CSV records of a byte stream: quoted for a CSV reader, or one by one."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 1 << 20


class QuotedLines(io.RawIOBase):
    """The lines of a file, each in quotes, which is CSV of one column.

    pyarrow has no dataset of text lines, but one of CSV, which reads files as a stream and as often as it is asked to.
    In quotes a line may hold every character, carriage returns included.

    Args:
        file: Open for reading; closed with this one.
    """

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file
        self._ready = b""
        self._is_inside = False

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read quoted bytes; the reading stands still inside a line where a chunk ends."""
        view = memoryview(buffer).cast("B")
        if not self._ready:
            self._ready = self._quoted(self._file.read(_CHUNK_BYTES))
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._file.close()
        super().close()

    def _quoted(self, data: bytes) -> bytes:
        if not data:
            end = b'"\n' if self._is_inside else b""
            self._is_inside = False
            return end
        begin = b"" if self._is_inside else b'"'
        self._is_inside = not data.endswith(b"\n")
        lines = data.replace(b'"', b'""').replace(b"\n", b'"\n"')
        return begin + (lines if self._is_inside else lines[:-1])


def records(file: Any, *, is_csv: bool) -> Iterator[bytes]:
    """Yield the records of a file without their line ends.

    Args:
        file: Open for reading, in bytes.
        is_csv: A line feed inside quotes belongs to the record, and a carriage return before the last one does not.
    """
    rest = b""
    quotes = 0
    for line in _lines(file):
        rest += line
        quotes += line.count(b'"') if is_csv else 0
        if quotes % 2 == 0 and line.endswith(b"\n"):
            yield rest[: -2 if is_csv and rest.endswith(b"\r\n") else -1]
            rest, quotes = b"", 0
    if rest:
        yield rest


def _lines(file: Any) -> Iterator[bytes]:
    rest = b""
    while data := file.read(_CHUNK_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest
