"""The column ``row`` of a file of any format and compression, read by what is none of ours."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable


def rows_in_file(name: str, data: bytes) -> list[str]:
    """Each row, in order.

    Args:
        name: Of the file; its ending says what it is, and text is a row a line.
        data: All of it.
    """
    for ending, decompress in _COMPRESSED.items():
        if name.endswith(ending):
            return rows_in_file(name.removesuffix(ending), decompress(data))
    for ending, read in _FORMATS.items():
        if name.endswith(ending):
            return [str(row) for row in read(data)]
    assert data.endswith(b"\n"), f"{name} ends inside a row: {data!r}"
    return data.decode().splitlines()


def _unzstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        found: bytes = reader.read()
    return found


def _avro(data: bytes) -> list[Any]:
    return [record["row"] for record in fastavro.reader(io.BytesIO(data))]  # type: ignore[index, call-overload]


def _json(data: bytes) -> list[Any]:
    assert data.endswith(b"\n"), f"a line is not whole: {data!r}"
    return [json.loads(line)["row"] for line in data.splitlines()]


def _csv(data: bytes) -> list[Any]:
    assert data.endswith(b"\n"), f"a line is not whole: {data!r}"
    return [record["row"] for record in csv.DictReader(io.StringIO(data.decode()))]


_COMPRESSED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".zst": _unzstd}
_FORMATS: dict[str, Callable[[bytes], list[Any]]] = {
    ".parquet": lambda data: pyarrow.parquet.ParquetFile(pa.BufferReader(data)).read()["row"].to_pylist(),
    ".orc": lambda data: pyarrow.orc.ORCFile(pa.BufferReader(data)).read()["row"].to_pylist(),
    ".avro": _avro,
    ".json": _json,
    ".csv": _csv,
}
