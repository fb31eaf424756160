"""Compressed row parts: one member or frame from each persist to the next.

Members and frames stand side by side in one file, and every reader of a codec takes such a file as a whole. So each
length that a persist returned is a place where a part may be cut, and where another process may go on.
"""

from __future__ import annotations

import bz2
import difflib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from partfile.errors import ConfigError
from partfile.writers.base import resolve_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.writers.base import ByteStream


_GZIP_WBITS = 31  # 15 bits of window, plus 16: with a gzip header, whose time stamp zlib leaves at zero.
_CHUNK_BYTES = 256 << 10
_SNAPPY_BLOCK_BYTES = 192 << 10
"""Less than 256 KiB also where snappy makes it larger, since that is the buffer of Hadoop's reader."""


class Frame(Protocol):
    """Bytes on their way through one member or frame."""

    def write(self, data: bytes | memoryview) -> None:
        """Take ``data``; compressed bytes reach the stream in large chunks."""

    def finish(self) -> None:
        """End the frame: every byte is with the stream, and the frame can be thrown away."""


def plain(stream: ByteStream, _level: int | None) -> Frame:
    """No compression."""
    return _Plain(stream)


def gzip(stream: ByteStream, level: int | None) -> Frame:
    """One gzip member."""
    return _Member(stream, zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WBITS))


def bzip2(stream: ByteStream, level: int | None) -> Frame:
    """One bzip2 stream."""
    return _Member(stream, bz2.BZ2Compressor(9 if level is None else level))


def zstd(stream: ByteStream, _level: int | None) -> Frame:
    """One zstd frame."""
    return _ArrowFrame(stream, "zstd")


def lz4(stream: ByteStream, _level: int | None) -> Frame:
    """One LZ4 frame."""
    return _ArrowFrame(stream, "lz4")


def snappy(stream: ByteStream, _level: int | None) -> Frame:
    """Blocks as Hadoop's SnappyCodec frames them."""
    return _SnappyBlocks(stream)


class _Plain:
    """No compression: bytes go straight to the stream."""

    def __init__(self, stream: ByteStream) -> None:
        self.write: Callable[[bytes | memoryview], None] = stream.write

    def finish(self) -> None:
        """Nothing is held back, so nothing is left to do."""


class _Chunks:
    """Collects the small pieces that codecs emit, since each write to a stream may be a system call or more.

    Only a frame hands bytes on. pyarrow ends an unfinished frame when it is collected as garbage, and what it
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


class _Member:
    """Goes through a compressor of the standard library."""

    def __init__(self, stream: ByteStream, codec: Any) -> None:
        self._chunks = _Chunks(stream)
        self._codec = codec

    def write(self, data: bytes | memoryview) -> None:
        self._chunks.write(self._codec.compress(data))
        self._chunks.hand_on(_CHUNK_BYTES)

    def finish(self) -> None:
        self._chunks.write(self._codec.flush())
        self._chunks.hand_on(1)


class _ArrowFrame:
    """Goes through a compressed stream of pyarrow."""

    def __init__(self, stream: ByteStream, codec: str) -> None:
        self._chunks = _Chunks(stream)
        self._codec = pa.CompressedOutputStream(pa.PythonFile(cast("Any", self._chunks), mode="w"), codec)

    def write(self, data: bytes | memoryview) -> None:
        self._codec.write(data)
        self._chunks.hand_on(_CHUNK_BYTES)

    def finish(self) -> None:
        self._codec.close()
        self._chunks.hand_on(1)


class _SnappyBlocks:
    """Blocks that stand for themselves: their length before and after compression, big-endian, and the bytes."""

    def __init__(self, stream: ByteStream) -> None:
        self._chunks = _Chunks(stream)
        self._codec = pa.Codec("snappy")
        self._block = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while len(self._block) + len(rest) >= _SNAPPY_BLOCK_BYTES:
            taken = _SNAPPY_BLOCK_BYTES - len(self._block)
            self._block += rest[:taken]
            rest = rest[taken:]
            self._end_block()
        self._block += rest
        self._chunks.hand_on(_CHUNK_BYTES)

    def finish(self) -> None:
        if self._block:
            self._end_block()
        self._chunks.hand_on(1)

    def _end_block(self) -> None:
        compressed = self._codec.compress(self._block)
        for size_bytes in (len(self._block), len(compressed)):
            self._chunks.write(size_bytes.to_bytes(4, "big"))
        self._chunks.write(compressed)
        self._block = bytearray()


@dataclass(frozen=True, slots=True)
class _Codec:
    """One way to compress rows: the suffix that readers know it by, and the levels that it takes, if any."""

    suffix: str
    start: Callable[[ByteStream, int | None], Frame]
    levels: range | None = None


_CODECS: dict[str | None, _Codec] = {
    None: _Codec("", plain),
    "gzip": _Codec(".gz", gzip, range(10)),
    "bz2": _Codec(".bz2", bzip2, range(1, 10)),
    "zstd": _Codec(".zst", zstd),
    "lz4": _Codec(".lz4", lz4),
    "snappy": _Codec(".snappy", snappy),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """The compression of row parts.

    Args:
        codec: ``"gzip"``, ``"zstd"``, ``"bz2"``, ``"lz4"``, ``"snappy"``, or None for plain bytes. docs/FORMATS.md says
            which reader knows which.
        level: gzip from 0 (fast) to 9 (small), where None is 6; bz2 from 1 to 9, where None is 9. zstd and lz4 always
            use the level of pyarrow's streams, which is 1.

    Raises:
        ConfigError: An unknown codec, or a level that the codec does not take.
    """

    codec: str | None = None
    level: int | None = None

    def __post_init__(self) -> None:
        resolve_options(self, Compression)
        if self.codec not in _CODECS:
            known = ", ".join(str(name) for name in _CODECS)
            near = difflib.get_close_matches(str(self.codec).lower(), filter(None, _CODECS), 1, cutoff=0.5)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"Compression {self.codec!r} is not known.",
                hint=f"{meant}Row formats take {known}: write compression='gzip'.",
            )
        if self.level is None:
            return
        levels = _CODECS[self.codec].levels
        if levels is None:
            raise ConfigError(
                f"Compression {self.codec!r} takes no level.",
                hint="Leave compression_level out, or write compression='gzip' or 'bz2', which take one.",
            )
        if self.level not in levels:
            raise ConfigError(
                f"The {self.codec} level {self.level} is not from {levels[0]} to {levels[-1]}.",
                hint=f"Write for instance compression_level={levels[len(levels) // 2]}.",
            )

    @property
    def suffix(self) -> str:
        """The end of the file name, dot included."""
        return _CODECS[self.codec].suffix

    def start(self, stream: ByteStream) -> Frame:
        """Begin one member or frame at the end of ``stream``."""
        return _CODECS[self.codec].start(stream, self.level)
