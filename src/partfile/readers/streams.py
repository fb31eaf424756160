"""Finished and pending files as streams of the bytes that count, decompressed where they are compressed."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.errors import ConfigError, NotApplied, PartDamaged, PartMissing
from partfile.readers.files import codec_of
from partfile.readers.filesystem import valid_prefix
from partfile.stores.parts import rewritten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsspec import AbstractFileSystem

    from partfile.readers.filesystem import ValidLengthFileSystem
    from partfile.stores.base import PartHandle


_LENGTH_BYTES = 4


_MOST_CHUNK_BYTES = 64 << 20
"""Hadoop's own chunks are of 256 KiB; a chunk that claims to be larger is not one."""


_MOST_RATIO = 64
"""Snappy stands for no more bytes than so many by one."""


_SEVEN_BITS = 7


_LONGEST_VARINT_BYTES = 5


class SnappyBlocks(io.RawIOBase):
    """The content of a file of such blocks; a chunk of it is in memory.

    Args:
        file: Open for reading; closed with this one.
        path: Of the file, for messages.

    Raises:
        PartDamaged: On reading, where the file holds something else, or ends inside a block.
    """

    def __init__(self, file: Any, path: str) -> None:
        super().__init__()
        self._file = file
        self._path = path
        self._codec = pa.Codec("snappy")
        self._left_of_block_bytes = 0
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what is there of a chunk; 0 at the end."""
        if not self._chunk and not self._read_chunk():
            return 0
        view = memoryview(buffer).cast("B")
        taken = self._chunk[: len(view)]
        view[: len(taken)] = taken
        self._chunk = self._chunk[len(taken) :]
        return len(taken)

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._file.close()
        super().close()

    def _read_chunk(self) -> bool:
        """Decompress the next chunk; False at the end of the file, which is the end of a block."""
        # A stream of nothing is a block of nothing.
        while self._left_of_block_bytes == 0:
            head = self._file.read(_LENGTH_BYTES)
            if not head:
                return False
            self._left_of_block_bytes = self._length_in(head)
        compressed = self._exactly(self._length_in(self._file.read(_LENGTH_BYTES)))
        size_bytes = _content_bytes(compressed)
        if not 0 < size_bytes <= min(self._left_of_block_bytes, _MOST_RATIO * len(compressed)):
            raise self._damaged(f"a chunk is to hold {size_bytes} bytes")
        try:
            self._chunk = memoryview(self._codec.decompress(compressed, size_bytes)).cast("B")
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(str(error)) from error
        self._left_of_block_bytes -= size_bytes
        return True

    def _length_in(self, head: bytes) -> int:
        if len(head) < _LENGTH_BYTES:
            raise self._damaged("it ends inside a block")
        return int.from_bytes(head, "big")

    def _exactly(self, size_bytes: int) -> bytes:
        if size_bytes > _MOST_CHUNK_BYTES:
            raise self._damaged(f"a chunk is to be of {size_bytes} bytes")
        data: bytes = self._file.read(size_bytes)
        if len(data) < size_bytes:
            raise self._damaged("it ends inside a block")
        return data

    def _damaged(self, what: str) -> PartDamaged:
        return PartDamaged(
            f"{self._path!r} does not hold snappy as Hadoop frames it: {what}",
            hint=(
                "Put the file back from a copy, then type: partfile verify PATH; or rename it if it is of another form."
            ),
            path=self._path,
        )


def _content_bytes(compressed: bytes) -> int:
    """The length that raw snappy begins with: seven bits a byte, the lowest first; 0 if it is none."""
    size_bytes = 0
    for place, byte in enumerate(compressed[:_LONGEST_VARINT_BYTES]):
        size_bytes |= (byte & 0x7F) << (_SEVEN_BITS * place)
        if not byte & 0x80:
            return size_bytes
    return 0


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
        NotApplied: This user may not read one of its directories: its rows would be missing in silence.
        SnapshotCorrupt: A sidecar is damaged.
        PartMissing: A file is shorter than its sidecar says.
    """
    try:
        found = file_system.find(file_system.base, detail=True)
    except PermissionError as error:
        # A call on an open directory names its descriptor.
        which = f": {error.filename!r}" if isinstance(error.filename, str) else ""
        raise NotApplied(
            f"{file_system.base!r} has a directory that this user may not read{which}",
            hint=f"Read it as a user who may: ls -lR {shlex.quote(file_system.base)}",
            path=file_system.base,
        ) from error
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
        ConfigError: One of them is no file yet, as on S3.
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
        hint=(
            "Finished files never vanish by themselves: another program moved or deleted it. See what is missing: "
            "partfile verify PATH"
        ),
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
