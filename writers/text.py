"""Text: the values of one string column, a separator after each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from partfile.filesystems.errors import ConfigError, UnsupportedTypeError
from partfile.writers.lines import LineFormat
from partfile.writers.option_types import settle_options
from partfile.writers.port import EncodedRows
from partfile.writers.scalar_text import is_text
from partfile.writers.text_columns import TEXT, join, kernels, literal, used_bytes


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
        settle_options(self, TextFormat)
        if not self.line_separator:
            raise ConfigError("line_separator is empty, so lines could not be told apart.")
        if self.embedded_separator not in {"fail", "keep"}:
            raise ConfigError(
                f"embedded_separator={self.embedded_separator!r} is not known.", hint='Use "fail" or "keep".'
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
                hint="Select one string column, or use json, csv or parquet.",
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
                f"Column {name!r} has {rows} values that hold the line separator {self.line_separator!r}.",
                hint='Use json or csv, another line_separator, or embedded_separator="keep" to have more lines.',
            )


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
