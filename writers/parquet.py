"""Parquet: one part is one file with its footer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from partfile.filesystems.errors import ConfigError, UnsupportedTypeError
from partfile.writers.held_rows import HeldRows
from partfile.writers.port import BulkFormat, Writer
from partfile.writers.stream_file import StreamFile

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream

_CODECS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFormat(BulkFormat):
    """Rows as Parquet.

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


class ParquetPartWriter(Writer):
    """Holds the batches of one row group at a time, so that many small slices become few large groups."""

    def __init__(self, form: ParquetFormat, stream: ByteStream, schema: pa.Schema) -> None:
        self._row_group_rows = form.row_group_rows
        self._held = HeldRows(schema, form.row_group_rows, form.row_group_bytes)
        self._target = StreamFile(stream)
        with self._target.passing():
            self._file = pq.ParquetWriter(
                pa.PythonFile(cast("Any", self._target), mode="w"),
                schema,
                compression=cast("Literal['snappy']", form.compression),
                compression_level=form.compression_level,
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; a full row group is written."""
        if self._held.add(batch):
            self._write_row_groups()

    def persist(self) -> int:
        """Refuse: without its footer a Parquet file does not decode, so this part rolls instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("A Parquet part cannot be persisted before it is closed.", hint="Roll it at each checkpoint.")

    def close(self) -> None:
        """Write what is held, and the footer."""
        if self._held.rows:
            self._write_row_groups()
        with self._target.passing():
            self._file.close()

    def _write_row_groups(self) -> None:
        with self._target.passing():
            self._file.write_table(self._held.take(), row_group_size=self._row_group_rows)
