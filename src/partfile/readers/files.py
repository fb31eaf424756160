"""Finished files in a listing: visible names, valid lengths in sidecars, partition columns, format and codec.

Pure: decides from names, sizes and the bytes of sidecars.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from partfile.errors import ConfigError, PartMissing, SnapshotCorrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


HIDING = ("_", ".")
MAX_SIDECAR_BYTES = 20
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")


def path_text(path: object) -> str:
    """The path or URL that a user passes; raises ConfigError where it is none."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"path={path!r} is no path",
            hint="Pass the directory that the sink writes to: partfile.read('landing/events')",
        )
    return text


def directory_text(checkpoint_dir: object) -> str | None:
    """The directory of checkpoints that a user passes, or None; raises ConfigError where it is no path."""
    text = os.fspath(checkpoint_dir) if isinstance(checkpoint_dir, os.PathLike) else checkpoint_dir
    if text is not None and not (isinstance(text, str) and text):
        raise ConfigError(
            f"checkpoint_dir={checkpoint_dir!r} is no path",
            hint="Pass what the sink has as checkpoint_dir, or leave it out: checkpoint_dir='checkpoints'",
        )
    return text


def is_hidden(path: str) -> bool:
    """Whether a path relative to the base is staged, a sidecar or state: a segment of it begins with ``_`` or ``.``."""
    return any(segment.startswith(HIDING) for segment in path.split("/"))


@dataclass(frozen=True, slots=True)
class SidecarNaming:
    """The name and the content of the sidecar of a finished file.

    Once a part is published nothing records the affixes of its sidecar, so a reader knows the default ones and those it
    is told. Another form of sidecar is another class with these two methods.

    Args:
        prefix: The sink's ``valid_length_prefix``.
        suffix: The sink's ``valid_length_suffix``.

    Raises:
        ConfigError: The prefix would not hide the sidecar.
    """

    prefix: str = "_"
    suffix: str = ".valid-length"

    def __post_init__(self) -> None:
        if not self.prefix.startswith(HIDING):
            raise ConfigError(
                f"prefix={self.prefix!r} hides no sidecar",
                hint=(
                    "Pass what the sink's naming=PartNaming(valid_length_prefix=PREFIX) has: "
                    "sidecars=SidecarNaming(prefix=PREFIX)"
                ),
            )

    def sidecar_of(self, path: str) -> str:
        """The path of the sidecar that a finished file would have."""
        directory, name = posixpath.split(path)
        return posixpath.join(directory, f"{self.prefix}{name}{self.suffix}")

    def length_in(self, content: bytes, sidecar: str) -> int:
        """The valid length in the content of a sidecar: plain ASCII decimal.

        Args:
            content: The whole file.
            sidecar: Its path, for the message.

        Returns:
            The length in bytes.

        Raises:
            SnapshotCorrupt: The content is not what a sink writes.
        """
        if not _LENGTH.fullmatch(content):
            raise SnapshotCorrupt(
                f"sidecar {sidecar!r} says {content[:MAX_SIDECAR_BYTES]!r}, which is not a length in bytes",
                hint=(
                    "It must hold a decimal number alone. Without it no reader knows where its file ends. Put "
                    "it back from a copy, then type: partfile verify PATH"
                ),
                path=sidecar,
            )
        return int(content)


DEFAULT_SIDECARS = SidecarNaming()


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A finished file of a listing."""

    path: str
    size: int
    """Of the file as stored, in bytes."""
    sidecar: str | None
    """Path of its sidecar, where it has one."""


def finished_files(
    seen: Iterable[tuple[str, int]], names_after: Collection[str], naming: SidecarNaming
) -> Iterator[ListedFile]:
    """The finished files of a listing, each with its sidecar.

    A sidecar is created before the final name of its file, so a listing that begins after the name was seen shows it;
    the listing that showed the name may have passed the sidecar's place before it was there.

    Args:
        seen: Paths relative to the base with sizes in bytes, of files of any kind.
        names_after: All paths of a listing that began after that.
        naming: How sidecars are named.
    """
    for path, size in seen:
        if not is_hidden(path):
            sidecar = naming.sidecar_of(path)
            yield ListedFile(path, size, sidecar if sidecar in names_after else None)


def readable_bytes(file: ListedFile, valid_length: int | None) -> int:
    """The number of bytes of a finished file that count.

    Args:
        file: The file.
        valid_length: What its sidecar says, in bytes; None if it has none.

    Raises:
        PartMissing: The file is shorter than its valid length.
    """
    if valid_length is None:
        return file.size
    if valid_length > file.size:
        raise part_too_short(file.path, file.size, valid_length)
    return valid_length


def part_too_short(path: str, size: int, valid_length: int) -> PartMissing:
    """The error for a part that ends before its valid length."""
    return PartMissing(
        f"{path!r} has {size} bytes, and {valid_length} were committed: data is missing",
        hint="Another program cut or replaced the file. Put it back from a copy, then type: partfile verify PATH",
        path=path,
    )


_NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_names(path: str) -> tuple[str, ...]:
    """The columns that the directories of a path make."""
    return tuple(unquote(name) for name, _ in _pairs(path))


def partition_values(path: str) -> list[str | None]:
    """The values in the directories of a path, in the order of ``partition_names``."""
    return [None if value == _NULL else unquote(value) for _, value in _pairs(path)]


def partition_shape(paths: Sequence[str]) -> tuple[str, ...]:
    """The columns that the directories of every one of the paths make.

    Raises:
        ConfigError: Some directories are ``name=value`` and others are not, or their names differ.
    """
    shapes: dict[tuple[str, ...], str] = {}
    for path in paths:
        names = partition_names(path)
        if names and len(names) < path.count("/"):
            raise ConfigError(
                f"of the directories of {path!r} some are name=value and others are not",
                hint=(
                    "Spark makes partition columns only where all are. Read each part of the tree by itself: "
                    "partfile.read_spark(spark, DIRECTORY)"
                ),
                path=path,
            )
        shapes.setdefault(names, path)
    if len(shapes) > 1:
        one, other, *_ = shapes.values()
        raise ConfigError(
            f"directories are of several shapes, as those of {one!r} and {other!r}",
            hint=(
                "Spark makes partition columns only where all are alike. Read each part of the tree by itself: "
                "partfile.read_spark(spark, DIRECTORY)"
            ),
        )
    return next(iter(shapes), ())


def _pairs(path: str) -> list[tuple[str, str]]:
    segments = [segment.partition("=") for segment in path.split("/")[:-1]]
    return [(name, value) for name, equals, value in segments if equals]


LENGTH_BYTES = 2
MAX_FLINK_SIDECAR_BYTES = LENGTH_BYTES + MAX_SIDECAR_BYTES
_DIGITS = re.compile(rb"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class FlinkSidecars(SidecarNaming):
    """The sidecars of a tree that Flink's BucketingSink has written, for ``partfile.read`` and the other readers.

    A sidecar has two bytes with the number of bytes that follow, big-endian, and then the valid length in decimal
    digits, which are the same in Java's modified UTF-8 and in ASCII.

    Args:
        prefix: What ``setValidLengthPrefix`` was given.
        suffix: What ``setValidLengthSuffix`` was given.

    Raises:
        ConfigError: The prefix would not hide the sidecar.
    """

    def length_in(self, content: bytes, sidecar: str) -> int:
        """The valid length in the content of a sidecar: two bytes with the number of digits, and the digits.

        Raises:
            SnapshotCorrupt: The content is not what Flink writes.
        """
        digits = content[LENGTH_BYTES:]
        if content[:LENGTH_BYTES] != len(digits).to_bytes(LENGTH_BYTES, "big") or not _DIGITS.fullmatch(digits):
            raise SnapshotCorrupt(
                f"sidecar {sidecar!r} says {content[:MAX_FLINK_SIDECAR_BYTES]!r}, no length as Flink writes one",
                hint=(
                    "It must hold two bytes with a number, and as many decimal digits. Without it no reader "
                    "knows where its file ends. Put it back from a copy, then type: partfile list PATH"
                ),
                path=sidecar,
            )
        return int(digits)


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


def check_format(format: object) -> str:
    """Return the name of a format, in whatever case it is written, if there is such a one.

    Raises:
        ConfigError: There is not; names those that there are.
    """
    name = format.lower() if isinstance(format, str) else ""
    if name not in FORMATS:
        raise ConfigError(
            f"the format {format!r} is not known",
            hint=f"There are {', '.join(FORMATS)}. Write for instance format='json'.",
        )
    return name


def check_names(format: str, paths: Iterable[str]) -> None:
    """Refuse a format where a file's name says another one; as ``text`` any file can be read, and ``.txt`` as any.

    A reader of CSV would take the first line of JSON for a header, and give no row of it.

    Args:
        format: The name of a format.
        paths: The files.

    Raises:
        ConfigError: A name says another format; names the file and that format.
    """
    examples: dict[str | None, str] = {}
    for path in paths:
        examples.setdefault(format_of(path), path)
    named = {name: path for name, path in examples.items() if name not in {"text", None}}
    if format == "text" or named.keys() <= {format}:
        return
    if len(named) > 1:
        raise _several_formats(named)
    ((name, path),) = named.items()
    raise ConfigError(
        f"format={format!r}, but the name of {path!r} says {name!r}",
        hint=f"Write format={name!r}. Files with misleading names are read as format='text', or renamed.",
        path=path,
    )


def _several_formats(examples: Mapping[Any, str]) -> ConfigError:
    found = ", ".join(f"{format} ({path!r})" for format, path in examples.items())
    glob = f"BASE/**/*{posixpath.splitext(next(iter(examples.values())))[1]}"
    return ConfigError(
        f"there are files of several formats: {found}",
        hint="Read directories of one format by themselves: partfile.read(DIRECTORY). Where they lie side by side, "
        f"another reader takes a glob for each: duckdb.sql(\"FROM '{glob}'\")",
    )


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
            f"the name of {examples[None]!r} does not say its format",
            hint="Say which it is, for instance format='json'.",
            path=examples[None],
        )
    if len(examples) > 1:
        raise _several_formats(examples)
    (format,) = examples
    return check_format(str(format))
