"""Snappy as Hadoop's codec frames it, decompressed: blocks of a length and chunks, each with the length of its own."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from partfile.filesystems.errors import PartDamaged

_LENGTH_BYTES = 4
_MOST_CHUNK_BYTES = 64 << 20
"""Hadoop's own chunks are of 256 KiB; what says that it is larger than this is no chunk."""
_MOST_RATIO = 64
"""Snappy stands for no more bytes than so many by one."""
_SEVEN_BITS = 7
_LONGEST_VARINT_BYTES = 5


class SnappyBlocks(io.RawIOBase):
    """The content of a file of such blocks; a chunk of it is in memory.

    Args:
        file: Open for reading; closed with this one.
        path: Of the file, for messages.

    Raises:
        PartDamaged: On reading, where the file holds something else, or ends inside a block.
    """

    def __init__(self, file: Any, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._codec = pa.Codec("snappy")
        self._left_of_block_bytes = 0
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there of a chunk; 0 at the end."""
        if not self._chunk and not self._read_chunk():
            return 0
        view = memoryview(buffer).cast("B")
        taken = self._chunk[: len(view)]
        view[: len(taken)] = taken
        self._chunk = self._chunk[len(taken) :]
        return len(taken)

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._file.close()
        super().close()

    def _read_chunk(self) -> bool:
        """Decompress the next chunk; False at the end of the file, which is the end of a block."""
        # A stream of nothing is a block of nothing.
        while self._left_of_block_bytes == 0:
            head = self._file.read(_LENGTH_BYTES)
            if not head:
                return False
            self._left_of_block_bytes = self._length_in(head)
        compressed = self._exactly(self._length_in(self._file.read(_LENGTH_BYTES)))
        size_bytes = _content_bytes(compressed)
        if not 0 < size_bytes <= min(self._left_of_block_bytes, _MOST_RATIO * len(compressed)):
            raise self._damaged(f"a chunk is to hold {size_bytes} bytes")
        try:
            self._chunk = memoryview(self._codec.decompress(compressed, size_bytes)).cast("B")
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(str(error)) from error
        self._left_of_block_bytes -= size_bytes
        return True

    def _length_in(self, head: bytes) -> int:
        if len(head) < _LENGTH_BYTES:
            raise self._damaged("it ends inside a block")
        return int.from_bytes(head, "big")

    def _exactly(self, size_bytes: int) -> bytes:
        if size_bytes > _MOST_CHUNK_BYTES:
            raise self._damaged(f"a chunk is to be of {size_bytes} bytes")
        data: bytes = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise self._damaged("it ends inside a block")
        return data

    def _damaged(self, what: str) -> PartDamaged:
        return PartDamaged(
            f"{self._path!r} does not hold snappy as Hadoop frames it: {what}",
            hint="Bring the file back from a copy, or rename it if it is of another form.",
            path=self._path,
        )


def _content_bytes(compressed: bytes) -> int:
    """The length that raw snappy begins with: seven bits a byte, the lowest first; 0 if it is none."""
    size_bytes = 0
    for place, byte in enumerate(compressed[:_LONGEST_VARINT_BYTES]):
        size_bytes |= (byte & 0x7F) << (_SEVEN_BITS * place)
        if not byte & 0x80:
            return size_bytes
    return 0
