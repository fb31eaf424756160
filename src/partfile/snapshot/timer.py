"""A timer on one daemon thread: calls back when it is time, by an injected clock."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger("partfile")

RETRY_S = 10.0
"""From an error to the next call."""
_AT_ONCE_MS = 0
"""A time that has passed by every clock."""


class Timer:
    """Calls ``tick`` when the time comes that was set last, one call at a time.

    A clock that is set back delays a call by no more than the wait that it was set for (R8).

    Two objects have one: a Spark stream between its batches, and a ``CheckpointCoordinator`` that runs by itself. For
    the latter ``tick`` is its own, and its ``CoordinatorSettings.set_timer`` leads to ``set``.

    Args:
        tick: Does the work, on the timer's thread; returns when it wants to be called next, in milliseconds since
            1970, or None if only ``set`` will tell. If it raises, the error is logged and it is called again later.
        clock: The time, in milliseconds since 1970. It is read again at each ``set`` and after each wait. It may raise
            as ``tick`` may.
        name: Of the thread.
    """

    def __init__(
        self, tick: Callable[[], int | None], clock: Callable[[], int], *, name: str = "partfile-timer"
    ) -> None:
        self._tick = tick
        self._clock = clock
        self._changed = threading.Condition()
        self._at_ms: int | None = None
        self._longest_ms: int | None = None
        """How far away the time was when it was set; None until the thread has seen it."""
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
            except Exception:
                logger.exception("a timer failed, and tries again in %g s", RETRY_S)
                self._pause()
                self._set_earlier(_AT_ONCE_MS)

    def _pause(self) -> None:
        """Wait for the next try, without the clock: it may be what fails."""
        with self._changed:
            if not self._is_stopped:
                self._changed.wait(RETRY_S)

    def _wait(self) -> bool:
        """Wait until it is time; False if the timer is stopped."""
        with self._changed:
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
