"""Waiting for something to change: pauses that grow, with chance, up to a deadline."""

from __future__ import annotations

import time

from partfile.filesystems.tokens import number_between

_FIRST_PAUSE_MS = 50
_LONGEST_PAUSE_MS = 2000
_EXCUSES = 4
_WORTH_AN_EXCUSE_S = 0.5


class Backoff:
    """Pauses that double from 50 ms to 2 s; half of each is chance, so that many who wait do not ask at once.

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
