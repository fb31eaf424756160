"""What text, JSON lines and CSV have in common: encoded rows, an optional header, and compression."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partfile.writers.compression import Compression
from partfile.writers.port import RowFormat, RowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.writers.frames import Frame
    from partfile.writers.port import ByteStream


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(RowFormat):
    """Base of formats that write rows one after the other; a subclass encodes, the rest is here.

    Args:
        compression: How parts are compressed; one member or frame a persist.
    """

    compression: Compression = field(default_factory=Compression)

    def start_of_part(self, schema: pa.Schema) -> bytes:  # noqa: ARG002
        """What a new part begins with; nothing unless a format says otherwise."""
        return b""

    def open(self, stream: ByteStream, schema: pa.Schema) -> RowWriter:
        """Make the writer of one part; only a part that is still empty gets its first bytes."""
        writer = LineWriter(self, stream)
        if stream.position == 0 and (start := self.start_of_part(schema)):
            writer.write_encoded(start, 0)
        return writer


class LineWriter(RowWriter):
    """Writes encoded rows to a part, through a frame that ends at each persist."""

    def __init__(self, form: LineFormat, stream: ByteStream) -> None:
        self._form = form
        self._stream = stream
        self._frame: Frame | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode the rows of a batch and append them."""
        self.write_encoded(self._form.encode(batch).data, batch.num_rows)

    def write_encoded(self, data: bytes | memoryview, rows: int) -> None:  # noqa: ARG002
        """Append whole rows as encoded by ``encode``; no bytes, no frame."""
        if len(data) == 0:
            return
        if self._frame is None:
            self._frame = self._form.compression.start(self._stream)
        self._frame.write(data)

    def persist(self) -> int:
        """End the frame, if there is one, and return the stream's position."""
        if self._frame is not None:
            self._frame.finish()
            self._frame = None
        return self._stream.position

    def close(self) -> None:
        """End the last frame; row formats have no footer."""
        self.persist()
