"""The stage of a columnar part: an Arrow IPC stream that grows over many checkpoints and is encoded once, at the roll.

The schema message comes first, then record-batch messages with LZ4 buffers; there is no end mark. Each length that a
persist returned is the end of a message, so that the stage can be read up to there, and continued by another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pyarrow.ipc

from partfile.filesystems.errors import PartDamaged, UnsupportedTypeError
from partfile.writers.held_rows import HeldRows
from partfile.writers.plain_columns import as_plain, plain_schema
from partfile.writers.port import BulkFormat, Format, Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.writers.port import ByteStream

_MESSAGE_BYTES = 1 << 20
_MESSAGE_ROWS = 1 << 16
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class ReadableFile(Protocol):
    """A file that is read from where it stands."""

    def read(self, size_bytes: int, /) -> bytes:
        """Return up to so many bytes, none at the end."""


@dataclass(frozen=True, slots=True)
class StageFormat(Format):
    """Rows staged for a columnar part. Dictionary, run-end encoded and view columns are staged as plain columns.

    Args:
        target: What the stage is to become: rows that it would refuse are refused before they are staged.
    """

    target: BulkFormat | None = None

    @property
    def suffix(self) -> str:
        """Nothing: a stage is never published, and is named after the part that it becomes."""
        return ""

    @property
    def appendable(self) -> bool:
        """Messages can be added by any process, at any message's end."""
        return True

    def check(self, schema: pa.Schema) -> None:
        """Refuse what an Arrow IPC stream, or the stage's target, cannot hold.

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
                    hint="Cast the column to a type that docs/FORMATS.md lists, or drop it.",
                ) from error

    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one stage; only a stage that is still empty gets the schema."""
        return StageWriter(stream, schema, self.target)


class StageWriter(Writer):
    """Joins slices to messages of a megabyte or so, and ends the last one at each persist."""

    def __init__(self, stream: ByteStream, schema: pa.Schema, target: BulkFormat | None = None) -> None:
        self._stream = stream
        self._target = target
        self._schema = plain_schema(schema)
        self._held = HeldRows(self._schema, _MESSAGE_ROWS, _MESSAGE_BYTES)
        self._messages = _Messages()
        # In front of the pipe to Python, since Arrow writes each buffer of a message by a call of its own.
        self._buffer = pa.BufferedOutputStream(pa.PythonFile(cast("Any", self._messages), mode="w"), _MESSAGE_BYTES)
        self._arrow = pa.ipc.new_stream(self._buffer, self._schema, options=_OPTIONS)
        head = self._schema.serialize()
        if stream.position == 0:
            stream.write(memoryview(head))
        # Arrow writes the schema before its first message, also where the stage has it.
        self._repeated_bytes = head.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; what makes a full message is written.

        Raises:
            ConfigError: A value that the stage's target cannot hold.
        """
        if self._target is not None:
            self._target.check_rows(batch)
        if self._held.add(as_plain(batch, self._schema)):
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


def read_stage(
    file: ReadableFile, length_bytes: int, path: str | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Read a stage up to its valid length, a message at a time; what comes after it is never looked at.

    Args:
        file: At the beginning of the stage.
        length_bytes: The valid length, as a persist returned it.
        path: Of the stage, for messages.

    Returns:
        The schema, and the batches; memory is bounded by one message.

    Raises:
        PartDamaged: Here, or by the batches: the prefix is not a stream of whole messages.
    """
    prefix = _Prefix(file, length_bytes, path)
    reader = prefix.checked(lambda: pa.ipc.open_stream(pa.PythonFile(cast("Any", prefix), mode="r")))
    return reader.schema, _batches(prefix, reader)


def _batches(prefix: _Prefix, reader: Any) -> Iterator[pa.RecordBatch]:
    def next_batch() -> Any:
        batch = next(reader, None)
        if batch is not None:
            batch.validate()
        return batch

    while (batch := prefix.checked(next_batch)) is not None:
        yield batch
    prefix.check_end()


class _Prefix:
    """The first bytes of a file as the file that pyarrow wants, with the place of the last whole message."""

    closed = False

    def __init__(self, file: ReadableFile, length_bytes: int, path: str | None) -> None:
        self._file = file
        self._path = path
        self._length_bytes = length_bytes
        self._position = 0
        self._whole_bytes = 0
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, size_bytes: int) -> bytes:
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
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """The file belongs to whoever opened it."""

    def checked(self, read_message: Any) -> Any:
        """What reading one message gives, with Arrow's complaints, but not those of storage, as damage."""
        try:
            message = read_message()
        except (pa.ArrowException, OSError, MemoryError) as error:
            if self._failure is not None:
                raise self._failure from error
            raise self._damaged(str(error)) from error
        if message is not None:
            self._whole_bytes = self._position
        return message

    def check_end(self) -> None:
        """See that nothing but the valid length ended the stream."""
        if self._whole_bytes != self._length_bytes:
            raise self._damaged("the stream ends before its valid length")

    def _damaged(self, what: str) -> PartDamaged:
        stage = "A stage" if self._path is None else f"stage {self._path!r}"
        return PartDamaged(
            f"{stage} does not hold whole Arrow IPC messages up to its valid length of {self._length_bytes} bytes: "
            f"after byte {self._whole_bytes}, {what}.",
            hint="Bring the file back from a backup; what it lacks was not published yet.",
            path=self._path,
        )


class _Messages:
    """Where Arrow puts its messages. They are handed on by the stage's writer alone, never by the garbage collector."""

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
        """Called by pyarrow; the end of its stream is not the end of the stage."""


class _Measure:
    """A part that is thrown away."""

    position = 0

    def write(self, data: bytes | memoryview) -> None:
        self.position += len(data)
