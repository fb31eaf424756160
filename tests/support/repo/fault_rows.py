"""The rows of docs/FAULTS.md, and which tests are marked with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest


ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "FAULTS.md"
_ROW = re.compile(r"^\| ([KFNDMTH]\d+b?) \| (\S.*?) \|(?: (\S.*?) \|)?$", re.MULTILINE)
_SHOWN = 4


def held_rows() -> dict[str, str]:
    """What goes wrong, by the id of each row that tests hold."""
    page, _, _ = PAGE.read_text().partition("\n## Excused\n")
    return {row: fault for row, fault, _ in _ROW.findall(page)}


def excused_rows() -> dict[str, str]:
    """Why not, by the id of each row that does not concern partfile."""
    _, _, page = PAGE.read_text().partition("\n## Excused\n")
    return {row: reason for row, reason, _ in _ROW.findall(page)}


def report(tests: Iterable[pytest.Item]) -> Iterator[str]:
    """A line for each row: the functions that hold it, or why none has to."""
    holders: dict[str, dict[str, None]] = {row: {} for row in held_rows()}
    for test in tests:
        for mark in test.iter_markers("fault"):
            for row in mark.args:
                holders.setdefault(str(row), {})[test.nodeid.partition("[")[0]] = None
    for row, functions in holders.items():
        names = list(functions)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield f"{row}  {held_rows().get(row, 'unknown')}: {', '.join(names[:_SHOWN]) or 'HELD BY NO TEST'}{more}"
    for row, reason in excused_rows().items():
        yield f"{row}  not ours: {reason}"
    yield f"{len(holders) + len(excused_rows())} rows"
