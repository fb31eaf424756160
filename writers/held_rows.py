"""Rows held back until there are enough of them, so that many small batches become few large ones."""

from __future__ import annotations

import pyarrow as pa

_MOST_SLACK = 2
"""So many times its own bytes a held slice may keep in memory."""
_COLUMN_BYTES = 1 << 10
"""What a column of a batch takes in memory besides its rows."""
_MOST_DESCRIBING_BYTES = 256 << 10
"""What the columns of held batches may take besides rows that weigh less: then the batches are joined."""
_FEWEST_JOINED = 8
"""Joining fewer batches costs more time than it saves memory."""


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
        self._batches: list[pa.RecordBatch] = []
        self._may_join = True
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
        self._batches.append(batch if enough else without_slack(batch))
        if not enough and self._describing_bytes >= max(_MOST_DESCRIBING_BYTES, self.bytes):
            self._join()
        return enough

    def take(self) -> pa.Table:
        """All rows that are held, which are held no longer."""
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self.rows, self.bytes = [], 0, 0
        return table

    @property
    def _describing_bytes(self) -> int:
        return _COLUMN_BYTES * len(self._schema) * len(self._batches)

    def _join(self) -> None:
        """Copy what is held: never more bytes than describe the batches that are joined."""
        if not self._may_join or len(self._batches) < _FEWEST_JOINED:
            return
        try:
            self._batches = pa.Table.from_batches(self._batches, self._schema).combine_chunks().to_batches()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Dictionaries whose values are too many for one, or are nested.
            self._may_join = False


def weight(batch: pa.RecordBatch) -> int:
    """Bytes that a batch takes in memory: those of its rows, and those of its columns, however few its rows."""
    size_bytes: int = batch.nbytes + _COLUMN_BYTES * batch.num_columns
    return size_bytes


def without_slack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, copied if they are a small slice of what they keep in memory."""
    if batch.get_total_buffer_size() <= _MOST_SLACK * batch.nbytes:
        return batch
    # Joining copies ranges of memory, in half the time that taking row by row needs; a lone batch it would not copy.
    (copied,) = pa.Table.from_batches([batch, batch.slice(0, 0)]).combine_chunks().to_batches()
    return copied
