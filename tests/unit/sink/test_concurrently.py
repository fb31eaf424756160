"""Doing one thing to several parts at a time: order, failures, and how many at once."""

from __future__ import annotations

import threading

import pytest

from partfile.sink.concurrently import for_each


@pytest.mark.parametrize("threads", [1, 4])
def test_results_come_in_order_and_every_item_is_tried(threads: int) -> None:
    """A failure is raised once the others are through, so that none of them stays open because of it."""
    done: list[int] = []

    def work(item: int) -> int:
        done.append(item)
        if item in {2, 4}:
            raise ValueError(str(item))
        return item * item

    assert for_each(work, [1, 3, 5], threads, "test") == [1, 9, 25]
    with pytest.raises(ValueError, match="2"):
        for_each(work, [1, 2, 3, 4, 5], threads, "test")
    assert sorted(done) == [1, 1, 2, 3, 3, 4, 5, 5]


def test_one_thread_is_the_callers() -> None:
    """Where nothing is gained by it, nothing runs elsewhere."""
    assert for_each(lambda _: threading.current_thread(), [1, 2], 1, "test") == [threading.current_thread()] * 2


def test_as_many_as_told_run_at_the_same_time() -> None:
    """Four that wait for each other all come through, and no thread is left afterwards."""
    barrier, before = threading.Barrier(4), threading.active_count()
    assert for_each(lambda item: barrier.wait(10) >= 0 and item, [1, 2, 3, 4], 4, "test") == [1, 2, 3, 4]
    assert threading.active_count() == before
