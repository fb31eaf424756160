"""Fetching rows and writing them at the same time: two threads, and a few batches between them."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

Item = TypeVar("Item")

MOST_WAITING = 2
"""Batches that may be fetched and not written; more would be memory without speed."""


def write_ahead(items: Iterable[Item], write: Callable[[Item], None], most_waiting: int = MOST_WAITING) -> None:
    """Write each item, in order, in a thread of its own while the caller's thread fetches the next ones.

    When the call returns or raises, nothing is being written any more and no thread is left (S13). After a failure
    nothing more is written.

    Args:
        items: What to write; only the calling thread asks for the next one.
        write: Writes one; only one thread calls it.
        most_waiting: Items that are fetched before the oldest of them is written, at least 1.

    Raises:
        BaseException: What ``write`` raised first, or the iteration; a failure of the iteration after one of ``write``
            is its cause.
    """
    waiting: deque[Future[None]] = deque()
    failures: list[BaseException] = []
    has_failed = threading.Event()

    def attempt(item: Item) -> None:
        if has_failed.is_set():
            return
        try:
            write(item)
        except BaseException as failure:
            failures.append(failure)
            has_failed.set()
            raise

    pool = ThreadPoolExecutor(1, "partfile-write")
    try:
        for item in items:
            if len(waiting) == most_waiting:
                waiting.popleft().result()
            waiting.append(pool.submit(attempt, item))
        while waiting:
            waiting.popleft().result()
    except Exception as error:
        # An input that ends because the task does must not hide why it does.
        if failures and error is not failures[0]:
            raise failures[0] from error
        raise
    finally:
        has_failed.set()
        pool.shutdown(wait=True, cancel_futures=True)
