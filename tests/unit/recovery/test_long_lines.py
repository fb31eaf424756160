"""Lines of JSON that are longer than what pyarrow reads at a time."""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.errors import ConfigError
from partfile.readers.lines import BLOCK_BYTES, json_format
from partfile.writers.compression import Compression
from partfile.writers.json import JsonLinesFormat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


@pytest.mark.parametrize("compression", [None, "gzip", "zstd", "lz4", "bz2", "snappy"])
@pytest.mark.parametrize("long", [0, 1, 2])
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
