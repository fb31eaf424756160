"""CSV as in RFC 4180: quotes where they are needed, doubled inside, and null distinct from the empty string."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.base import EncodedRows, resolve_options
from partfile.writers.scalars import (
    TEXT,
    NonFinite,
    check_columns,
    in_column,
    is_any,
    is_binary,
    is_text,
    join,
    kernels,
    literal,
    places_in_runs,
    replace,
    replace_where,
    rows_with,
    scalar_text,
)
from partfile.writers.text import LineFormat

if TYPE_CHECKING:
    from collections.abc import Iterator


_WORDS = NonFinite()
_MARKS = '\r\n"'
# These occur in numbers, timestamps or base64, which are written without quotes.
_NO_SEPARATOR = set('"\r\n+-.:/= ')


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(LineFormat):
    r"""Rows as comma-separated values. A null is an empty field, an empty string is ``""``.

    Args:
        compression: How parts are compressed.
        header: Whether a part begins with the column names; never again when it is continued.
        separator: One character between fields.
        line_terminator: ``"\n"`` or ``"\r\n"``.
        null_value: What stands for a null, never quoted; a string that equals it is quoted. A number is not, so a
            null value that looks like one makes them one and the same.

    Raises:
        ConfigError: An option that would make the file ambiguous.
    """

    header: bool = True
    separator: str = ","
    line_terminator: str = "\n"
    null_value: str = ""

    def __post_init__(self) -> None:
        resolve_options(self, CsvFormat)
        if len(self.separator) != 1 or self.separator in _NO_SEPARATOR or self.separator.isalnum():
            raise ConfigError(
                f"The CSV separator {self.separator!r} is not one character that can stand between values.",
                hint="Write for instance separator=';'; a comma, a tab or a bar will do as well.",
            )
        if self.line_terminator not in {"\n", "\r\n"}:
            raise ConfigError(
                f"The CSV line terminator {self.line_terminator!r} is neither '\\n' nor '\\r\\n'.",
                hint="Write line_terminator='\\n'.",
            )
        if any(mark in self.null_value for mark in (self.separator, *_MARKS)):
            raise ConfigError(
                f"null_value={self.null_value!r} holds a separator, a quote or a line break.",
                hint="Write null_value='' or null_value='NULL'.",
            )

    @property
    def suffix(self) -> str:
        """``.csv``, and the compression's."""
        return ".csv" + self.compression.suffix

    def check(self, schema: pa.Schema) -> None:
        """Refuse nested types, types without a text form, names that occur twice, and a schema without columns.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """
        if len(schema) == 0:
            raise UnsupportedTypeError("CSV needs at least one column, and there is none.")
        check_columns(schema, "CSV", nested=False)

    def start_of_part(self, schema: pa.Schema) -> bytes:
        """The line of column names, if there is to be one."""
        if not self.header:
            return b""
        names = self._quoted(pa.array(schema.names, TEXT)).to_pylist()
        return (self.separator.join(names) + self.line_terminator).encode()

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch.

        Raises:
            ConfigError: A time lies outside a day, a ``date64`` is no whole day, or the only column holds a null, which
                would be an empty line, and readers skip those.
        """
        fields = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            with in_column(name, "CSV"):
                fields.append(self._field(column))
        if len(fields) == 1 and self.null_value == "" and fields[0].null_count:
            raise ConfigError(
                f"The only column {batch.schema.names[0]!r} holds a null: an empty line, which readers skip.",
                hint="Write format_options={'null_value': '\\\\N'}, or format='json'.",
            )
        parts: list[Any] = []
        for field in fields:
            parts += [field, literal(self.separator)]
        parts[-1] = literal(self.line_terminator)
        return EncodedRows.of(join(parts, null=self.null_value))

    def _field(self, column: Any) -> Any:
        if pa.types.is_dictionary(column.type):
            return self._field(column.dictionary).take(column.indices)
        if pa.types.is_run_end_encoded(column.type):
            return self._field(column.values).take(places_in_runs(column))
        text = scalar_text(column, _WORDS)
        # Of all other texts none holds a mark, but that of no bytes at all is empty, too.
        return self._quoted(text) if is_text(column.type) or is_binary(column.type) else text

    def _quoted(self, text: Any) -> Any:
        """Quote the values that hold a mark, are empty, or look like the null value."""
        mask = kernels.equal(text, literal(self.null_value))
        if self.null_value:
            mask = kernels.or_(mask, kernels.equal(kernels.binary_length(text), 0))
        for rows in self._rows_with_marks(text):
            mask = kernels.or_(mask, rows)
        return replace_where(text, mask, _in_quotes) if is_any(mask) else text

    def _rows_with_marks(self, text: Any) -> Iterator[Any]:
        single = _MARKS + self.separator if self.separator.isascii() else _MARKS
        rows = rows_with(text, single.encode())
        if rows is not None:
            yield rows
        if not self.separator.isascii():
            yield kernels.match_substring(text, pattern=self.separator)


def _in_quotes(text: Any) -> Any:
    return join([literal('"'), replace(text, '"', '""'), literal('"')])
