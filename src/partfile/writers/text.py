"""Text: the values of one string column, a line each. ``LineFormat`` is the base of every format of lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import EncodedRows, RowFormat, RowWriter, resolve_options
from partfile.writers.compression import Compression
from partfile.writers.scalars import TEXT, is_text, join, kernels, literal, used_bytes

if TYPE_CHECKING:
    from partfile.writers.base import ByteStream
    from partfile.writers.compression import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat(RowFormat):
    """Base of formats that write rows one after the other; a subclass encodes, the rest is here.

    Args:
        compression: How parts are compressed; one member or frame a persist.
    """

    compression: Compression = field(default_factory=Compression)

    def start_of_part(self, schema: pa.Schema) -> bytes:  # noqa: ARG002
        """The first bytes of a new part; none unless a format says otherwise."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat(LineFormat):
    """One string column as it is, like Spark's text sink. A null is an empty line, and reads back as an empty string.

    Args:
        compression: How parts are compressed.
        line_separator: What follows each value.
        embedded_separator: What happens to a value that holds the separator, and so would read back as two:
            ``"fail"`` refuses it, ``"keep"`` writes it as it is.

    Raises:
        ConfigError: An empty separator, or an unknown ``embedded_separator``.
    """

    line_separator: str = "\n"
    embedded_separator: str = "fail"

    def __post_init__(self) -> None:
        resolve_options(self, TextFormat)
        if not self.line_separator:
            raise ConfigError(
                "line_separator is empty, so lines could not be told apart.", hint="Write line_separator='\\n'."
            )
        if self.embedded_separator not in {"fail", "keep"}:
            raise ConfigError(
                f"embedded_separator={self.embedded_separator!r} is not known.",
                hint="Write embedded_separator='fail' or embedded_separator='keep'.",
            )

    @property
    def suffix(self) -> str:
        """``.txt``, and the compression's."""
        return ".txt" + self.compression.suffix

    def check(self, schema: pa.Schema) -> None:
        """Refuse anything but exactly one string column.

        Raises:
            UnsupportedTypeError: Names the columns and their types.
        """
        if len(schema) != 1 or not is_text(_value_type(schema.field(0).type)):
            columns = ", ".join(f"{column.name!r} ({column.type})" for column in schema) or "none"
            raise UnsupportedTypeError(
                f"The text format takes exactly one string column; the columns are: {columns}.",
                hint="Select one string column: df.select(COLUMN); or write format='json'.",
            )

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch.

        Raises:
            ConfigError: A value holds the line separator, and ``embedded_separator`` is ``"fail"``.
        """
        column = batch.column(0).cast(TEXT)
        if self.embedded_separator == "fail" and self.line_separator.encode() in used_bytes(column).to_pybytes():
            self._refuse_embedded(column, batch.schema.names[0])
        return EncodedRows.of(join([column, literal(self.line_separator)], null=""))

    def _refuse_embedded(self, column: Any, name: str) -> None:
        # The bytes of neighbours, or of nulls, may look like the separator: only a look at each value is proof.
        rows = kernels.sum(kernels.match_substring(column, pattern=self.line_separator)).as_py()
        if rows:
            raise ConfigError(
                f"Column {name!r} holds the line separator {self.line_separator!r} in {rows} of {len(column)} rows",
                hint='Use json or csv, another line_separator, or embedded_separator="keep" to have more lines.',
            )


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
