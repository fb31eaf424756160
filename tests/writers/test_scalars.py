"""Finding the rows that hold marked bytes: compared with a look at each row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.writers.scalars import TEXT, rows_with

BLOCK = 1 << 16
TEXTS = st.lists(st.one_of(st.none(), st.text('ab"\\\n\x1f\x20é', max_size=5)))


def expected(values: list[str | None], below: int) -> list[bool]:
    return [value is not None and any(ord(c) < below or c in '"\\' for c in value) for value in values]


@given(values=TEXTS, start=st.integers(0, 3), below=st.sampled_from([0, 0x20]))
def test_a_row_is_found_if_it_holds_a_mark(values: list[str | None], start: int, below: int) -> None:
    """Slices, nulls and empty rows included."""
    column = pa.array(values, TEXT).slice(start)
    mask = rows_with(column, b'\\"', below=below)
    wanted = expected(values[start:], below)
    assert (wanted if any(wanted) else None) == (None if mask is None else mask.to_pylist())


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK])
def test_marks_at_the_edges_of_blocks_are_found(place: int) -> None:
    """The last byte of a block and the first of the next, after a row without bytes."""
    values = ["", "x" * place + '"', "", "y" * (3 * BLOCK)]
    assert rows_with(pa.array(values, TEXT), b'"').to_pylist() == [False, True, False, False]


def test_what_lies_under_a_null_does_no_harm() -> None:
    """It may be found, for a null stays null."""
    offsets = pa.py_buffer(b"".join(place.to_bytes(8, "little") for place in (0, 1, 2)))
    valid = pa.py_buffer(b"\x02")
    column = pa.LargeStringArray.from_buffers(2, offsets, pa.py_buffer(b'"x'), null_bitmap=valid)
    assert column.to_pylist() == [None, "x"]
    assert rows_with(column, b'"').to_pylist() == [True, False]
