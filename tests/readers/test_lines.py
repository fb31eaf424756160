"""Files of lines: long lines, many files on few processors, Hadoop's snappy framing."""

from __future__ import annotations

import io
import json
import random
import string
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import cramjam
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.errors import ConfigError, PartDamaged
from partfile.readers.lines import BLOCK_BYTES, json_format
from partfile.readers.streams import SnappyBlocks
from partfile.writers.compression import Compression
from partfile.writers.json import JsonLinesFormat
from support.processes.deadline import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# Lines of JSON that are longer than what pyarrow reads at a time.

SCHEMA = pa.schema({"id": pa.int64(), "text": pa.string()})
BLOCK = 1 << 16
WAYS: dict[str, Callable[[ds.Dataset], Any]] = {
    "table": lambda dataset: dataset.to_table()["id"].to_pylist(),
    "batches": lambda dataset: [number for batch in dataset.to_batches() for number in batch["id"].to_pylist()],
    "head": lambda dataset: dataset.head(3)["id"].to_pylist(),
}


def write(base: Path, long: int, text_bytes: int, compression: str | None) -> Path:
    """Three rows, one of which has a long text that compresses badly, in the file of a sink."""
    numbers = random.Random(1)
    text = "".join(numbers.choices(string.ascii_letters + string.digits, k=text_bytes))
    rows = {"id": range(3), "text": [text if number == long else "s" for number in range(3)]}
    with pf.FileSink(base, uid="u", format=JsonLinesFormat(compression=Compression(codec=compression))).local() as out:
        out.write(pa.RecordBatch.from_pydict(rows, schema=SCHEMA))
    (path,) = base.glob("part-*")
    return path


def outcome(way: Callable[[ds.Dataset], Any], base: Path, schema: pa.Schema | None) -> Any:
    """What is read, or the refusal."""
    try:
        return way(pf.read(base, format=json_format(BLOCK), schema=schema))
    except ConfigError as error:
        return error


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("gzip", "lz4", "bz2", "snappy")]


@pytest.mark.parametrize("compression", [None, "zstd", *OTHERS])
@pytest.mark.parametrize("long", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["found", "given"])
@pytest.mark.parametrize("way", WAYS)
def test_a_line_is_read_or_refused_and_never_nulls(
    tmp_path: Path, way: str, schema: pa.Schema | None, long: int, compression: str | None
) -> None:
    """Shorter than a block it is read wherever it is; beyond, a file is read rightly or named in an error."""
    for text_bytes in (BLOCK // 2, BLOCK + 100, 3 * BLOCK // 2, 5 * BLOCK):
        path = write(tmp_path / str(text_bytes), long, text_bytes, compression)
        found = outcome(WAYS[way], path.parent, schema)
        if isinstance(found, ConfigError):
            assert text_bytes >= BLOCK
            assert path.name in str(found)
            assert f"block_size={4 * BLOCK}" in found.hint
        else:
            assert found == [0, 1, 2]
            assert long != 0 or text_bytes < BLOCK


def test_a_text_of_a_mebibyte_needs_no_setting(tmp_path: Path) -> None:
    """It is what rows may have; in JSON each byte of it may take six."""
    sink = pf.FileSink(tmp_path, uid="u", format="json")
    with sink.local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": [0, 1, 2], "text": ["\x01" * (1 << 20), "s", None]}, schema=SCHEMA))
    for schema in (None, SCHEMA):
        assert pf.read(tmp_path, schema=schema).to_table()["id"].to_pylist() == [0, 1, 2]
    assert BLOCK_BYTES > 6 << 20


# Several files of JSON are read on few processors, where pyarrow alone waits for itself for ever.

FILES, ROWS, TEXT_BYTES = 6, 1500, 4000

READER = """
import sys
import pyarrow as pa
import pyarrow.compute as pc
import partfile as pf
pa.set_cpu_count(int(sys.argv[2]))
events = pf.read(sys.argv[1])
few = pc.field("id") < 10
print(
    events.to_table().num_rows,
    events.to_table(columns=["id"], filter=few).shape,
    events.count_rows(),
    events.filter(few).count_rows(),
    events.head(7000).num_rows,
    events.take([0, 8999])["id"].to_pylist(),
    events.sort_by([("id", "descending")]).head(1)["id"].to_pylist(),
    events.join(events, "id", join_type="left semi").to_table().num_rows,
    sum(batch.num_rows for batch in events.to_batches()),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processors", [1, 2, 3])
def test_every_scan_of_json_ends(tmp_path: Path, processors: int) -> None:
    """Six files of 6 MB each, with as many threads as processors; the rows of one file come after the other's."""
    for number in range(FILES):
        with (tmp_path / f"part-{number}.json").open("w") as file:
            for row in range(number * ROWS, (number + 1) * ROWS):
                file.write(json.dumps({"id": row, "text": "x" * TEXT_BYTES}) + "\n")
    command = [sys.executable, "-c", READER, str(tmp_path), str(processors)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.strip() == "9000 (10, 1) 9000 10 7000 [0, 8999] [8999] 9000 9000", done.stderr


# Snappy in Hadoop's framing: what the codec writes is read, and what it would never write is refused by name.


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
