"""Items are written in order by one thread beside the one that fetches them, and nothing goes on after a failure."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from partfile.sink.batches import write_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_items_are_written_in_order_while_the_next_ones_are_fetched() -> None:
    """A write that waits for the fetch of a later item comes to its end: both go on at the same time."""
    third_is_fetched, written = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        for number in range(6):
            if number == 2:
                third_is_fetched.set()
            yield number

    def write(number: int) -> None:
        assert third_is_fetched.wait(10), "nothing is fetched while this is written"
        written.append(number)

    write_ahead(items(), write)
    assert written == list(range(6))


def test_no_more_than_a_few_items_are_fetched_and_not_written() -> None:
    """The iteration never runs away from the writing."""
    fetched, written, most = 0, 0, 0

    def items() -> Iterator[int]:
        nonlocal fetched, most
        for number in range(50):
            fetched += 1
            most = max(most, fetched - written)
            yield number

    def write(_number: int) -> None:
        nonlocal written
        written += 1

    write_ahead(items(), write, most_waiting=2)
    assert written == 50
    # Two that wait, and the one that is fetched beside them.
    assert most <= 3


def test_nothing_is_written_after_a_failure() -> None:
    """The failure of one write is raised, and the items that were fetched already are not written any more."""
    written = list[int]()

    def write(number: int) -> None:
        if number == 1:
            raise OSError("the disk is gone")
        written.append(number)

    with pytest.raises(OSError, match="the disk is gone"):
        write_ahead(range(100), write)
    assert written == [0]


def test_a_failing_fetch_waits_for_the_write_that_is_under_way() -> None:
    """When it raises, nothing is being written any more, and no thread is left that a fork would lose."""
    before, is_writing, goes_on, written = threading.active_count(), threading.Event(), threading.Event(), list[int]()

    def items() -> Iterator[int]:
        yield 0
        assert is_writing.wait(10)
        yield 1
        threading.Timer(0.05, goes_on.set).start()
        raise ValueError("the rows have ended too early")

    def write(number: int) -> None:
        is_writing.set()
        assert goes_on.wait(10)
        written.append(number)

    with pytest.raises(ValueError, match="ended too early"):
        write_ahead(items(), write)
    assert written == [0]
    assert threading.active_count() == before


def test_a_fetch_that_fails_because_a_write_has_does_not_hide_why() -> None:
    """The task's input may break off when its output does: what is told is what came first."""
    has_failed = threading.Event()

    def fetched() -> Iterator[int]:
        yield 1
        assert has_failed.wait(10)
        raise EOFError("nobody sends any more")

    def fail(_item: int) -> None:
        has_failed.set()
        raise OSError("no space is left")

    with pytest.raises(OSError, match="no space is left") as told:
        write_ahead(fetched(), fail)
    assert isinstance(told.value.__cause__, EOFError)
