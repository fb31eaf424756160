"""Sort the rows of a batch by bucket once, and say which rows belong to which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa


class Slice(NamedTuple):
    """A run of rows of one bucket."""

    bucket: str
    start: int
    stop: int


def split(
    batch: pa.RecordBatch, buckets: pa.DictionaryArray[Any, Any], *, most_runs: int = 0
) -> tuple[pa.RecordBatch, list[Slice]]:
    """Bring the rows of each bucket together, in their order, and return the runs.

    One stable sort of integer codes and one take; neither if the rows stand together already.

    Args:
        batch: The rows.
        buckets: One bucket a row, as ``Bucketer.bucket_of`` returns them.
        most_runs: Up to so many runs the rows are left where they are, and a bucket may come in several slices, in
            order: cheaper for who can gather them otherwise.
    """
    if len(batch) == 0:
        return batch, []
    codes, names = buckets.indices, buckets.dictionary.to_pylist()
    encoded = pc.run_end_encode(codes)
    runs = len(encoded.values)
    # More runs than buckets: some bucket's rows are apart. Fewer: look whether one comes twice.
    if runs > most_runs and (runs > len(names) or len(encoded.values.unique()) < runs):
        order = pc.sort_indices(codes)
        batch, encoded = batch.take(order), pc.run_end_encode(codes.take(order))
    ends = encoded.run_ends.to_pylist()
    slices = zip(encoded.values.to_pylist(), [0, *ends[:-1]], ends, strict=True)
    return batch, [Slice(str(names[code]), start, stop) for code, start, stop in slices]
