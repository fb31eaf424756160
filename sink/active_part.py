"""One part while rows are added to it: its stream, its writer and what the snapshot says of it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError, StoreError
from partfile.sink.rolling import PartProgress
from partfile.sink.states import published_size_bytes
from partfile.writers.checksummed_stream import ChecksummedStream
from partfile.writers.port import RowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.filesystems.port import PartHandle, PartStream
    from partfile.sink.states import OpenPart
    from partfile.writers.port import Format


class ActivePart:
    """An open part held by this process.

    Args:
        stream: The part, leased.
        format: Makes the writer.
        schema: The rows' schema as written to the file.
        state: The part as of the last checkpoint, or as just created.
    """

    def __init__(self, stream: PartStream, format: Format, schema: pa.Schema, state: OpenPart) -> None:
        self._stream = stream
        self._state = state
        self._checksummed = _checksummed(stream, state)
        self._writer = format.open_part(self._checksummed or stream, schema, state.part.in_progress)
        self._rows = state.rows
        self._start_bytes = state.part.valid_length
        self._last_write_ms = state.last_write_ms
        self._most_buckets = 1 if state.stage is None else state.stage.least_buckets

    @property
    def progress(self) -> PartProgress:
        """What the rolling policy may know of it."""
        size_bytes = published_size_bytes(self._stream.position, self._state.stage)
        return PartProgress(size_bytes, self._rows, self._state.created_at_ms, self._last_write_ms)

    @property
    def is_stage(self) -> bool:
        """Whether it is encoded later, and so can be set aside instead of being rolled."""
        return self._state.stage is not None

    @property
    def added_bytes(self) -> int:
        """Bytes this process has added to the part so far."""
        return self._stream.position - self._start_bytes

    def write(self, batch: pa.RecordBatch, now_ms: int, *, buckets: int = 1) -> None:
        """Add rows, encoded by the writer; of so many buckets, if it is a stage that they share."""
        self._writer.write(batch)
        self._most_buckets = max(self._most_buckets, buckets)
        self._rows += batch.num_rows
        self._last_write_ms = now_ms

    def write_encoded(self, data: bytes | memoryview, rows: int, now_ms: int) -> None:
        """Add rows that the format has encoded."""
        if not isinstance(self._writer, RowWriter):
            raise PartfileError(f"{type(self._writer).__name__} of a row format takes no encoded rows")
        self._writer.write_encoded(data, rows)
        self._rows += rows
        self._last_write_ms = now_ms

    def flush(self) -> None:
        """Hand every byte to the stream, so that its position is what the part will have."""
        self._writer.persist()

    def persist(self) -> OpenPart:
        """Make the part durable and return what a snapshot says of it."""
        length = self._writer.persist()
        handle = self._stream.persist()
        self._check(handle, length)
        self._stream.verify()
        return self._at(handle)

    def end(self) -> OpenPart:
        """End the part, make it durable, release it, and return what a snapshot says of it.

        It is pending then; a stage stays what it is, for it is encoded and never published.
        """
        if self._state.stage is not None:
            return self.suspend()
        self._writer.close()
        handle = self._stream.close_for_commit()
        return self._at(handle)

    def suspend(self) -> OpenPart:
        """Make the part durable and release it, to be resumed or encoded; return what a snapshot says of it."""
        state = self.persist()
        self._stream.close()
        return state

    def close(self) -> None:
        """Release the part; deletes nothing."""
        self._writer.abandon()
        self._stream.close()

    def _check(self, handle: PartHandle, length: int) -> None:
        if handle.valid_length != length:
            raise PartfileError(
                f"the writer counts {length} bytes, the stream {handle.valid_length}", path=handle.path_of(handle.name)
            )

    def _at(self, handle: PartHandle) -> OpenPart:
        stage = self._state.stage
        if stage is not None and stage.shared:
            stage = stage.model_copy(update={"least_buckets": self._most_buckets})
        if stage is not None and self._checksummed is not None:
            stage = stage.model_copy(update={"crc32": self._checksummed.crc32})
        self._state = self._state.model_copy(
            update={"part": handle, "rows": self._rows, "last_write_ms": self._last_write_ms, "stage": stage}
        )
        return self._state


def held_part(stream: PartStream, format: Format, schema: pa.Schema, state: OpenPart) -> ActivePart:
    """The open part of a stream that nobody else holds. On failure the stream is released, and its file stays (S13).

    Arguments as of ``ActivePart``.
    """
    try:
        return ActivePart(stream, format, schema, state)
    except BaseException:
        # Why there is no writer is told; that the stream could not be released either is not.
        with suppress(StoreError):
            stream.close()
        raise


def _checksummed(stream: PartStream, state: OpenPart) -> ChecksummedStream | None:
    """A stage is read back, so its bytes have a checksum; one that was begun without cannot get it any more."""
    if state.stage is None or state.stage.crc32 is None:
        return None
    return ChecksummedStream(stream, state.stage.crc32)
