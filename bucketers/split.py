"""Which rows of a batch belong to which bucket, and in which order they stand together."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import is_safe_path
from partfile.filesystems.errors import ConfigError


class Slice(NamedTuple):
    """A run of rows of one bucket."""

    bucket: str
    start: int
    stop: int


class Split(NamedTuple):
    """Where the rows of each bucket are."""

    order: pa.Array[Any] | None
    """The rows to take, in this order, before the slices hold; None if they may stay where they are."""
    slices: list[Slice]


def split(rows: int, buckets: pa.DictionaryArray[Any, Any], *, most_runs: int = 0) -> Split:
    """Say how the rows of each bucket come together, in their order: one stable sort of integer codes.

    No row is moved here, for the caller knows what is cheapest to move: rows, or the lines they have become.

    Args:
        rows: How many rows there are.
        buckets: One bucket a row, as ``Bucketer.bucket_of`` returns them.
        most_runs: Up to so many runs the rows are left where they are, and a bucket may come in several slices, in
            order: cheaper for who can gather them otherwise.

    Raises:
        ConfigError: The buckets are not what a bucketer must return; rows would be lost or land outside the base.
    """
    check_buckets(rows, buckets)
    if rows == 0:
        return Split(None, [])
    codes, names = buckets.indices, buckets.dictionary.to_pylist()
    encoded = pc.run_end_encode(codes)
    runs = len(encoded.values)
    order: Any = None
    # More runs than buckets: some bucket's rows are apart. Fewer: look whether one comes twice.
    if runs > most_runs and (runs > len(names) or len(encoded.values.unique()) < runs):
        order = pc.sort_indices(codes)
        encoded = pc.run_end_encode(codes.take(order))
    ends = encoded.run_ends.to_pylist()
    slices = zip(encoded.values.to_pylist(), [0, *ends[:-1]], ends, strict=True)
    return Split(order, [Slice(str(names[code]), start, stop) for code, start, stop in slices])


def check_buckets(rows: int, buckets: Any) -> None:
    """Refuse what no bucketer may return; those of users' own are asked, not believed.

    Args:
        rows: How many rows it was asked about.
        buckets: Its answer.

    Raises:
        ConfigError: Rows would be lost, or land outside the base.
    """
    problem = ""
    if not isinstance(buckets, pa.DictionaryArray) or not pa.types.is_string(buckets.type.value_type):
        problem = f"is no dictionary array of strings but {getattr(buckets, 'type', type(buckets))}"
    elif len(buckets) != rows:
        problem = f"names {len(buckets)} buckets for {rows} rows"
    elif buckets.indices.null_count or buckets.dictionary.null_count:
        problem = "has nulls"
    else:
        unsafe = [name for name in buckets.dictionary.to_pylist() if not is_safe_path(str(name))]
        problem = f"names the bucket {str(unsafe[0])[:60]!r}, which is not safe as a path" if unsafe else ""
    if problem:
        raise ConfigError(f"what the bucketer returned {problem}", hint="See Bucketer.bucket_of.")
