"""Which side objects of a stage are merged: few stay, little is written again, little is held in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.stores.s3.stream import merged_count

if TYPE_CHECKING:
    from collections.abc import Sequence

KIB, MIB = 1 << 10, 1 << 20
SIZES = st.sampled_from([1, 100, 5 * KIB, 60 * KIB, MIB, 3 * MIB, 5 * MIB, 8 * MIB])
LEAST_LARGE = 4 * MIB


def grown(persists: Sequence[int]) -> tuple[list[int], int, int]:
    """The sizes of the side objects after these persists, the bytes written, and the most that was read at once."""
    sides: list[int] = []
    written = most_read = 0
    for size in persists:
        count = merged_count(sides, size)
        assert 0 <= count <= len(sides)
        merged = sides[len(sides) - count :]
        most_read = max(most_read, sum(merged))
        sides[len(sides) - count :] = [sum(merged) + size]
        written += sides[-1]
    assert sum(sides) == sum(persists)
    return sides, written, most_read


@given(st.lists(SIZES, max_size=300))
def test_whatever_is_persisted_few_objects_stay_and_little_is_read(persists: list[int]) -> None:
    """Seven of each size below the large ones; and large ones, of which each has 4 MiB."""
    sides, _, most_read = grown(persists)
    large = sum(size >= LEAST_LARGE for size in sides)
    assert large <= sum(persists) // LEAST_LARGE
    assert len(sides) <= 5 * 7 + large
    assert most_read <= 64 * MIB


@pytest.mark.parametrize("size", [1, 300, 10 * KIB, 200 * KIB, 2 * MIB])
def test_a_stage_of_equal_persists(size: int) -> None:
    """Each byte is written once a size that its object goes through, and a handle has some dozens of names."""
    persists = [size] * min(20_000, 256 * MIB // size)
    sides, written, most_read = grown(persists)
    total = sum(persists)
    steps = 1 + math.ceil(math.log(max(total, LEAST_LARGE) / size, 8))
    # Objects below 4 KiB are all of one size.
    assert written <= steps * total + 4 * KIB * len(persists)
    assert len(sides) <= 5 * 7 + total // LEAST_LARGE
    assert most_read < 12 * MIB


def test_the_objects_of_a_stage_of_many_gib_become_larger() -> None:
    """So that a handle grows with the logarithm of a stage, as far as memory lets it."""
    small, _, _ = grown([MIB] * 512)
    large, _, most_read = grown([MIB] * 4096)
    assert len(small) <= 150
    assert len(large) - len(small) <= 3 * len(small)
    assert max(large) > 2 * max(small)
    assert most_read <= 96 * MIB


def test_what_is_large_is_written_once() -> None:
    """Nothing is read for batches that are large by themselves."""
    _, written, most_read = grown([5 * MIB] * 100)
    assert (written, most_read) == (500 * MIB, 0)


@pytest.mark.parametrize(("before", "large"), [(100, MIB), (100, 5 * MIB), (3 * MIB, 5 * MIB)])
def test_small_ones_before_a_larger_one_do_not_stay(before: int, large: int) -> None:
    """Else each large batch would leave the small ones before it behind for good."""
    sides, _, _ = grown([before, large] * 3)
    assert len(sides) == 3
