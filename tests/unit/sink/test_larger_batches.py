"""Small batches are joined: no row is lost, moved or held for long, whatever their sizes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from partfile.sink.batches import MOST_BYTES, MOST_ROWS, larger_batches


def _batch(rows: int, first: int = 0, width: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64()), "s": ["x" * width] * rows})


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 20))
def test_rows_keep_their_order_and_are_joined_as_far_as_they_may(sizes: list[int], most_rows: int) -> None:
    """All rows come in order; a joined batch ends only where the next one would have been too much for it."""
    batches = [_batch(size, sum(sizes[:at])) for at, size in enumerate(sizes)]
    found = list(larger_batches(batches, most_rows))
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(sizes)))
    left = [size for size in sizes if size]
    for batch in found:
        rows = left.pop(0)
        while left and rows + left[0] <= most_rows:
            rows += left.pop(0)
        assert batch.num_rows == rows


def test_long_rows_are_not_joined_beyond_the_bytes() -> None:
    """Batches of long rows stay apart, so that joining takes no more memory than MOST_BYTES."""
    batches = [_batch(4, width=MOST_BYTES // 8) for _ in range(5)]
    assert [batch.num_rows for batch in larger_batches(batches)] == [4] * 5
    shorter = [_batch(4, width=MOST_BYTES // 10) for _ in range(5)]
    assert [batch.num_rows for batch in larger_batches(shorter)] == [8, 8, 4]


def test_a_large_batch_is_passed_on_uncopied() -> None:
    """What is large already is not copied."""
    large = _batch(MOST_ROWS + 1)
    (found,) = larger_batches([_batch(0), large, _batch(0)])
    assert found is large


def test_batches_of_two_schemas_stay_apart() -> None:
    """A schema that changes ends the batch before it."""
    other = pa.record_batch({"n": pa.array([1], pa.int32())})
    found = list(larger_batches([_batch(1), _batch(1), other, other, _batch(1)]))
    assert [(batch.num_rows, len(batch.schema)) for batch in found] == [(2, 2), (2, 1), (1, 2)]
