"""The only place that reads a clock (R8); everything else is given one."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


def system_clock_ms() -> int:
    """The wall clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def stopwatch_ms() -> float:
    """A monotonic reading for durations, in milliseconds."""
    return time.perf_counter() * 1000
