"""Rows held back until there are enough of them, so that many small batches become few large ones."""

from __future__ import annotations

import pyarrow as pa

_MOST_SLACK = 2
"""So many times its own bytes a held slice may keep in memory."""
_MOST_SMALL = 256
"""Batches that are held before they are joined: each costs a kilobyte a column, however few its rows."""


class HeldRows:
    """Batches of one schema, in order, that weigh no more in memory than their own rows.

    Args:
        schema: The schema of every batch.
        most_rows: Rows that are enough.
        most_bytes: Arrow bytes that are enough.
    """

    def __init__(self, schema: pa.Schema, most_rows: int, most_bytes: int) -> None:
        self._schema = schema
        self._most_rows = most_rows
        self._most_bytes = most_bytes
        self._joined: list[pa.RecordBatch] = []
        self._small: list[pa.RecordBatch] = []
        self.rows = 0
        self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> bool:
        """Hold the rows of a batch and tell whether there are enough now.

        A slice that is small in its batch is copied: held as it is, it would keep the whole batch in memory.
        """
        if batch.num_rows == 0:
            return False
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        enough = self.rows >= self._most_rows or self.bytes >= self._most_bytes
        # What is about to be taken out need not be copied before.
        self._small.append(batch if enough else without_slack(batch))
        if len(self._small) >= _MOST_SMALL:
            self._joined += pa.Table.from_batches(self._small, self._schema).combine_chunks().to_batches()
            self._small = []
        return enough

    def take(self) -> pa.Table:
        """All rows that are held, which are held no longer."""
        table = pa.Table.from_batches([*self._joined, *self._small], self._schema)
        self._joined, self._small, self.rows, self.bytes = [], [], 0, 0
        return table


def without_slack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, copied if they are a small slice of what they keep in memory."""
    if batch.get_total_buffer_size() <= _MOST_SLACK * batch.nbytes:
        return batch
    # Joining copies ranges of memory, in half the time that taking row by row needs; a lone batch it would not copy.
    (copied,) = pa.Table.from_batches([batch, batch.slice(0, 0)]).combine_chunks().to_batches()
    return copied
