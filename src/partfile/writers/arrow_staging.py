"""The staging file of a columnar part.

An Arrow IPC stream that grows over many checkpoints and is encoded once, at the roll.

The schema message comes first, then record-batch messages; there is no end mark. Each length that a
persist returned is the end of a message, so that the staging file can be read up to there, and continued by another
process.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

import pyarrow as pa
import pyarrow.ipc

from partfile.errors import PartDamaged, UnsupportedTypeError, page_url
from partfile.stores.checksums import crc32_of
from partfile.writers.base import TYPES_URL, BulkFormat, Format, Writer
from partfile.writers.columns import as_plain, plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.writers.base import ByteStream


_MOST_SLACK = 2
"""So many times its own bytes a held slice may keep in memory."""
_COLUMN_BYTES = 1 << 10
"""Memory of a column of a batch besides its rows."""
_MOST_DESCRIBING_BYTES = 256 << 10
"""Most memory of the columns of held batches; beyond it, and where their rows weigh less, the batches are joined."""
_FEWEST_JOINED = 8
"""Joining fewer batches costs more time than it saves memory."""


class HeldRows:
    """Batches of one schema, in order, that weigh no more in memory than their own rows.

    Args:
        schema: The schema of every batch.
        most_rows: Rows that are enough.
        most_bytes: Arrow bytes that are enough.
    """

    def __init__(self, schema: pa.Schema, most_rows: int, most_bytes: int) -> None:
        self._schema = schema
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._batches: list[pa.RecordBatch] = []
        self._may_join = True
        self.rows = 0
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Hold the rows of a batch and tell whether there are enough now.

        A slice that is small in its batch is copied: held as it is, it would keep the whole batch in memory.
        """
        if batch.num_rows == 0:
            return False
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        enough = self.rows >= self._most_rows or self.bytes >= self._most_bytes
        # What is about to be taken out need not be copied before.
        self._batches.append(batch if enough else without_slack(batch))
        if not enough and self._describing_bytes >= max(_MOST_DESCRIBING_BYTES, self.bytes):
            self._join()
        return enough

    def take(self) -> pa.Table:
        """All rows that are held, which are held no longer."""
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self.rows, self.bytes = [], 0, 0
        return table

    @property
    def _describing_bytes(self) -> int:
        return _COLUMN_BYTES * len(self._schema) * len(self._batches)

    def _join(self) -> None:
        """Copy what is held: never more bytes than describe the batches that are joined."""
        if not self._may_join or len(self._batches) < _FEWEST_JOINED:
            return
        try:
            self._batches = pa.Table.from_batches(self._batches, self._schema).combine_chunks().to_batches()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Dictionaries whose values are too many for one, or are nested.
            self._may_join = False


def weight(batch: pa.RecordBatch) -> int:
    """Bytes that a batch takes in memory: those of its rows, and those of its columns, however few its rows."""
    size_bytes: int = batch.nbytes + _COLUMN_BYTES * batch.num_columns
    return size_bytes


def without_slack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, copied if they are a small slice of what they keep in memory."""
    if batch.get_total_buffer_size() <= _MOST_SLACK * batch.nbytes:
        return batch
    # Joining copies ranges of memory, in half the time that taking row by row needs; a lone batch it would not copy.
    (copied,) = pa.Table.from_batches([batch, batch.slice(0, 0)]).combine_chunks().to_batches()
    return copied


_MESSAGE_BYTES = 1 << 18
_MESSAGE_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 15
"""Joins what is small in a message; each open staging file has one all the time, and a subtask may have a thousand
open."""


@dataclass(frozen=True, slots=True)
class StagingFormat(Format):
    """Rows staged for a columnar part. Dictionary, run-end encoded and view columns are staged as plain columns.

    Args:
        target: What the staging file is to become: rows that it would refuse are refused before they are staged.
        compression: Of the buffers. Each message says its own, so a staging file may be continued with another.
    """

    target: BulkFormat | None = None
    compression: Literal["lz4", "zstd", "none"] = "lz4"

    @property
    def suffix(self) -> str:
        """Nothing: a staging file is never published, and is named after the part that it becomes."""
        return ""

    @property
    def appendable(self) -> bool:
        """Messages can be added by any process, at any message's end."""
        return True

    def check(self, schema: pa.Schema) -> None:
        """Refuse what an Arrow IPC stream, or the staging file's target, cannot hold.

        Raises:
            UnsupportedTypeError: Names the column and its type.
        """
        if self.target is not None:
            self.target.check(schema)
        for column in schema:
            try:
                self.open(_Measure(), pa.schema([column])).close()
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UnsupportedTypeError(
                    f"Column {column.name!r} of type {column.type} cannot be staged: {error}",
                    hint=f"Drop the column, or cast it to a type of {TYPES_URL}",
                ) from error

    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one staging file; only a staging file that is still empty gets the schema."""
        return StagingWriter(stream, schema, self.target, self.compression)


class StagingWriter(Writer):
    """Joins slices to messages of a quarter of a megabyte or so, and ends the last one at each persist."""

    def __init__(
        self, stream: ByteStream, schema: pa.Schema, target: BulkFormat | None = None, compression: str = "lz4"
    ) -> None:
        self._stream = stream
        self._schema = plain_schema(schema)
        self._target = target if target is not None and target.refuses_rows(self._schema) else None
        self._held = HeldRows(self._schema, _MESSAGE_ROWS, _MESSAGE_BYTES)
        self._messages = _Messages()
        # In front of the pipe to Python, since Arrow writes each buffer of a message by a call of its own.
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(cast("Any", self._messages), mode="w"), _BUFFER_BYTES)
        self._arrow = pa.ipc.new_stream(self._buffer, self._schema, options=_options(compression))
        head = self._schema.serialize()
        if stream.position == 0:
            stream.write(memoryview(head))
        # Arrow writes the schema before its first message, also where the staging file has it.
        self._repeated_bytes = head.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; what makes a full message is written.

        Raises:
            ConfigError: A value that the staging file's target cannot hold.
        """
        plain = as_plain(batch, self._schema)
        if self._target is not None:
            self._target.check_rows(plain)
        if self._held.add(plain):
            self._write_messages()

    def persist(self) -> int:
        """Write what is held as a last message, and return the stream's position."""
        if self._held.rows:
            self._write_messages()
        return self._stream.position

    def close(self) -> None:
        """Persist; an end mark would have to be cut off before another process goes on."""
        self.persist()

    def _write_messages(self) -> None:
        rows, size_bytes = self._held.rows, self._held.bytes
        messages = max(1, round(size_bytes / _MESSAGE_BYTES), -(-rows // _MESSAGE_ROWS))
        self._arrow.write_table(self._held.take().combine_chunks(), max_chunksize=-(-rows // messages))
        self._buffer.flush()
        data = self._messages.take()
        self._stream.write(memoryview(data)[self._repeated_bytes :])
        self._repeated_bytes = 0


def _options(compression: str) -> pa.ipc.IpcWriteOptions:
    # Threads of Arrow's would take turns with the task's own: Spark gives a task a core.
    return pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression, use_threads=False)


class _Messages:
    """The sink of Arrow's messages.

    The staging file's writer alone passes them on, never the garbage collector.
    """

    closed = False

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytearray:
        data, self._data = self._data, bytearray()
        return data

    def flush(self) -> None:
        """Called by pyarrow, which takes this for a file."""

    def close(self) -> None:
        """Called by pyarrow; the end of its stream is not the end of the staging file."""


class _Measure:
    """A part that is thrown away."""

    position = 0

    def write(self, data: bytes | memoryview) -> None:
        self.position += len(data)


DAMAGED_HINT = (
    "Bring the file back from a backup; it was not published. Without one give its rows up: "
    f"{page_url('RUNBOOK', '13-a-columnar-part-is-stuck-as-a-staging-file')}"
)
MOST_WHOLE_BYTES = 32 << 20
"""Of a staging file that is read once, checked in memory, and decoded from there."""
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


class SeekableStagingFile(SeekableFile, Protocol):
    """One that reads to where the bytes are wanted."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read on, up to the length of the buffer; returns how many bytes, none at the end."""


@dataclass(frozen=True, slots=True)
class StagingContent:
    """The valid bytes of a staging file, which can be read from their beginning again and again.

    Args:
        file: Where they are; its owner closes it.
        length_bytes: The valid length.
        path: Of the staging file, for messages.
        crc32: Of the valid bytes, checked at the end of each reading; None where it has been checked.
        is_checked: Whether they are known to be what was written.
    """

    file: SeekableFile = field(repr=False)
    length_bytes: int
    path: str | None = None
    crc32: int | None = None
    is_checked: bool = False

    def read(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The schema, and the batches from the first one on; memory is bounded by one message.

        Raises:
            PartDamaged: Here, or by the batches: the bytes are no stream of whole messages, or not what was written.
        """
        self.file.seek(0)
        return read_staging_file(self.file, self.length_bytes, self.path, self.crc32, is_checked=self.is_checked)


def content_of(
    file: SeekableStagingFile, length_bytes: int, path: str | None, crc32: int, *, checks_reads: bool
) -> StagingContent:
    """The content of a staging file, compared with its checksum now or while it is read.

    Args:
        file: At the beginning of the staging file.
        length_bytes: The valid length.
        path: Of the staging file, for messages.
        crc32: Of the valid bytes, as they were written.
        checks_reads: Whether the store itself verifies checksums on read. Else a long staging file is read twice, so
            that damage is found before Arrow decodes anything.

    Raises:
        PartDamaged: The valid bytes are others, or fewer.
    """
    if length_bytes <= MOST_WHOLE_BYTES:
        data = _Prefix(file, length_bytes, path, crc32).read_whole(file)
        return StagingContent(_Memory(data), length_bytes, path, is_checked=True)
    if checks_reads:
        return StagingContent(file, length_bytes, path, crc32)
    check_staging_file(file, length_bytes, crc32, path)
    return StagingContent(file, length_bytes, path, is_checked=True)


def check_staging_file(file: ReadableFile, length_bytes: int, crc32: int, path: str | None = None) -> None:
    """Refuse a staging file that is not what was written, before anything in it is decoded.

    Arrow follows a damaged offset to anywhere in memory, which would end the process instead of naming the staging
    file.

    Args:
        file: At the beginning of the staging file; read up to its valid length, in pieces of a megabyte.
        length_bytes: The valid length.
        crc32: Of the valid bytes, as they were written.
        path: Of the staging file, for messages.

    Raises:
        PartDamaged: The valid bytes are others, or fewer.
    """
    prefix = _Prefix(file, length_bytes, path, crc32)
    while prefix.read(_PIECE_BYTES):
        pass
    prefix.check_bytes()


def read_staging_file(
    file: ReadableFile,
    length_bytes: int,
    path: str | None = None,
    crc32: int | None = None,
    *,
    is_checked: bool = False,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Read a staging file up to its valid length, a message at a time; what comes after it is never looked at.

    Args:
        file: At the beginning of the staging file.
        length_bytes: The valid length, as a persist returned it.
        path: Of the staging file, for messages.
        crc32: Of the valid bytes, checked after the last batch; None where it has been checked.
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

    def read_whole(self, file: SeekableStagingFile) -> pa.Buffer:
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
        """Do nothing: the caller that opened the file closes it."""

    def checked(self, read_message: Any) -> Any:
        """Read one message. Errors of Arrow, but not those of storage, become damage."""
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
        staging_file = "A staging file" if self._path is None else f"staging file {self._path!r}"
        return PartDamaged(f"{staging_file} {what}", hint=DAMAGED_HINT, path=self._path)


class ChecksummedStream:
    """Passes bytes on to a stream, and keeps the CRC-32 of everything that it holds by then.

    Args:
        stream: Where the bytes go.
        crc32: Of what it holds already; a CRC-32 goes on from its value alone, so nothing is read for it.
    """

    def __init__(self, stream: ByteStream, crc32: int = 0) -> None:
        self._stream = stream
        self._crc32 = crc32

    @property
    def crc32(self) -> int:
        """Of all bytes up to the position."""
        return self._crc32

    @property
    def position(self) -> int:
        """That of the stream: bytes handed over so far, counted from the start of the part."""
        return self._stream.position

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``."""
        self._stream.write(data)
        self._crc32 = crc32_of(data, self._crc32)


_GATHERED_BYTES = 256 << 10
"""Arrow writes each header and page by a call of its own; fewer bytes than these are gathered."""


class StreamFile:
    """Passes bytes on to a stream, but only when asked to; closing it leaves the stream open.

    pyarrow ends an unclosed file when it is collected as garbage, and that end must not reach a part that was
    given up, or that another process has taken over.

    Args:
        stream: Where the bytes go; the file begins at its position.
    """

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._start = stream.position
        self._passes = False
        self._gathered = bytearray()

    @contextmanager
    def passing(self) -> Iterator[Self]:
        """Pass on what is written meanwhile: all of it, by the end of the block."""
        self._passes = True
        try:
            yield self
            self._hand_on()
        finally:
            self._passes = False

    def write(self, data: Any) -> int:
        """Append all of ``data``."""
        size_bytes = len(data)
        if not self._passes:
            return size_bytes
        if len(self._gathered) + size_bytes > _GATHERED_BYTES:
            self._hand_on()
        if size_bytes > _GATHERED_BYTES:
            self._stream.write(data)
        else:
            self._gathered += data
        return size_bytes

    def tell(self) -> int:
        """Bytes since the start of the file."""
        return self._stream.position - self._start + len(self._gathered)

    def flush(self) -> None:
        """Persisting is the stream's own verb."""

    def close(self) -> None:
        """Do nothing: the caller that opened the stream closes it."""

    def _hand_on(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._stream.write(memoryview(gathered))
