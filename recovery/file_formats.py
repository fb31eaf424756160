"""Which format and compression a finished file has, by its name, and how pyarrow reads that format. Pure."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from partfile.filesystems.errors import ConfigError
from partfile.recovery.long_lines import json_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROW_FORMATS = ("text", "json", "csv", "avro")
FORMATS = (*ROW_FORMATS, "parquet", "orc")
TEXT_COLUMN = "value"

_EXTENSIONS = {
    ".txt": "text",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".avro": "avro",
    ".parquet": "parquet",
    ".orc": "orc",
}
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4", ".snappy": "snappy"}


def codec_of(path: str) -> str | None:
    """The compression that a file's name ends with, as pyarrow calls it; None for plain bytes."""
    return _CODECS.get(posixpath.splitext(path)[1])


def format_of(path: str) -> str | None:
    """The format that a file's name says, compression left aside; None if it says none."""
    stem = path if codec_of(path) is None else posixpath.splitext(path)[0]
    return _EXTENSIONS.get(posixpath.splitext(stem)[1])


def check_format(format: str) -> str:
    """Return the name of a format if there is such a one.

    Raises:
        ConfigError: There is not; names those that there are.
    """
    if format not in FORMATS:
        raise ConfigError(f"the format {format!r} is not known", hint=f"There are {', '.join(FORMATS)}.")
    return format


def common_format(paths: Sequence[str]) -> str:
    """The one format that all names say.

    Args:
        paths: At least one path.

    Raises:
        ConfigError: One says none, or they say several; names a file of each.
    """
    examples: dict[str | None, str] = {}
    for path in paths:
        examples.setdefault(format_of(path), path)
    if None in examples:
        raise ConfigError(
            f"the name of {examples[None]!r} does not say its format", hint="Pass format=.", path=examples[None]
        )
    if len(examples) > 1:
        found = ", ".join(f"{format} ({path!r})" for format, path in examples.items())
        raise ConfigError(f"there are files of several formats: {found}", hint="Read each directory by itself.")
    (format,) = examples
    return check_format(str(format))


def arrow_format(format: str) -> ds.FileFormat:
    """How pyarrow reads what a sink writes in a format, with the sink's default options; see docs/FORMATS.md."""
    if format == "text":
        return ds.CsvFileFormat(
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            read_options=pacsv.ReadOptions(column_names=[TEXT_COLUMN]),
            convert_options=pacsv.ConvertOptions(
                column_types={TEXT_COLUMN: pa.string()}, strings_can_be_null=False, null_values=[]
            ),
        )
    if format == "csv":
        return ds.CsvFileFormat(
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
            convert_options=pacsv.ConvertOptions(
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
    if format == "avro":
        # pyarrow has no reader of Avro, and is shown the rows as Arrow has them.
        return ds.IpcFileFormat()
    formats: dict[str, Callable[[], ds.FileFormat]] = {"json": json_format, "parquet": ds.ParquetFileFormat}
    if format == "orc":
        formats["orc"] = ds.OrcFileFormat
    return formats[format]()
