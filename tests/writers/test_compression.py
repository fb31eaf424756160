"""Compressed parts: each length that a persist returned decodes by itself and can be continued."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import ConfigError
from partfile.writers.compression import Compression
from partfile.writers.json import JsonLinesFormat
from partfile.writers.text import TextFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.writers.base import RowWriter


_SCHEMA = pa.schema([("x", pa.string())])
_CODECS = [None, "gzip", "zstd", "bz2", "lz4", "snappy"]


def _batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], schema=_SCHEMA)


def _open(part: Any, codec: str | None) -> RowWriter:
    return TextFormat(compression=Compression(codec=codec)).open(part, _SCHEMA)


@pytest.mark.parametrize("codec", _CODECS)
def test_every_persisted_length_is_a_whole_file(
    codec: str | None, memory_part: Any, decode: Callable[[bytes, str | None], bytes]
) -> None:
    """Random writes, persists and reopenings leave the rows before each persist, and no more, at its length."""

    @given(st.lists(st.sampled_from(["write", "encoded", "empty", "persist", "reopen"]), max_size=20))
    def check(steps: list[str]) -> None:
        part = memory_part()
        writer = _open(part, codec)
        written = b""
        persisted = [(0, b"")]
        for number, step in enumerate(steps):
            if step == "write":
                writer.write(_batch(f"row {number}", "é" * number))
                written += f"row {number}\n{'é' * number}\n".encode()
            elif step == "encoded":
                writer.write_encoded(memoryview(b"encoded\n"), 1)
                written += b"encoded\n"
            elif step == "empty":
                writer.write(_batch())
            else:
                persisted.append((writer.persist(), written))
                assert persisted[-1][0] == part.position
                writer = _open(part, codec) if step == "reopen" else writer
        writer.close()
        persisted.append((part.position, written))
        for length, expected in persisted:
            assert decode(bytes(part.data[:length]), codec) == expected

    check()


@pytest.mark.parametrize("codec", _CODECS)
def test_a_persist_without_rows_adds_nothing(codec: str | None, memory_part: Any) -> None:
    """Neither a new writer nor a second persist nor an empty batch adds a byte."""
    part = memory_part()
    writer = _open(part, codec)
    assert writer.persist() == 0
    writer.write(_batch())
    assert writer.persist() == 0
    writer.write(_batch("a"))
    length = writer.persist()
    assert length > 0
    writer.write(_batch())
    assert writer.persist() == length
    writer.close()
    assert part.position == length


@pytest.mark.parametrize(
    ("codec", "magic"),
    [
        ("gzip", b"\x1f\x8b"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("bz2", b"BZh9"),
        ("lz4", b"\x04\x22\x4d\x18"),
        ("snappy", (50 * len("some row\n")).to_bytes(4, "big")),
    ],
)
def test_there_is_one_frame_from_persist_to_persist(codec: str, magic: bytes, memory_part: Any) -> None:
    """Many writes between two persists share one member or frame, and each persist starts the next with its magic."""
    part = memory_part()
    writer = _open(part, codec)
    lengths = [0]
    for _ in range(3):
        for _ in range(50):
            writer.write(_batch("some row"))
        lengths.append(writer.persist())
    assert all(bytes(part.data[length:]).startswith(magic) for length in lengths[:-1])
    assert bytes(part.data).count(magic) == 3


@pytest.mark.parametrize("codec", _CODECS[1:])
def test_bytes_are_handed_on_in_large_pieces(
    codec: str, memory_part: Any, decode: Callable[[bytes, str | None], bytes]
) -> None:
    """Compressed bytes reach the stream while a frame is open, in pieces of a quarter of a megabyte or so."""
    part = memory_part()
    writer = _open(part, codec)
    noise = [random.Random(number).randbytes(100_000).hex() for number in range(20)]
    for line in noise:
        writer.write(_batch(line))
    before = part.position
    writer.persist()
    assert before > 1 << 20
    assert part.writes <= 1 + part.position // (256 << 10)
    assert decode(bytes(part.data), codec).decode().splitlines() == noise


def test_a_gzip_part_reaches_the_stream_before_it_is_persisted(memory_part: Any) -> None:
    """Memory of an open part is bounded: a frame does not wait for its end."""
    part = memory_part()
    writer = TextFormat(compression=Compression(codec="gzip", level=0)).open(part, _SCHEMA)
    for _ in range(8):
        writer.write(_batch("x" * (1 << 20)))
    assert part.position > 6 << 20


@pytest.mark.drawn
@pytest.mark.parametrize("codec", _CODECS[1:])
def test_a_writer_that_is_given_up_writes_nothing_more(codec: str, memory_part: Any) -> None:
    """Once a writer is dropped without a persist, as after an error, no byte reaches its part from the collector."""
    part = memory_part()
    writer = _open(part, codec)
    writer.write(_batch("never persisted"))
    writer.write(_batch(random.Random(1).randbytes(400_000).hex()))
    before = part.position
    del writer
    gc.collect()
    assert part.position == before


def test_a_level_changes_the_size(memory_part: Any) -> None:
    """The gzip level is passed on: nine is smaller than one, and zero does not compress."""
    sizes = []
    for level in (0, 1, 9):
        part = memory_part()
        form = JsonLinesFormat(compression=Compression(codec="gzip", level=level))
        writer = form.open(part, _SCHEMA)
        writer.write(_batch(*(f"row {number % 977} of {number % 13}" for number in range(5000))))
        sizes.append(writer.persist())
    assert sizes[0] > 5000 * 10 > sizes[1] > sizes[2]


def test_a_bz2_level_is_passed_on(memory_part: Any) -> None:
    """The level of bz2 is the size of its blocks, which the head of each stream tells."""
    part = memory_part()
    writer = TextFormat(compression=Compression(codec="bz2", level=3)).open(part, _SCHEMA)
    writer.write(_batch("a"))
    writer.persist()
    assert bytes(part.data).startswith(b"BZh3")


def test_the_same_rows_give_the_same_bytes(memory_part: Any) -> None:
    """No time stamp gets into a gzip member, so a replay writes the same file."""
    part = memory_part()
    writer = _open(part, "gzip")
    writer.write(_batch("a"))
    writer.persist()
    assert bytes(part.data[4:8]) == bytes(4)


@pytest.mark.parametrize(
    ("codec", "level", "words"),
    [
        ("brotli", None, "None, gzip, bz2, zstd, lz4, snappy"),
        ("", None, "gzip"),
        ("gzip", 10, "0 to 9"),
        ("bz2", 0, "1 to 9"),
        ("zstd", 3, "'gzip' or 'bz2', which take one"),
        (None, 3, "'gzip' or 'bz2', which take one"),
    ],
)
def test_what_is_not_there_is_refused(codec: str | None, level: int | None, words: str) -> None:
    """An unknown codec, and a level that would be ignored, are refused with what there is."""
    with pytest.raises(ConfigError) as refused:
        Compression(codec=codec, level=level)
    assert words in str(refused.value)
