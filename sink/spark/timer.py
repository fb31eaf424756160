"""The idle timer: closes idle and aged parts between batches, because an idle stream calls nobody."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("partfile")


class IdleTimer:
    """Calls ``tick`` every ``interval_s`` seconds on a daemon thread until it is stopped.

    Args:
        tick: Does the work; returns False to end the timer. Must not raise.
        interval_s: Seconds between two calls.
    """

    def __init__(self, tick: Callable[[], bool], interval_s: float) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="partfile-idle-timer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop calling; a call that is under way ends by itself."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            if not self._tick():
                return
