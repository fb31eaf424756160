"""Snappy in Hadoop's framing: what the codec writes is read, and what it would never write is refused by name."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING

import cramjam
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import PartDamaged
from partfile.readers.streams import SnappyBlocks

if TYPE_CHECKING:
    from pathlib import Path


def number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def block(*chunks: bytes) -> bytes:
    """One block as Hadoop writes it: the length of all, then each chunk behind its own."""
    compressed = [bytes(cramjam.snappy.compress_raw(chunk)) for chunk in chunks]
    return number(sum(map(len, chunks))) + b"".join(number(len(chunk)) + chunk for chunk in compressed)


def content(data: bytes) -> bytes:
    with io.BufferedReader(SnappyBlocks(io.BytesIO(data), "x.snappy")) as file:
        return file.read()


def test_blocks_of_several_chunks_and_of_nothing_are_read() -> None:
    """Hadoop cuts a long write into chunks, and a stream without a byte is a block without one."""
    chance = random.Random(1)
    texts = [chance.randbytes(size) for size in (1, 200_000, 70_000)] + [b"ab" * 100_000]
    data = block(*texts[:2]) + number(0) + block(texts[2]) + block(texts[3])
    assert content(data) == b"".join(texts)
    assert content(b"") == content(number(0)) == b""


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_it_is_read_in_pieces_of_any_size(size: int) -> None:
    """A reader that asks for little gets each byte once."""
    blocks = SnappyBlocks(io.BytesIO(block(b"abc" * 100, b"d" * 50) + block(b"e")), "x.snappy")
    pieces = iter(lambda: blocks.read(size), b"")
    assert b"".join(pieces) == b"abc" * 100 + b"d" * 50 + b"e"


def test_a_file_that_ends_inside_a_block_is_damaged() -> None:
    """Wherever it is cut but between two blocks, so that rows are never missing in silence."""
    first = block(b"first" * 9, b"more")
    data = first + block(b"second")
    for length in range(len(data)):
        if length in {0, len(first)}:
            assert content(data[:length]) == (b"first" * 9 + b"more" if length else b"")
            continue
        with pytest.raises(PartDamaged, match=r"'x.snappy' does not hold snappy"):
            content(data[:length])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"plain text, not snappy", "a chunk is to be of"),
        (number(5) + number(0), "a chunk is to hold 0 bytes"),
        (number(5) + number(3) + b"\xff\xff\xff", "a chunk is to hold 0 bytes"),
        (number(2**32 - 1) + number(7) + b"\xff\xff\xff\xff\x0f\x00a", "a chunk is to hold 4294967295 bytes"),
        (number(1) + block(b"abc")[4:], "a chunk is to hold 3 bytes"),
        (number(3) + number(5) + b"\x03\xff\xff\xff\xff", "(?i)corrupt|snappy"),
    ],
)
def test_what_the_codec_would_never_write_is_refused(data: bytes, words: str) -> None:
    """Lengths that do not fit each other cost no memory, and the message says what is wrong."""
    with pytest.raises(PartDamaged, match=words) as damaged:
        content(data)
    assert damaged.value.path == "x.snappy"


@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_a_damaged_file_ends_a_scan(format: str, tmp_path: Path) -> None:
    """With the error that names the file, and never with fewer rows."""
    with pf.FileSink(tmp_path, uid="s", format=format, compression="snappy").local() as out:
        for first in (0, 1000):
            out.write(pa.table({"value": [f"row {row}" for row in range(first, first + 1000)]}))
            out.checkpoint()
    (part,) = tmp_path.glob("part-*.snappy")
    assert pf.read(tmp_path).count_rows() == 2000
    assert len(pf.read(tmp_path).to_table()["value"].unique()) == 2000
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(PartDamaged, match="it ends inside a block"):
        pf.read(tmp_path, schema=pa.schema({"value": pa.string()})).to_table()
