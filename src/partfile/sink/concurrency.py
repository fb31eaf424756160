"""Doing one thing to several parts at a time, where the store makes each of them wait; and what an exit waits for."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

from partfile.errors import OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Item = TypeVar("Item")
Result = TypeVar("Result")

logger = logging.getLogger("partfile")

AT_EXIT: set[Callable[[], None]] = set()
"""What the interpreter calls before it shuts its thread pools down; not in a child that was forked."""


def _run_at_exit() -> None:
    for wait in list(AT_EXIT):
        wait()


# A hook of atexit would come too late: by then no thread pool takes work. This one has no public name. The pools are
# imported above: what is registered after their hook runs before it. While Python exits none can be registered.
threading._register_atexit(_run_at_exit)  # type: ignore[attr-defined]  # noqa: SLF001
# A child of a fork asks nothing over the sockets of its parent.
os.register_at_fork(after_in_child=AT_EXIT.clear)


class CircuitBreaker:
    """Stops further calls once the store has left ``most`` unanswered, so that parts do not each wait for the deadline.

    Args:
        most: Answers that may be missing, at least 1: the number of calls under way at the same time.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether so many answers are missing."""
        return self._left <= 0

    def note(self, error: Exception) -> None:
        """Count a failure, if it is a missing answer."""
        if isinstance(error, OutcomeUnknown):
            with self._lock:
                self._left -= 1


def for_each(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    threads: int,
    name: str,
    *,
    circuit_breaker: CircuitBreaker | None = None,
) -> list[Result]:
    """Return ``work`` of each item, in order.

    No thread outlives the call, so that a process may fork between two of them (R13).

    Args:
        work: What to do; it touches nothing but its item.
        items: What to do it to.
        threads: How many at the same time, at least 1; with 1 it is done in the calling thread.
        name: Of the threads.
        circuit_breaker: Of this call alone. Once it is over nothing more is begun; None ends with the first failure.

    Raises:
        Exception: What ``work`` raised for the first item that failed, once those that had begun are through.
    """
    failures: dict[int, Exception] = {}

    def attempt(place: int, item: Item) -> Result | None:
        if failures if circuit_breaker is None else circuit_breaker.is_over:
            return None
        try:
            return work(item)
        except Exception as error:  # noqa: BLE001 - raised below, once the other items are through
            failures[place] = error
            if circuit_breaker is not None:
                circuit_breaker.note(error)
            return None

    if threads == 1 or len(items) <= 1:
        done = [attempt(place, item) for place, item in enumerate(items)]
    else:
        with ThreadPoolExecutor(min(threads, len(items)), name) as pool:
            done = list(pool.map(attempt, range(len(items)), items))
    if failures:
        raise failures[min(failures)]
    # Nothing was left out, since nothing failed.
    return cast("list[Result]", done)


def discard_each(
    discard: Callable[[Item], object], items: Sequence[Item], threads: int, shown: Callable[[Item], str]
) -> None:
    """Delete what is not needed any more; what cannot be deleted is left to the cleaner, with a line in the log.

    Once the store has left as many calls unanswered as there are threads, nothing more is tried.

    Args:
        discard: Deletes one.
        items: What is not needed.
        threads: How many at the same time, at least 1.
        shown: What one is called in the log.
    """
    circuit_breaker = CircuitBreaker(threads)

    def is_left(item: Item) -> bool:
        if circuit_breaker.is_over:
            return True
        try:
            discard(item)
        except StoreError as error:
            circuit_breaker.note(error)
            logger.warning("%s is not needed any more, but cannot be deleted: %s", shown(item), error)
        return False

    left = sum(for_each(is_left, items, threads, "partfile-discard"))
    if left:
        logger.warning("%d more were not tried, because storage does not answer", left)


MOST_WAIT_MS = 600_000
_MOST_DOUBLINGS = 20
"""Beyond these every wait is the longest, so that many failures make no number without end."""


def wait_ms(failures: int, first_ms: int) -> int:
    """The wait after so many failures in a row, in milliseconds.

    Args:
        failures: At least 1.
        first_ms: The wait after the first; if it is longer than ten minutes, so is each.
    """
    return min(first_ms << min(failures - 1, _MOST_DOUBLINGS), max(first_ms, MOST_WAIT_MS))
