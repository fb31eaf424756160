"""Doing one thing to several parts at a time, where the store makes each of them wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")
Result = TypeVar("Result")


def for_each(work: Callable[[Item], Result], items: Sequence[Item], threads: int, name: str) -> list[Result]:
    """Return ``work`` of each item, in order.

    No thread outlives the call, so that a process may fork between two of them (S13).

    Args:
        work: What to do; it touches nothing but its item.
        items: What to do it to.
        threads: How many at the same time, at least 1; with 1 it is done in the calling thread.
        name: Of the threads.

    Raises:
        Exception: What ``work`` raised for the first item that failed, once the others are through.
    """
    if threads == 1 or len(items) <= 1:
        done = [_attempt(work, item) for item in items]
    else:
        with ThreadPoolExecutor(min(threads, len(items)), name) as pool:
            done = list(pool.map(partial(_attempt, work), items))
    for one in done:
        if isinstance(one, _Failed):
            raise one.error
    return [one for one in done if not isinstance(one, _Failed)]


class _Failed(NamedTuple):
    """What an item failed with."""

    error: Exception


def _attempt(work: Callable[[Item], Result], item: Item) -> Result | _Failed:
    try:
        return work(item)
    except Exception as error:  # noqa: BLE001 - raised by the caller once the other items are through
        return _Failed(error)
