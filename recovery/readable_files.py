"""Files that a reader may open, whatever name each has by then."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.filesystems.errors import ConfigError, PartMissing
from partfile.filesystems.part_names import rewritten
from partfile.recovery.file_formats import codec_of
from partfile.recovery.hadoop_snappy import SnappyBlocks
from partfile.recovery.valid_prefix import valid_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsspec import AbstractFileSystem

    from partfile.filesystems.port import PartHandle
    from partfile.recovery.valid_length_filesystem import ValidLengthFileSystem


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """A file whose valid bytes never change."""

    path: str
    """Its final path, relative to the base."""
    valid_length: int
    """In bytes, as stored."""
    names: tuple[str, ...]
    """The paths it can have, relative to the base, in the order in which a part moves from one to the next."""
    is_whole: bool = False
    """Whether it is finished and every byte of it counts, so that any reader may read it by its path."""


def finished(file_system: ValidLengthFileSystem) -> list[ReadableFile]:
    """Every finished file below the base, by its path.

    Raises:
        FileNotFoundError: The base is not there.
        SnapshotCorrupt: A sidecar is damaged.
        PartMissing: A file is shorter than its sidecar says.
    """
    found = file_system.find(file_system.base, detail=True)
    paths = {name[len(file_system.base) + 1 :]: entry for name, entry in sorted(found.items())}
    return [
        ReadableFile(path, int(entry["size"]), (path,), is_whole=entry["sidecar"] is None)
        for path, entry in paths.items()
    ]


def with_pending(files: Sequence[ReadableFile], pending: Iterable[PartHandle]) -> list[ReadableFile]:
    """Add parts that a completed checkpoint has promised and that are not finished yet.

    Args:
        files: The finished files, listed after the checkpoint was read.
        pending: The parts that it is to publish.

    Raises:
        ConfigError: One of them is no file yet, as on S3, so that nobody can read it.
    """
    known = {file.path for file in files}
    parts = {part.path_of(part.name): part for part in pending}
    unpublished = {path: part for path, part in parts.items() if path not in known}
    for path, part in unpublished.items():
        if part.staging:
            raise ConfigError(
                f"{path!r} is pending, and cannot be read before it is published",
                hint='Start the sink, which publishes it, or read with include="finished".',
                path=path,
            )
    added = [ReadableFile(path, part.valid_length, _names(part)) for path, part in unpublished.items()]
    return sorted([*files, *added], key=lambda file: file.path)


def _names(part: PartHandle) -> tuple[str, ...]:
    # A part that was cut by a copy has been published as that copy, which has a name of its own before.
    return tuple(map(part.path_of, (part.in_progress, part.pending, rewritten(part).pending, part.name)))


def open_readable(file_system: AbstractFileSystem, base: str, file: ReadableFile) -> Any:
    """Open the valid bytes of a file, under the name that it has now.

    Args:
        file_system: The one behind, which shows every file.
        base: The base path in it.
        file: What to open.

    Raises:
        PartMissing: It is under none of its names.
    """
    for name in file.names:
        try:
            return valid_prefix(file_system.open(f"{base}/{name}", "rb"), file.valid_length, file.path)
        except FileNotFoundError:
            continue
    raise PartMissing(
        f"{file.path!r} is under none of its names",
        hint="Finished files never vanish by themselves: somebody moved or deleted it.",
        path=file.path,
    )


def decompressed(file: Any, path: str) -> Any:
    """An open file's content, decompressed as its name says: all members or frames of it, one after the other."""
    codec = codec_of(path)
    if codec is None:
        return file
    if codec == "snappy":
        return io.BufferedReader(SnappyBlocks(file, path))
    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
