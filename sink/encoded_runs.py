"""Encoded rows of one batch, put together by bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.bucketers.split import Slice
    from partfile.writers.port import EncodedRows


def encoded_by_bucket(encoded: EncodedRows, slices: Sequence[Slice]) -> Iterator[tuple[str, int, bytes | memoryview]]:
    """Bucket, number of rows and bytes, once a bucket, from slices of which several may be of one bucket."""
    runs: dict[str, list[Slice]] = {}
    for one in slices:
        runs.setdefault(one.bucket, []).append(one)
    for bucket, own in runs.items():
        pieces = [encoded.rows(one.start, one.stop) for one in own]
        yield bucket, sum(one.stop - one.start for one in own), pieces[0] if len(pieces) == 1 else b"".join(pieces)
