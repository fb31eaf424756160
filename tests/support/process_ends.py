"""Whether processes that nobody here waits for have ended."""

from __future__ import annotations

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
    """Wait until all of them have ended."""
    numbers = list(process_ids)
    deadline = time.monotonic() + timeout_s
    while not gone(numbers):
        assert time.monotonic() < deadline, f"of the processes {numbers} some still run"
        time.sleep(0.05)
