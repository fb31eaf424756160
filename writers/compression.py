"""Compressed row parts: one gzip member or zstd frame from each persist to the next.

Members and frames stand side by side in one file, and every reader we know takes such a file as a whole. So each
length that a persist returned is a place where a part may be cut, and where another process may go on.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.writers.port import ByteStream

_SUFFIXES = {None: "", "gzip": ".gz", "zstd": ".zst"}
_GZIP_WBITS = 31  # 15 bits of window, plus 16: with a gzip header, whose time stamp zlib leaves at zero.
_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How row parts are compressed.

    Args:
        codec: ``"gzip"``, ``"zstd"`` or None for plain bytes.
        level: gzip only, 0 (fast) to 9 (small); None is 6. zstd always uses the level of pyarrow's stream, which is 1.

    Raises:
        ConfigError: An unknown codec, or a level that the codec does not take.
    """

    codec: str | None = None
    level: int | None = None

    def __post_init__(self) -> None:
        if self.codec not in _SUFFIXES:
            raise ConfigError(f"Compression {self.codec!r} is not known.", hint="Row formats take None, gzip and zstd.")
        if self.level is None:
            return
        if self.codec != "gzip":
            raise ConfigError(f"Compression {self.codec!r} takes no level.", hint="Only gzip does: 0 to 9.")
        if not 0 <= self.level <= 9:  # noqa: PLR2004
            raise ConfigError(f"The gzip level {self.level} is not from 0 to 9.")

    @property
    def suffix(self) -> str:
        """What the file name gets at its end, dot included."""
        return _SUFFIXES[self.codec]

    def start(self, stream: ByteStream) -> Frame:
        """Begin one member or frame at the end of ``stream``."""
        chunks = _Chunks(stream)
        if self.codec == "gzip":
            return _GzipMember(chunks, -1 if self.level is None else self.level)
        if self.codec == "zstd":
            return _ZstdFrame(chunks)
        return _Plain(stream)


class Frame(Protocol):
    """Bytes on their way through one member or frame."""

    def write(self, data: bytes | memoryview) -> None:
        """Take ``data``; compressed bytes reach the stream in large chunks."""

    def finish(self) -> None:
        """End the frame: every byte is with the stream, and the frame can be thrown away."""


class _Plain:
    """No compression: bytes go straight to the stream."""

    def __init__(self, stream: ByteStream) -> None:
        self.write: Callable[[bytes | memoryview], None] = stream.write

    def finish(self) -> None:
        """Nothing is held back, so nothing is left to do."""


class _Chunks:
    """Collects the small pieces that codecs emit, since each write to a stream may be a system call or more.

    Only a frame hands bytes on. pyarrow ends a frame that nobody finished when it is collected as garbage, and what it
    emits then must not reach a part that was given up, or that another process has taken over.
    """

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._pending = bytearray()

    def write(self, data: Any) -> int:
        self._pending += data
        return len(data)

    def hand_on(self, at_least: int) -> None:
        if len(self._pending) >= at_least:
            pending, self._pending = self._pending, bytearray()
            self._stream.write(memoryview(pending))

    def flush(self) -> None:
        """Called by pyarrow, which takes this for a file."""

    def close(self) -> None:
        """Called by pyarrow; the end of a frame is not the end of the part."""


class _GzipMember:
    def __init__(self, chunks: _Chunks, level: int) -> None:
        self._chunks = chunks
        self._codec = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)

    def write(self, data: bytes | memoryview) -> None:
        self._chunks.write(self._codec.compress(data))
        self._chunks.hand_on(_CHUNK_BYTES)

    def finish(self) -> None:
        self._chunks.write(self._codec.flush())
        self._chunks.hand_on(1)


class _ZstdFrame:
    def __init__(self, chunks: _Chunks) -> None:
        self._chunks = chunks
        self._codec = pa.CompressedOutputStream(pa.PythonFile(cast("Any", chunks), mode="w"), "zstd")

    def write(self, data: bytes | memoryview) -> None:
        self._codec.write(data)
        self._chunks.hand_on(_CHUNK_BYTES)

    def finish(self) -> None:
        self._codec.close()
        self._chunks.hand_on(1)
