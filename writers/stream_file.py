"""A part's stream as the file that pyarrow's writers want."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.writers.port import ByteStream


_GATHERED_BYTES = 256 << 10
"""Arrow writes each header and page by a call of its own; fewer bytes than these are gathered."""


class StreamFile:
    """Passes bytes on to a stream, but only when asked to; closing it leaves the stream open.

    pyarrow ends a file that nobody closed when it is collected as garbage, and that end must not reach a part that was
    given up, or that another process has taken over.

    Args:
        stream: Where the bytes go; the file begins at its position.
    """

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._start = stream.position
        self._passes = False
        self._gathered = bytearray()

    @contextmanager
    def passing(self) -> Iterator[Self]:
        """Pass on what is written meanwhile: all of it, by the end of the block."""
        self._passes = True
        try:
            yield self
            self._hand_on()
        finally:
            self._passes = False

    def write(self, data: Any) -> int:
        """Append all of ``data``."""
        size_bytes = len(data)
        if not self._passes:
            return size_bytes
        if len(self._gathered) + size_bytes > _GATHERED_BYTES:
            self._hand_on()
        if size_bytes > _GATHERED_BYTES:
            self._stream.write(data)
        else:
            self._gathered += data
        return size_bytes

    def tell(self) -> int:
        """Bytes since the start of the file."""
        return self._stream.position - self._start + len(self._gathered)

    def flush(self) -> None:
        """Persisting is the stream's own verb."""

    def close(self) -> None:
        """The stream belongs to whoever opened it."""

    def _hand_on(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._stream.write(memoryview(gathered))
