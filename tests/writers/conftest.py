"""A part in memory, and ways to read it back."""

from __future__ import annotations

import bz2
import gzip
import io
from typing import TYPE_CHECKING

import cramjam
import pytest
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class MemoryPart:
    """A stream that keeps its bytes, and can begin behind bytes that are there already."""

    def __init__(self, start: bytes = b"") -> None:
        self.data = bytearray(start)
        self.writes = 0

    @property
    def position(self) -> int:
        """Bytes in the part."""
        return len(self.data)

    def write(self, data: bytes | memoryview) -> None:
        """Append a copy, as a file would."""
        self.data += data
        self.writes += 1


def decode(data: bytes, codec: str | None) -> bytes:
    """Decompress all members or frames of a part with a decoder that is not ours."""
    if codec == "gzip":
        return gzip.decompress(data)
    if codec == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            return reader.read()
    if codec == "bz2":
        return bz2.decompress(data)
    if codec == "lz4":
        return bytes(cramjam.lz4.decompress(data)) if data else b""
    if codec == "snappy":
        return b"".join(_hadoop_blocks(io.BytesIO(data)))
    return data


def _hadoop_blocks(file: io.BytesIO) -> Iterator[bytes]:
    while head := file.read(8):
        size_bytes, compressed_bytes = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        assert 0 < compressed_bytes <= 256 << 10, "more than Hadoop's reader takes"
        block = bytes(cramjam.snappy.decompress_raw(file.read(compressed_bytes)))
        assert len(block) == size_bytes
        yield block


@pytest.fixture(name="memory_part")
def memory_part_fixture() -> type[MemoryPart]:
    """Make parts in memory."""
    return MemoryPart


@pytest.fixture(name="decode")
def decode_fixture() -> Callable[[bytes, str | None], bytes]:
    """Decode what a part holds."""
    return decode
