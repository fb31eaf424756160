"""Which side objects of a stage become one with what comes after them. Pure.

S3 has no appending, so each persist makes one more object. Few that are alike in size are merged into one of the next
size, so that each byte is written again once a size, and there are only a few objects of each size. Those of a few MiB
stay as they are; how many MiB that is grows with the stage.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIKE = 8
"""So many objects of one size become one."""
_SMALLEST_BITS = 12
"""All objects below 4 KiB count as of one size, those of up to eight times that as of the next one, and so on."""
_BITS_A_SIZE = 3
_LARGE_BYTES = 4 << 20
"""Objects of so many bytes stay as they are, in a stage of up to 512 MiB; twice as many with each doubling of it."""
_SMALL_STAGE_BYTES = 512 << 20
_MOST_DOUBLINGS = 3
"""Since who merges holds all of it in memory."""


def merged_count(sizes_bytes: Sequence[int], new_bytes: int) -> int:
    """How many of the last side objects go into one object with what is new.

    Args:
        sizes_bytes: Of the side objects, in their order.
        new_bytes: Of what comes after them.

    Returns:
        The number of objects to read: at most 12 MiB together, and up to eight times that in a stage of GiBs.
    """
    large = _large_bytes(sum(sizes_bytes) + new_bytes)
    last, held = list[int](), 0
    for size in reversed(sizes_bytes):
        if size >= large or held >= 2 * large:
            break
        last.append(size)
        held += size
    if new_bytes >= large or held >= 2 * large:
        return len(last)
    return _alike_count(last, new_bytes)


def _alike_count(last: Sequence[int], new_bytes: int) -> int:
    """How many of these, of which the first one is the newest, become one with what is new.

    Smaller ones do, so that what stays is in the order of its sizes; and those of the same size if they are enough.
    """
    taken, merged = 0, new_bytes
    while True:
        size = _size(merged)
        smaller = _leading(last[taken:], size - 1)
        alike = _leading(last[taken:], size)
        more = alike if alike - smaller + 1 >= _ALIKE else smaller
        if not more:
            return taken
        merged += sum(last[taken : taken + more])
        taken += more


def _leading(sizes_bytes: Sequence[int], size: int) -> int:
    """How many of the first ones are of this size or smaller."""
    return sum(1 for _ in takewhile(lambda size_bytes: _size(size_bytes) <= size, sizes_bytes))


def _large_bytes(stage_bytes: int) -> int:
    doublings = (stage_bytes // _SMALL_STAGE_BYTES).bit_length()
    return _LARGE_BYTES << min(doublings, _MOST_DOUBLINGS)


def _size(size_bytes: int) -> int:
    bits = max(size_bytes.bit_length() - _SMALLEST_BITS, 0)
    return -(-bits // _BITS_A_SIZE)
