"""Whether processes that nobody here waits for have ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def gone(process_ids: Iterable[int]) -> bool:
    """Whether none of these processes runs any more; one that has ended and was not waited for is gone."""
    states = [Path(f"/proc/{number}/stat") for number in process_ids]
    return all(not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z" for state in states)


def wait_until_gone(process_ids: Iterable[int], timeout_s: float = 10.0) -> None:
    """Wait until all of them have ended.

    Raises:
        AssertionError: Some had not; they have been killed, so that nothing is left behind.
    """
    deadline = time.monotonic() + timeout_s
    left = [number for number in process_ids if not gone([number])]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [number for number in left if not gone([number])]
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left, f"the processes {left} did not end by themselves"
