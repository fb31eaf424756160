"""Exponential backoff with jitter, up to a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from partfile.stores.paths import number_between

if TYPE_CHECKING:
    from collections.abc import Callable


_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 2000
_EXCUSES = 4
_WORTH_AN_EXCUSE_S = 0.5


class Backoff:
    """Exponential backoff with jitter: pauses double from 50 ms to 2 s, and half of each is random.

    Args:
        timeout_s: When to stop waiting, in seconds from now.
    """

    def __init__(self, timeout_s: float) -> None:
        self._ends_at_s = time.monotonic() + timeout_s
        self._pause_ms = _FIRST_PAUSE_MS
        self._excuses = _EXCUSES

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._ends_at_s - time.monotonic())

    def postpone(self, by_s: float) -> None:
        """Move the deadline, by as many seconds as were spent on something that does not count."""
        self._ends_at_s += by_s

    def excuse(self, by_s: float) -> None:
        """Postpone by what an attempt has taken that got on and failed in the end; four of them, so that all ends."""
        if by_s >= _WORTH_AN_EXCUSE_S and self._excuses > 0:
            self._excuses -= 1
            self.postpone(by_s)

    def pause(self) -> bool:
        """Wait for the next pause; False at once where the deadline comes before its end."""
        pause_s = number_between(self._pause_ms // 2, self._pause_ms) / 1000
        if pause_s >= self.left_s:
            return False
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        time.sleep(pause_s)
        return True


Result = TypeVar("Result")


class CallTimedOut(Exception):
    """The call had not returned at its deadline. It goes on in its thread, and may still be done."""


class _Job(Generic[Result]):
    """One call and what became of it."""

    def __init__(self, work: Callable[[], Result], on_late: Callable[[Result], object] | None) -> None:
        self._work = work
        self._on_late = on_late
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._abandoned = False
        self._result: Result
        self._error: BaseException | None = None

    def do(self) -> None:
        """Make the call, in a thread of the pool; what comes too late is handed to ``on_late``."""
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits.
            self._error = error
        with self._lock:
            self._finished.set()
            is_late = self._abandoned
        if is_late and self._error is None and self._on_late is not None:
            with suppress(Exception):
                self._on_late(self._result)

    def wait(self, timeout_s: float) -> Result:
        """Wait for the result, and give the call up at the deadline or when the wait is interrupted."""
        try:
            self._finished.wait(timeout_s)
        finally:
            with self._lock:
                self._abandoned = not self._finished.is_set()
        if self._abandoned:
            raise CallTimedOut
        if self._error is not None:
            raise self._error
        return self._result


class CallThreads:
    """Daemon threads that make calls for others. A thread whose call was given up serves again when that returns.

    Belongs to the process that made it: threads do not survive a fork.
    """

    def __init__(self) -> None:
        self._idle: deque[queue.SimpleQueue[_Job[Any]]] = deque()

    def run(
        self, work: Callable[[], Result], timeout_s: float, on_late: Callable[[Result], object] | None = None
    ) -> Result:
        """Return what ``work`` returns, or raise what it raises.

        Args:
            work: The call.
            timeout_s: How long to wait for it, in seconds.
            on_late: Gets the result of a call that returned after it was given up, to release what it holds.

        Raises:
            CallTimedOut: It has not returned in time.
        """
        job = _Job(work, on_late)
        self._thread().put(job)
        return job.wait(timeout_s)

    def _thread(self) -> queue.SimpleQueue[_Job[Any]]:
        with suppress(IndexError):
            return self._idle.pop()
        jobs: queue.SimpleQueue[_Job[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(jobs,), name="partfile-call", daemon=True).start()
        return jobs

    def _serve(self, jobs: queue.SimpleQueue[_Job[Any]]) -> None:
        while True:
            jobs.get().do()
            self._idle.append(jobs)
