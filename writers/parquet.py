"""Parquet, rolled at each checkpoint: one part is one file with its footer.

A part that stays open over checkpoints needs its rows staged and encoded at the roll; that is a ``BulkWriter`` and goes
beside this format, which stays what ``staged=False`` means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from partfile.filesystems.errors import ConfigError, UnsupportedTypeError
from partfile.writers.port import Format, Writer

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream

_CODECS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFormat(Format):
    """Parquet parts, closed at each checkpoint.

    Args:
        compression: Codec of the pages: snappy, zstd, gzip, lz4, brotli or none.
        compression_level: The codec's level; None is the codec's own default.
        row_group_rows: Rows that end a row group. Rows are held until then.
        row_group_bytes: Arrow bytes that end a row group before that; what bounds the memory of an open part.

    Raises:
        ConfigError: An unknown codec, or a row group of nothing.
    """

    compression: str = "snappy"
    compression_level: int | None = None
    row_group_rows: int = 1 << 20
    row_group_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        if self.compression not in _CODECS:
            raise ConfigError(
                f"Parquet compression {self.compression!r} is not known.", hint=f"There are {', '.join(_CODECS)}."
            )
        if self.row_group_rows < 1 or self.row_group_bytes < 1:
            raise ConfigError("row_group_rows and row_group_bytes must be at least 1.")

    @property
    def suffix(self) -> str:
        """``.parquet``; the codec is told inside the file."""
        return ".parquet"

    @property
    def appendable(self) -> bool:
        """A footer ends the file, so a part cannot be continued."""
        return False

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Arrow itself cannot write as Parquet, found out by writing an empty file.

        Raises:
            UnsupportedTypeError: Names the column and its type.
        """
        if len(schema) == 0:
            raise UnsupportedTypeError("Parquet needs at least one column, and there is none.")
        for column in schema:
            try:
                pq.write_table(pa.schema([column]).empty_table(), pa.BufferOutputStream())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UnsupportedTypeError(
                    f"Column {column.name!r} of type {column.type} cannot be written as Parquet: {error}",
                    hint="Cast the column to a type that docs/FORMATS.md lists, or drop it.",
                ) from error

    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one part."""
        return ParquetPartWriter(self, stream, schema)


_MOST_SLACK = 2
"""So many times its own bytes a held slice may keep in memory."""


class ParquetPartWriter(Writer):
    """Holds the batches of one row group at a time, so that many small slices become few large groups."""

    def __init__(self, form: ParquetFormat, stream: ByteStream, schema: pa.Schema) -> None:
        self._form = form
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0
        self._file = pq.ParquetWriter(
            pa.PythonFile(cast("Any", _StreamFile(stream)), mode="w"),
            schema,
            compression=cast("Literal['snappy']", form.compression),
            compression_level=form.compression_level,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; a full row group is written.

        A slice that is small in its batch is copied: held as it is, it would keep the whole batch in memory.
        """
        if batch.get_total_buffer_size() > _MOST_SLACK * batch.nbytes:
            batch = batch.take(pa.array(range(batch.num_rows), pa.int64()))
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        if self._held_rows >= self._form.row_group_rows or self._held_bytes >= self._form.row_group_bytes:
            self._write_row_groups()

    def persist(self) -> int:
        """Refuse: without its footer a Parquet file does not decode, so this part rolls instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("A Parquet part cannot be persisted before it is closed.", hint="Roll it at each checkpoint.")

    def close(self) -> None:
        """Write what is held, and the footer."""
        self._write_row_groups()
        self._file.close()

    def _write_row_groups(self) -> None:
        if self._held_rows:
            table = pa.Table.from_batches(self._held, self._schema)
            self._file.write_table(table, row_group_size=self._form.row_group_rows)
        self._held, self._held_rows, self._held_bytes = [], 0, 0


class _StreamFile:
    """A stream as the file that pyarrow wants; closing it leaves the stream open."""

    closed = False

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._start = stream.position

    def write(self, data: Any) -> int:
        self._stream.write(data)
        return len(data)

    def tell(self) -> int:
        return self._stream.position - self._start

    def flush(self) -> None:
        """Persisting is the stream's own verb."""

    def close(self) -> None:
        """The stream belongs to whoever opened it."""
