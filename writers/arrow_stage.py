"""The stage of a columnar part: an Arrow IPC stream that grows over many checkpoints and is encoded once, at the roll.

The schema message comes first, then record-batch messages; there is no end mark. Each length that a
persist returned is the end of a message, so that the stage can be read up to there, and continued by another process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.ipc

from partfile.filesystems.errors import UnsupportedTypeError
from partfile.writers.held_rows import HeldRows
from partfile.writers.plain_columns import as_plain, plain_schema
from partfile.writers.port import BulkFormat, Format, Writer

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream

_MESSAGE_BYTES = 1 << 18
_MESSAGE_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 15
"""Joins what is small in a message; each open stage has one all the time, and a subtask may have a thousand open."""


@dataclass(frozen=True, slots=True)
class StageFormat(Format):
    """Rows staged for a columnar part. Dictionary, run-end encoded and view columns are staged as plain columns.

    Args:
        target: What the stage is to become: rows that it would refuse are refused before they are staged.
        compression: Of the buffers. Each message says its own, so a stage may be continued with another.
    """

    target: BulkFormat | None = None
    compression: Literal["lz4", "zstd", "none"] = "lz4"

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
        return StageWriter(stream, schema, self.target, self.compression)


class StageWriter(Writer):
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
        # Arrow writes the schema before its first message, also where the stage has it.
        self._repeated_bytes = head.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; what makes a full message is written.

        Raises:
            ConfigError: A value that the stage's target cannot hold.
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
