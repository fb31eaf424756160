"""How long to wait before something that has failed is tried again: twice as long each time, up to ten minutes."""

from __future__ import annotations

MOST_WAIT_MS = 600_000
_MOST_DOUBLINGS = 20
"""Beyond these every wait is the longest; lest a number of failures makes a number without end."""


def wait_ms(failures: int, first_ms: int) -> int:
    """The wait after so many failures in a row, in milliseconds.

    Args:
        failures: At least 1.
        first_ms: The wait after the first; if it is longer than ten minutes, so is each.
    """
    return min(first_ms << min(failures - 1, _MOST_DOUBLINGS), max(first_ms, MOST_WAIT_MS))
