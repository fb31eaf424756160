"""Reading a stage: exactly its valid length, compared with its checksum, message by message.

``writers/arrow_stage.py`` says what a stage is and writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.ipc

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import PartDamaged

if TYPE_CHECKING:
    from collections.abc import Iterator

DAMAGED_HINT = (
    "Bring the file back from a backup; it was not published. Without one docs/RUNBOOK.md says how to give its rows up."
)
MOST_WHOLE_BYTES = 32 << 20
"""Of a stage that is read once, checked in memory, and decoded from there."""
_PIECE_BYTES = 1 << 20
_LARGE_PIECE_BYTES = 4 << 20
"""Beyond the buffers of all stores' files, so that bytes go past them to where they are wanted."""


class ReadableFile(Protocol):
    """A file that is read from where it stands."""

    def read(self, size_bytes: int, /) -> bytes | memoryview:
        """Return up to so many bytes, none at the end."""


class SeekableFile(ReadableFile, Protocol):
    """One that can go back."""

    def seek(self, offset: int, /) -> int:
        """Go to so many bytes from its beginning."""


class StageFile(SeekableFile, Protocol):
    """One that reads to where the bytes are wanted."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read on, up to the length of the buffer; returns how many bytes, none at the end."""


@dataclass(frozen=True, slots=True)
class StageContent:
    """The valid bytes of a stage, which can be read from their beginning again and again.

    Args:
        file: Where they are; its owner closes it.
        length_bytes: The valid length.
        path: Of the stage, for messages.
        crc32: Of the valid bytes, checked at the end of each reading; None where it is not known, or has been checked.
        is_checked: Whether they are known to be what was written.
    """

    file: SeekableFile = field(repr=False)
    length_bytes: int
    path: str | None = None
    crc32: int | None = None
    is_checked: bool = False

    def read(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema, and the batches from the first one on; see ``read_stage``."""
        self.file.seek(0)
        return read_stage(self.file, self.length_bytes, self.path, self.crc32, is_checked=self.is_checked)


def content_of(
    file: StageFile, length_bytes: int, path: str | None, crc32: int | None, *, checks_reads: bool
) -> StageContent:
    """What there is to read of a stage, compared with its checksum now, if it has one, or while it is read.

    Args:
        file: At the beginning of the stage.
        length_bytes: The valid length.
        path: Of the stage, for messages.
        crc32: Of the valid bytes, as they were written; None where it is not known.
        checks_reads: Whether the store itself sees to it that what it reads is what it was given, so that
            a long stage need not be read twice lest damage reaches Arrow before the last byte tells.

    Raises:
        PartDamaged: The valid bytes are others, or fewer.
    """
    if crc32 is None:
        return StageContent(file, length_bytes, path)
    if length_bytes <= MOST_WHOLE_BYTES:
        data = _Prefix(file, length_bytes, path, crc32).read_whole(file)
        return StageContent(_Memory(data), length_bytes, path, is_checked=True)
    if checks_reads:
        return StageContent(file, length_bytes, path, crc32)
    check_stage(file, length_bytes, crc32, path)
    return StageContent(file, length_bytes, path, is_checked=True)


def check_stage(file: ReadableFile, length_bytes: int, crc32: int, path: str | None = None) -> None:
    """Refuse a stage that is not what was written, before anything in it is decoded.

    Arrow follows a damaged offset to anywhere in memory, which would end the process instead of naming the stage.

    Args:
        file: At the beginning of the stage; read up to its valid length, in pieces of a megabyte.
        length_bytes: The valid length.
        crc32: Of the valid bytes, as they were written.
        path: Of the stage, for messages.

    Raises:
        PartDamaged: The valid bytes are others, or fewer.
    """
    prefix = _Prefix(file, length_bytes, path, crc32)
    while prefix.read(_PIECE_BYTES):
        pass
    prefix.check_bytes()


def read_stage(
    file: ReadableFile,
    length_bytes: int,
    path: str | None = None,
    crc32: int | None = None,
    *,
    is_checked: bool = False,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Read a stage up to its valid length, a message at a time; what comes after it is never looked at.

    Args:
        file: At the beginning of the stage.
        length_bytes: The valid length, as a persist returned it.
        path: Of the stage, for messages.
        crc32: Of the valid bytes, checked after the last batch; None where it is not known, or has been checked.
        is_checked: The bytes are what was written, so that Arrow need not look at each value before it is used.

    Returns:
        The schema, and the batches; memory is bounded by one message.

    Raises:
        PartDamaged: Here, or by the batches: the prefix is not a stream of whole messages, or not what was written.
    """
    prefix = _Prefix(file, length_bytes, path, crc32)
    reader = prefix.checked(lambda: pa.ipc.open_stream(pa.PythonFile(cast("Any", prefix), mode="r")))
    return reader.schema, _batches(prefix, reader, validates=not is_checked)


def _batches(prefix: _Prefix, reader: Any, *, validates: bool) -> Iterator[pa.RecordBatch]:
    def next_batch() -> Any:
        batch = next(reader, None)
        if batch is not None and validates:
            # Offsets beyond their buffer would take the process down.
            batch.validate(full=True)
        return batch

    while (batch := prefix.checked(next_batch)) is not None:
        yield batch
    prefix.check_end()


class _Memory:
    """Bytes in memory as a file that hands them out where they are: Arrow's arrays refer to them."""

    def __init__(self, data: pa.Buffer) -> None:
        self._data = memoryview(data).toreadonly()
        self._position = 0

    def read(self, size_bytes: int) -> memoryview:
        piece = self._data[self._position : self._position + size_bytes]
        self._position += len(piece)
        return piece

    def seek(self, offset: int) -> int:
        self._position = offset
        return offset


class _Prefix:
    """The first bytes of a file as the file that pyarrow wants, with the place of the last whole message."""

    closed = False

    def __init__(self, file: ReadableFile, length_bytes: int, path: str | None, crc32: int | None) -> None:
        self._file = file
        self._path = path
        self._length_bytes = length_bytes
        self._position = 0
        self._whole_bytes = 0
        self._written_crc32 = crc32
        self._crc32 = 0
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, size_bytes: int) -> bytes | memoryview:
        pieces = []
        wanted = min(size_bytes, self._length_bytes - self._position)
        try:
            while wanted > 0 and (piece := self._file.read(wanted)):
                pieces.append(piece)
                wanted -= len(piece)
                self._position += len(piece)
        except Exception as error:
            self._failure = error
            raise
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._count(data)
        return data

    def read_whole(self, file: StageFile) -> pa.Buffer:
        """All valid bytes, known to be what was written; Arrow's arrays can refer to them where they are."""
        data = pa.allocate_buffer(self._length_bytes)
        place = memoryview(data).cast("B")
        while place and (count := file.readinto(place[:_LARGE_PIECE_BYTES])):
            self._count(place[:count])
            self._position += count
            place = place[count:]
        self.check_bytes()
        return data

    def _count(self, data: bytes | memoryview) -> None:
        if self._written_crc32 is not None:
            self._crc32 = crc32_of(data, self._crc32)

    def close(self) -> None:
        """The file belongs to whoever opened it."""

    def checked(self, read_message: Any) -> Any:
        """What reading one message gives, with Arrow's complaints, but not those of storage, as damage."""
        try:
            message = read_message()
        except (pa.ArrowException, OSError, MemoryError) as error:
            if self._failure is not None:
                raise self._failure from error
            raise self._not_whole(str(error)) from error
        if message is not None:
            self._whole_bytes = self._position
        return message

    def check_end(self) -> None:
        """See that nothing but the valid length ended the stream, and that its bytes are what was written."""
        if self._whole_bytes != self._length_bytes:
            raise self._not_whole("the stream ends before its valid length")
        self.check_bytes()

    def check_bytes(self) -> None:
        """See that all valid bytes were read, and are what was written, as far as that is known."""
        if self._position != self._length_bytes:
            raise self._not_whole("the file ends")
        if self._written_crc32 is not None and self._written_crc32 != self._crc32:
            raise self._damaged(
                f"is not what was written: the CRC-32 of its {self._length_bytes} valid bytes is {self._crc32:08x}, "
                f"and its checkpoint says {self._written_crc32:08x}."
            )

    def _not_whole(self, what: str) -> PartDamaged:
        return self._damaged(
            f"does not hold whole Arrow IPC messages up to its valid length of {self._length_bytes} bytes: "
            f"after byte {self._whole_bytes}, {what}."
        )

    def _damaged(self, what: str) -> PartDamaged:
        stage = "A stage" if self._path is None else f"stage {self._path!r}"
        return PartDamaged(f"{stage} {what}", hint=DAMAGED_HINT, path=self._path)
