"""A stream that knows the CRC-32 of all its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.checksums import crc32_of

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream


class ChecksummedStream:
    """Passes bytes on to a stream, and keeps the CRC-32 of everything that it holds by then.

    Args:
        stream: Where the bytes go.
        crc32: Of what it holds already; a CRC-32 goes on from its value alone, so nothing is read for it.
    """

    def __init__(self, stream: ByteStream, crc32: int = 0) -> None:
        self._stream = stream
        self._crc32 = crc32

    @property
    def crc32(self) -> int:
        """Of all bytes up to the position."""
        return self._crc32

    @property
    def position(self) -> int:
        """That of the stream: bytes handed over so far, counted from the start of the part."""
        return self._stream.position

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``."""
        self._stream.write(data)
        self._crc32 = crc32_of(data, self._crc32)
