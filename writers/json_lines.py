"""JSON lines: one object a row, every key in every row, a line feed after each."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from partfile.filesystems.errors import ConfigError
from partfile.writers.column_types import check_columns
from partfile.writers.json_values import object_text
from partfile.writers.lines import LineFormat
from partfile.writers.option_types import settle_options
from partfile.writers.port import EncodedRows
from partfile.writers.scalar_text import NonFinite
from partfile.writers.text_columns import literal

_NON_FINITE = {
    "literal": NonFinite(),
    "string": NonFinite('"NaN"', '"Infinity"', '"-Infinity"'),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLinesFormat(LineFormat):
    """Rows as JSON objects, one a line. Nulls are written, so that every line has every key.

    Args:
        compression: How parts are compressed.
        non_finite: ``"literal"`` writes NaN and the infinities as bare ``NaN``, ``Infinity`` and ``-Infinity``: Spark,
            DuckDB and pyarrow read them, though RFC 8259 has no such words. ``"string"`` puts them in quotes, which
            is strict JSON and what Spark itself writes; pyarrow cannot read that.

    Raises:
        ConfigError: An unknown ``non_finite``.
    """

    non_finite: str = "literal"

    def __post_init__(self) -> None:
        settle_options(self, JsonLinesFormat)
        if self.non_finite not in _NON_FINITE:
            raise ConfigError(f"non_finite={self.non_finite!r} is not known.", hint='Use "literal" or "string".')

    @property
    def suffix(self) -> str:
        """``.json``, and the compression's."""
        return ".json" + self.compression.suffix

    def check(self, schema: pa.Schema) -> None:
        """Refuse types without a JSON form, map keys that are not text, and names that occur twice.

        Raises:
            UnsupportedTypeError: Names the column and its type, and what to do.
        """
        check_columns(schema, "JSON lines", nested=True)

    def encode(self, batch: pa.RecordBatch) -> EncodedRows:
        """Encode every row of a batch; a batch without columns gives ``{}`` for each row."""
        if batch.num_columns == 0:
            return EncodedRows.of(pa.repeat(literal("{}\n"), batch.num_rows))
        words = _NON_FINITE[self.non_finite]
        return EncodedRows.of(object_text(batch.schema.names, batch.columns, words, end="}\n"))
