"""A part in memory, and ways to read it back."""

from __future__ import annotations

import gzip
import io
from typing import TYPE_CHECKING

import pytest
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable


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
    return data


@pytest.fixture(name="memory_part")
def memory_part_fixture() -> type[MemoryPart]:
    """Make parts in memory."""
    return MemoryPart


@pytest.fixture(name="decode")
def decode_fixture() -> Callable[[bytes, str | None], bytes]:
    """Decode what a part holds."""
    return decode
