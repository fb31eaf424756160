"""The rows of one batch, put together by bucket: one sort of integers, and one move of what is moved most cheaply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.bucketers.split import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from partfile.bucketers.split import Slice
    from partfile.writers.port import EncodedRows

_ROWS_A_RUN = 16


def rows_by_bucket(rows: pa.RecordBatch, buckets: pa.DictionaryArray[Any, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Bucket and rows, once a bucket."""
    order, slices = split(len(buckets), buckets)
    moved = rows if order is None else rows.take(order)
    for bucket, start, stop in slices:
        yield bucket, moved.slice(start, stop - start)


def encoded_by_bucket(
    encoded: EncodedRows, buckets: pa.DictionaryArray[Any, Any]
) -> Iterator[tuple[str, int, bytes | memoryview]]:
    """Bucket, number of rows and bytes, once a bucket.

    Lines are moved rather than rows: one column instead of many. A few runs are joined as they stand.
    """
    order, slices = split(len(buckets), buckets, most_runs=len(buckets) // _ROWS_A_RUN)
    lines = encoded if order is None else encoded.take(order)
    runs: dict[str, list[Slice]] = {}
    for one in slices:
        runs.setdefault(one.bucket, []).append(one)
    for bucket, own in runs.items():
        pieces = [lines.rows(one.start, one.stop) for one in own]
        yield bucket, sum(one.stop - one.start for one in own), pieces[0] if len(pieces) == 1 else b"".join(pieces)
