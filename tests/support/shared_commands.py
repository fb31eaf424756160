"""What the command line says of a dead sink whose buckets share a stage, and what it does about it, on any store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from command_line import told, told_json, told_lines
from shared_streams import BUCKETS, counted

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

HELD = 2 * BUCKETS
"""Rows that the checkpoint of a dead sink vouches for."""


def check_commands(place: tuple[Any, ...], rows: Callable[[], Counter[tuple[str, int]]]) -> None:
    """Status, list, verify and cat before; recover; verify after.

    Args:
        place: The words that name the base of a sink that ``die_sharing`` has left, and open it.
        rows: How often each row is in a finished file of each bucket.
    """
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert (sink["parts"]["stage"]["shared"], sink["parts"]["stage"]["buckets"]) == (1, BUCKETS)
    (listed,) = told_lines("list", *place, "--state", "stage")
    assert (listed["buckets"], listed["rows"]) == (BUCKETS, HELD)
    assert told_json("verify", *place)["findings"] == []
    printed = [json.loads(line)["bucket"] for line in told("cat", place[0], listed["path"], *place[1:]).splitlines()]
    assert sorted(printed) == sorted(f"k={row % BUCKETS}" for row in range(HELD))
    assert f"{BUCKETS} buckets or more share" in told("recover", *place, code=1)
    assert f"{BUCKETS} parts published" in told("recover", *place, "--apply", "--fence")
    assert rows() == counted(0, HELD)
    assert told_json("verify", *place)["findings"] == []
