"""Rows as text that tells apart what compares equal, such as 0.0 and -0.0, and joins what does not, such as NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.errors import UnsupportedTypeError
from partfile.writers.columns import as_plain, plain_schema
from partfile.writers.json import JsonLinesFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

_JSON = JsonLinesFormat()


def plain_table(rows: pa.RecordBatch | pa.Table) -> pa.Table:
    """The rows without dictionaries, runs and views."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    schema = plain_schema(table.schema)
    return pa.Table.from_batches([as_plain(batch, schema) for batch in table.to_batches()], schema)


def texts_of(table: pa.Table) -> list[str]:
    """Each row as text: the form of JSON where there is one, which has all digits of each value."""
    columns = [list(_texts(table.column(name).combine_chunks())) for name in table.column_names]
    return [" ".join(row) for row in zip(*columns, strict=True)]


def _texts(column: Any) -> Iterator[str]:
    if isinstance(column, pa.ChunkedArray):
        for chunk in column.chunks:
            yield from _texts(chunk)
        return
    batch = pa.record_batch([column], names=["x"])
    try:
        _JSON.check(batch.schema)
    except UnsupportedTypeError:
        yield from map(str, column.to_pylist())
        return
    # By line feeds alone: text may hold what Python takes for the end of a line, too.
    yield from bytes(_JSON.encode(batch).data).decode().split("\n")[:-1]
