"""Small moves on columns of text that the encoders share.

Text is ``large_string`` from the first cast on: 64-bit offsets never run over at 2 GiB, cost nothing measurable, and
are the row offsets that ``EncodedRows`` wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXT = pa.large_string()

kernels: Any = pyarrow.compute  # The stubs miss some kernels, and operands that every kernel takes.
# From buffers: pyarrow loads pandas for the first scalar that is made of a value, which doubles the time of an import.
_EMPTY = pa.Array.from_buffers(TEXT, 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
_BLOCK_BYTES = 1 << 16


def literal(text: str) -> Any:
    """Make a constant that joins with text columns."""
    return pa.scalar(text, TEXT)


def join(parts: Sequence[Any], *, null: str | None = None) -> Any:
    """Join literals and text columns row by row; a null becomes ``null``, or the whole row null where that is None."""
    if null is None:
        return kernels.binary_join_element_wise(*parts, _EMPTY)
    return kernels.binary_join_element_wise(*parts, _EMPTY, null_handling="replace", null_replacement=null)


def replace_where(text: Any, mask: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to the rows where ``mask`` is true (null counts as false), and to no other row."""
    mask = kernels.fill_null(mask, fill_value=False)
    return kernels.replace_with_mask(text, mask, change(text.filter(mask)))


def is_any(mask: Any) -> bool:
    """Tell whether a mask is true anywhere."""
    return bool(kernels.any(mask).as_py())


def used_bytes(text: Any) -> pa.Buffer:
    """The bytes that the rows of a large_string or large_binary column lie in, without a copy, slices minded."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or data is None:
        return pa.py_buffer(b"")
    places = memoryview(offsets).cast("q")
    first, last = places[text.offset], places[text.offset + len(text)]
    used: pa.Buffer = data.slice(first, last - first)
    return used


def rows_with(text: Any, marks: bytes, *, below: int = 0) -> Any:
    """Mask of the rows of a large_string column that hold one of the bytes ``marks`` or one less than ``below``.

    Reads the column's bytes at memory speed, in blocks small enough that no page is mapped for a scratch array.

    Returns:
        A boolean array without nulls, or None if no row does. What lies under a null may count.
    """
    data = np.frombuffer(used_bytes(text), np.uint8)
    found = []
    for start in range(0, data.size, _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        marked = block < below
        for mark in marks:
            marked |= block == mark
        places = np.flatnonzero(marked)
        if places.size:
            found.append(places + start)
    if not found:
        return None
    offsets = np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text)]
    mask = np.zeros(len(text), np.bool_)
    # The last row that begins at or before a byte holds it: rows without bytes begin where the next one does.
    mask[np.searchsorted(offsets, np.concatenate(found) + offsets[0], side="right") - 1] = True
    return pa.array(mask)


def replace(text: Any, old: str, new: str) -> Any:
    """Replace every ``old`` in each row."""
    return kernels.replace_substring(text, pattern=old, replacement=new)


def nulls_of(column: Any, text: Any) -> Any:
    """Make ``text`` null where ``column`` is."""
    return text if column.null_count == 0 else kernels.if_else(column.is_valid(), text, pa.scalar(None, TEXT))
