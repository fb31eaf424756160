"""Small batches joined to larger ones, so that each bucket gets one long slice instead of many short ones. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_ROWS = 1 << 16
"""Splitting and encoding cost no less a row beyond that."""

MOST_BYTES = 16 << 20
"""Arrow bytes that are joined at most, so that long rows do not fill the memory."""


def larger_batches(
    batches: Iterable[pa.RecordBatch], most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of about as many rows as are worth to be split at a time.

    Batches without rows are left out; one that is large by itself is passed on as it is, and none is cut.

    Args:
        batches: Of any schemas; only neighbours of one schema are joined.
        most_rows: A joined batch has no more rows.
        most_bytes: A joined batch has no more Arrow bytes.
    """
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch_bytes = batch.nbytes
        is_too_much = rows + batch.num_rows > most_rows or size_bytes + batch_bytes > most_bytes
        if held and (is_too_much or batch.schema != held[0].schema):
            yield _joined(held)
            held, rows, size_bytes = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch_bytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
