"""Lines of JSON that are longer than what pyarrow reads at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import partfile as pf
from partfile.filesystems.errors import ConfigError
from partfile.recovery.long_lines import BLOCK_BYTES, json_format

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


def write(path: Path, long: int, text_bytes: int, compression: str = "none") -> None:
    """Three rows, one of which has a long text."""
    rows = [{"id": number, "text": "y" * text_bytes if number == long else "s"} for number in range(3)]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with pa.output_stream(str(path), compression=None if compression == "none" else compression) as file:
        file.write(data)


def outcome(read: Callable[[], Any]) -> Any:
    """What is read, or the refusal."""
    try:
        return read()
    except ConfigError as error:
        return error


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("long", [0, 1, 2])
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["found", "given"])
@pytest.mark.parametrize("way", WAYS)
def test_a_line_is_read_or_refused_and_never_nulls(
    tmp_path: Path, way: str, schema: pa.Schema | None, long: int, compression: str
) -> None:
    """Shorter than a block it is read wherever it is; beyond, a file is read rightly or named in an error."""
    path = tmp_path / ("part-0.json" + (".gz" if compression == "gzip" else ""))
    for text_bytes in (BLOCK // 2, BLOCK - 100, BLOCK, BLOCK + 100, 3 * BLOCK // 2, 2 * BLOCK + 100, 5 * BLOCK):
        write(path, long, text_bytes, compression)
        found = outcome(lambda: WAYS[way](pf.read(tmp_path, format=json_format(BLOCK), schema=schema)))
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
