"""What Arrow writes in small pieces reaches the stream in few, whole and in order, and only when it may."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partfile.writers.arrow_stage import StreamFile
from partfile.writers.parquet import ParquetFormat


class _Stream:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    @property
    def position(self) -> int:
        return sum(map(len, self.pieces))

    def write(self, data: bytes | memoryview) -> None:
        self.pieces.append(bytes(data))


def test_small_and_large_pieces_arrive_whole_and_in_order() -> None:
    """Whatever the sizes, the stream has all bytes in order at the end of each block, and tell() knew it before."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    chance, stream, expected = random.Random(seed), _Stream(), bytearray()
    file = StreamFile(stream)
    for _ in range(20):
        with file.passing():
            for _ in range(chance.randrange(10)):
                piece = chance.randbytes(chance.choice([1, 100, 100_000, 300_000]))
                assert file.write(piece) == len(piece)
                expected += piece
                assert file.tell() == len(expected)
        assert b"".join(stream.pieces) == expected


def test_nothing_arrives_outside_a_block_or_of_one_that_failed() -> None:
    """A file that is collected as garbage, or whose row group failed, adds nothing to the part."""
    stream = _Stream()
    file = StreamFile(stream)
    assert file.write(b"too early") == 9

    def fail() -> None:
        with file.passing():
            file.write(b"half")
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        fail()
    file.write(b"too late")
    assert stream.pieces == []


def test_a_small_parquet_file_is_a_few_writes() -> None:
    """Each write is a system call: a small file with many columns is not written page by page."""
    rows = pa.record_batch({f"c{number}": [1, 2, 3] for number in range(50)})
    stream = _Stream()
    ParquetFormat().encode([rows], rows.schema, stream)
    assert len(stream.pieces) <= 4
    assert pq.read_table(pa.BufferReader(b"".join(stream.pieces))).to_batches()[0].equals(rows)
