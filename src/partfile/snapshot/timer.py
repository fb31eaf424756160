"""A timer on one daemon thread: calls back when it is time, by an injected clock."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger("partfile")

RETRY_MS = 10_000


def log_failure(error: Exception) -> None:
    """Log what a call of the timer has raised."""
    logger.error("a timer failed and tries again: %s", error, exc_info=error)


class Timer:
    """Calls ``tick`` when the time comes that was set last, one call at a time.

    A clock that is set back delays a call by no more than the wait that it was set for (R8).

    For a coordinator ``tick`` is its own, and its ``CoordinatorSettings.set_timer`` leads to ``set``.

    Args:
        tick: Does the work, on the timer's thread; returns when it wants to be called next, in milliseconds since
            epoch, or None if only ``set`` will tell.
        clock: The time, in milliseconds since 1970. It is read again at each ``set`` and after each wait.
        name: Of the thread.
        failed: Told what ``tick`` raises; must not raise. ``tick`` is called again after ``retry_ms``, until the
            timer is stopped.
        retry_ms: From an error to the next call.
    """

    def __init__(
        self,
        tick: Callable[[], int | None],
        clock: Callable[[], int],
        *,
        name: str = "partfile-timer",
        failed: Callable[[Exception], object] = log_failure,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._tick = tick
        self._clock = clock
        self._failed = failed
        self._retry_ms = retry_ms
        self._changed = threading.Condition()
        self._at_ms: int | None = None
        self._longest_ms: int | None = None
        """How far away the time was when it was set; None until the thread has seen it."""
        self._is_due = False
        """Whether to call without looking at the clock."""
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def set(self, at_ms: int) -> None:
        """Call at this time instead of the one that was set before; at once if it has passed."""
        with self._changed:
            self._at_ms, self._longest_ms = at_ms, None
            self._changed.notify_all()

    def stop(self) -> None:
        """Call no more. Waits for a call that is under way, unless this is that call; may be called twice.

        So do not call it with a lock that ``tick`` waits for.
        """
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                if not self._wait():
                    return
                self._set_earlier(self._tick())
            except Exception as error:  # noqa: BLE001 - the owner of the timer decides what it means
                self._failed(error)
                self._try_again()

    def _try_again(self) -> None:
        """Call again after a while: by the clock, or, if that is what fails, without it."""
        try:
            self._set_earlier(self._clock() + self._retry_ms)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            with self._changed:
                if not self._is_stopped:
                    self._changed.wait(self._retry_ms / 1000)
                self._is_due = True

    def _wait(self) -> bool:
        """Wait until it is time; False if the timer is stopped."""
        with self._changed:
            if self._is_due and not self._is_stopped:
                self._is_due, self._at_ms = False, None
                return True
            while not self._is_stopped:
                left_ms = None if self._at_ms is None else self._left_ms(self._at_ms)
                if left_ms is not None and left_ms <= 0:
                    self._at_ms = None
                    return True
                self._changed.wait(None if left_ms is None else left_ms / 1000)
            return False

    def _left_ms(self, at_ms: int) -> int:
        """How long to wait for a time, which moves with a clock that was set back."""
        now_ms = self._clock()
        if self._longest_ms is None:
            self._longest_ms = at_ms - now_ms
        elif at_ms - now_ms > self._longest_ms:
            back_s = (at_ms - now_ms - self._longest_ms) / 1000
            logger.warning("the clock was set back by %.3f s or more: what was due is done by the new time", back_s)
            self._at_ms = now_ms + self._longest_ms
            return self._longest_ms
        return at_ms - now_ms

    def _set_earlier(self, at_ms: int | None) -> None:
        """What was set during a call stays, unless the call wants the next one sooner: one too many is harmless."""
        with self._changed:
            if at_ms is not None and (self._at_ms is None or at_ms < self._at_ms):
                self._at_ms, self._longest_ms = at_ms, None
