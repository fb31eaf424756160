"""Every row of docs/FAULTS.md is held by a marked test or excused with a reason, and no mark names another."""

from __future__ import annotations

import ast
import re

from fault_rows import PAGE, ROOT, excused_rows, held_rows

OF_THE_COMMAND_LINE = {f"H{number}" for number in range(4, 10)}
"""Nobody can hold these where there is no command line."""


def marked() -> set[str]:
    """The ids of every fault mark of the tests."""
    return {
        argument.value
        for path in (ROOT / "tests").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.fault")
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_row_is_held_or_excused_and_no_other_is_marked() -> None:
    """A row is marked on a test, or it has a reason; a mark with an id that the page does not have is a slip."""
    rows, excused = held_rows().keys(), excused_rows().keys()
    expected = rows if (ROOT / "cli").is_dir() else rows - OF_THE_COMMAND_LINE
    assert expected - marked() == set()
    assert marked() - rows == set()
    assert rows & excused == set()


def test_every_family_is_whole() -> None:
    """The numbers of each family go up to its last one without a gap, so that no row can be forgotten."""
    found = [*held_rows(), *excused_rows()]
    assert len(found) == len(set(found)) > 90
    for family, last in {"K": 18, "S": 18, "N": 11, "D": 18, "M": 8, "T": 9, "H": 9}.items():
        numbers = {int(re.sub(r"\D", "", row)) for row in found if row.startswith(family)}
        assert numbers == set(range(1, last + 1)), family


def test_every_line_of_the_page_is_a_row() -> None:
    """None is lost by the way it is written."""
    lines = re.findall(r"^\| [A-Z]\d.*$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(lines) == len(held_rows()) + len(excused_rows())
