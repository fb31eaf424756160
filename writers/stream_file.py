"""A part's stream as the file that pyarrow's writers want."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.writers.port import ByteStream


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

    @contextmanager
    def passing(self) -> Iterator[Self]:
        """Pass on what is written meanwhile."""
        self._passes = True
        try:
            yield self
        finally:
            self._passes = False

    def write(self, data: Any) -> int:
        """Append all of ``data``."""
        if self._passes:
            self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        """Bytes since the start of the file."""
        return self._stream.position - self._start

    def flush(self) -> None:
        """Persisting is the stream's own verb."""

    def close(self) -> None:
        """The stream belongs to whoever opened it."""
