"""Avro container files: blocks of rows behind a header, added to over many checkpoints."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import ConfigError
from partfile.writers.avro_schema import avro_schema
from partfile.writers.avro_values import row_bytes, varint
from partfile.writers.option_types import settle_options
from partfile.writers.plain_columns import as_plain, plain_schema
from partfile.writers.port import EncodedRows, RowFormat, RowWriter

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_BLOCK_BYTES = 256 << 10
_RAW_DEFLATE_WBITS = -15
_NAMES = {"none": "null", "deflate": "deflate", "snappy": "snappy", "zstd": "zstandard"}
"""Our names of codecs, and those of the Avro specification."""
_LEVELS = {"deflate": range(1, 10), "zstd": range(1, 23)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroFormat(RowFormat):
    """Rows as an Avro container file; each persist ends a block.

    Args:
        compression: Codec of the blocks: snappy, deflate, zstd or none.
        compression_level: 1 to 9 for deflate, 1 to 22 for zstd; None is the codec's own default.
        block_bytes: Encoded bytes that end a block before the next persist does.

    Raises:
        ConfigError: An unknown codec, a level that it does not take, or a block of nothing.
    """

    compression: str = "snappy"
    compression_level: int | None = None
    block_bytes: int = _BLOCK_BYTES

    def __post_init__(self) -> None:
        settle_options(self, AvroFormat)
        if self.compression not in _NAMES:
            raise ConfigError(
                f"Avro compression {self.compression!r} is not known.", hint=f"There are {', '.join(_NAMES)}."
            )
        levels = _LEVELS.get(self.compression, range(0))
        if self.compression_level is not None and self.compression_level not in levels:
            raise ConfigError(
                f"Avro compression {self.compression!r} does not take the level {self.compression_level}.",
                hint="deflate takes 1 to 9, zstd 1 to 22, the others none.",
            )
        if self.block_bytes < 1:
            raise ConfigError("block_bytes must be at least 1.")

    @property
    def suffix(self) -> str:
        """``.avro``; the codec is told inside the file."""
        return ".avro"

    def check(self, schema: pa.Schema) -> None:
        """Refuse types and names that Avro has no form for.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """
        avro_schema(plain_schema(schema))

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch.

        Raises:
            ConfigError: A null where the schema allows none, or a value that would lose digits.
        """
        plain = as_plain(batch, plain_schema(batch.schema))
        return EncodedRows.of(row_bytes(plain.schema, plain.columns, plain.num_rows))

    def open(self, stream: ByteStream, schema: pa.Schema) -> RowWriter:
        """Make the writer of a part by itself; all parts of a schema have one sync marker."""
        return self.open_part(stream, schema, "")

    def open_part(self, stream: ByteStream, schema: pa.Schema, part_id: str) -> RowWriter:
        """Make the writer of one part, whose sync marker follows from its id, so that nobody has to read it back."""
        return AvroWriter(self, stream, schema, part_id)

    def compressed(self, data: bytes | bytearray) -> bytes:
        """What a block holds between its head and the sync marker."""
        if self.compression == "deflate":
            level = -1 if self.compression_level is None else self.compression_level
            codec = zlib.compressobj(level, zlib.DEFLATED, _RAW_DEFLATE_WBITS)
            return codec.compress(data) + codec.flush()
        if self.compression == "snappy":
            return _arrow_compressed("snappy", None, data) + crc32_of(data).to_bytes(4, "big")
        if self.compression == "zstd":
            return _arrow_compressed("zstd", self.compression_level, data)
        return bytes(data)


class AvroWriter(RowWriter):
    """Holds the rows of one block at a time."""

    def __init__(self, form: AvroFormat, stream: ByteStream, schema: pa.Schema, part_id: str) -> None:
        self._form = form
        self._stream = stream
        self._pending = bytearray()
        self._pending_rows = 0
        metadata = {
            b"avro.schema": json.dumps(avro_schema(plain_schema(schema)), separators=(",", ":")).encode(),
            b"avro.codec": _NAMES[form.compression].encode(),
        }
        self._sync = hashlib.sha256(b"\0".join((part_id.encode(), *metadata.values()))).digest()[:_SYNC_BYTES]
        if stream.position == 0:
            stream.write(_MAGIC + _map(metadata) + self._sync)

    def write(self, batch: pa.RecordBatch) -> None:
        """Encode the rows of a batch and append them, in blocks of the size asked for."""
        encoded = self._form.encode(batch)
        offsets = encoded.offsets.to_numpy(zero_copy_only=False)
        cuts = np.searchsorted(offsets, np.arange(self._form.block_bytes, len(encoded.data), self._form.block_bytes))
        start = 0
        for stop in np.unique(cuts).tolist():
            self._hold(encoded.rows(start, stop), stop - start)
            self._end_block()
            start = stop
        self.write_encoded(encoded.rows(start, batch.num_rows), batch.num_rows - start)

    def write_encoded(self, data: bytes | memoryview, rows: int) -> None:
        """Append whole rows; they are of one block, however many."""
        self._hold(data, rows)
        if len(self._pending) >= self._form.block_bytes:
            self._end_block()

    def persist(self) -> int:
        """End the block, if there is one, and return the stream's position."""
        if self._pending_rows:
            self._end_block()
        return self._stream.position

    def close(self) -> None:
        """End the last block; there is no footer."""
        self.persist()

    def _hold(self, data: bytes | memoryview, rows: int) -> None:
        self._pending += data
        self._pending_rows += rows

    def _end_block(self) -> None:
        data = self._form.compressed(self._pending)
        self._stream.write(varint(self._pending_rows) + varint(len(data)) + data + self._sync)
        self._pending = bytearray()
        self._pending_rows = 0


def _map(metadata: dict[bytes, bytes]) -> bytes:
    words = [varint(len(word)) + word for pair in metadata.items() for word in pair]
    return varint(len(metadata)) + b"".join(words) + varint(0)


def _arrow_compressed(codec: str, level: int | None, data: bytes | bytearray) -> bytes:
    compressed: Any = pa.Codec(codec, level).compress(data, asbytes=True)
    return bytes(compressed)
