"""Lines of text and JSON files: records for Spark's tasks, and a check for lines longer than pyarrow's blocks.

pyarrow reads a file whose first line is longer than one block as nulls, without an error. Such a file is refused by
name.
"""

from __future__ import annotations

import posixpath
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json

from partfile.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


BLOCK_BYTES = 8 << 20
"""Bytes that pyarrow reads at a time, so also the longest line that is sure to be read; its own default is 1 MiB."""
_PIECE_BYTES = 1 << 20
_PLAIN = {".json", ".jsonl", ".ndjson"}
"""Endings of files that are as long as what is in them."""


def json_format(block_bytes: int = BLOCK_BYTES) -> ds.JsonFileFormat:
    """The pyarrow format for lines of JSON of up to so many bytes."""
    return ds.JsonFileFormat(read_options=pyarrow.json.ReadOptions(block_size=block_bytes))


@contextmanager
def refusing_long_lines(fragment: ds.Fragment) -> Iterator[None]:
    """Read a file of JSON in the block, unless a line of it is too long.

    Where no line ends within the first block, pyarrow 26 gives every row of the file as nulls and says nothing; of a
    longer line further on it says ``straddling object``, and of what file it does not say.

    Args:
        fragment: The file.

    Raises:
        ConfigError: A line is too long. Names the file, and what to pass.
    """
    block_bytes = _block_bytes(fragment.format)
    if not _ends_within(fragment, block_bytes):
        raise _too_long(fragment, block_bytes)
    try:
        yield
    except pa.ArrowInvalid as error:
        if not is_too_long(error):
            raise
        raise _too_long(fragment, block_bytes) from error


def is_too_long(error: Exception) -> bool:
    """Whether this is how pyarrow says that a line is too long."""
    return "straddling" in str(error)


def larger_blocks(format: ds.JsonFileFormat | ds.CsvFileFormat) -> str:
    """Advice for rows that are longer than a format takes."""
    larger = 4 * _block_bytes(format)
    if isinstance(format, ds.CsvFileFormat):
        return f"Pass format=ds.CsvFileFormat(read_options=pyarrow.csv.ReadOptions(block_size={larger}))."
    return f"Pass format=ds.JsonFileFormat(read_options=pyarrow.json.ReadOptions(block_size={larger}))."


def _block_bytes(format: ds.JsonFileFormat | ds.CsvFileFormat) -> int:
    return int(format.default_fragment_scan_options.read_options.block_size)


def _ends_within(fragment: ds.Fragment, block_bytes: int) -> bool:
    """Whether the first line of a file, or the file, ends within so many bytes; a short file is not opened for it."""
    is_plain = posixpath.splitext(fragment.path)[1] in _PLAIN
    if is_plain and fragment.filesystem.get_file_info(fragment.path).size <= block_bytes:
        return True
    # pyarrow's datasets know this ending, and its file systems do not.
    compression = "zstd" if fragment.path.endswith(".zstd") else "detect"
    with fragment.filesystem.open_input_stream(fragment.path, compression=compression) as file:
        seen = 0
        while seen <= block_bytes and (piece := file.read(min(_PIECE_BYTES, block_bytes + 1 - seen))):
            end = piece.find(b"\n")
            if end >= 0:
                return bool(seen + end < block_bytes)
            seen += len(piece)
    return bool(seen <= block_bytes)


def _too_long(fragment: ds.Fragment, block_bytes: int) -> ConfigError:
    return ConfigError(
        f"{fragment.path!r} has a line of JSON of more than the {block_bytes} bytes that pyarrow reads at a time",
        hint=larger_blocks(fragment.format),
        path=fragment.path,
    )


_CHUNK_BYTES = 1 << 20


def quoted_lines(data: bytes) -> bytes:
    """The lines of some text, each in quotes, which is CSV of one column.

    pyarrow has no dataset of text lines, but one of CSV. In quotes a line may hold every character, carriage returns
    included.
    """
    if not data:
        return b""
    ended = data if data.endswith(b"\n") else data + b"\n"
    lines = ended.replace(b'"', b'""').replace(b"\n", b'"\n"')
    return b'"' + lines[:-1]


def records(file: Any, *, is_csv: bool) -> Iterator[bytes]:
    """Yield the records of a file without their line ends.

    Args:
        file: Open for reading, in bytes.
        is_csv: A line feed inside quotes belongs to the record, and a carriage return before the last one does not.
    """
    rest = b""
    quotes = 0
    for line in _lines(file):
        rest += line
        quotes += line.count(b'"') if is_csv else 0
        if quotes % 2 == 0 and line.endswith(b"\n"):
            yield rest[: -2 if is_csv and rest.endswith(b"\r\n") else -1]
            rest, quotes = b"", 0
    if rest:
        yield rest


def _lines(file: Any) -> Iterator[bytes]:
    rest = b""
    while data := file.read(_CHUNK_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in whole)
    if rest:
        yield rest
