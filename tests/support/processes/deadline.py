"""Waiting for what must come to pass, so long that a machine under load is no failure."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


PATIENCE_S = 240.0
"""Longer than any load makes a machine wait; what is broken fails only after that long."""
_PAUSE_S = 0.02


def wait_until(
    holds: Callable[[], object], what: str = "it does not come to pass", timeout_s: float = PATIENCE_S
) -> None:
    """Wait until something holds.

    Args:
        holds: Asked again and again.
        what: What the failure says.
        timeout_s: How long to wait, in seconds.

    Raises:
        AssertionError: It has not held until the deadline.
    """
    ends_at_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < ends_at_s, what
        time.sleep(_PAUSE_S)


def ended(child: int, timeout_s: float = PATIENCE_S) -> int:
    """Wait for the end of a forked process; returns its status. One that hangs is killed.

    Args:
        child: Its id.
        timeout_s: How long to wait, in seconds.
    """
    ends_at_s = time.monotonic() + timeout_s
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > ends_at_s:
            os.kill(child, signal.SIGKILL)
            done = os.waitpid(child, 0)
            break
        time.sleep(_PAUSE_S)
    return done[1]
