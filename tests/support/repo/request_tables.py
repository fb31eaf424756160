"""The tables of docs/HDFS.md and docs/S3.md that say how often a server is asked, for the tests that count it."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).parents[3] / "docs"
_ROW = re.compile(r"^\| (\S.*?) \| (\d.*?|at most \d.*?) \| .*\|$", re.MULTILINE)


def promised_requests(page: str, heading: str) -> dict[str, str]:
    """What the second column says, by the first one, in the table below a heading of a page."""
    _, found, rest = (_DOCS / page).read_text().partition(f"\n## {heading}\n")
    assert found, f"{page} has no section {heading!r}"
    return dict(_ROW.findall(rest.partition("\n## ")[0]))
