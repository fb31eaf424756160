"""The page of the snapshot core's items and the marks of the tests say the same."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SNAPSHOT_ITEMS.md").read_text()


def marked(source: str) -> set[str]:
    """The ids of every item mark in a source file."""
    return {
        argument.value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("mark.item")
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_item_of_a_test_is_explained_once() -> None:
    """Each id that a test is marked with has one line that says what holds, and no line is about another."""
    used = set().union(*(marked(path.read_text()) for path in (ROOT / "tests").rglob("*.py")))
    explained = Counter(re.findall(r"^\| ([A-Z]{2}-\d\d) \| \S.*\|$", PAGE, flags=re.MULTILINE))
    assert len(used) > 90
    assert sorted(explained) == sorted(used)
    assert set(explained.values()) == {1}


def test_every_family_is_explained() -> None:
    """Each family has a line in the table of families and a section of its own, with the letters that its ids have."""
    families = dict(re.findall(r"^\| ([A-Z]) \| ([A-Z]{2}) \|", PAGE, flags=re.MULTILINE))
    sections = re.findall(r"^## ([A-Z]): .*?$(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert {letter: set(re.findall(r"^\| ([A-Z]{2})-", text, flags=re.MULTILINE)) for letter, text in sections} == {
        letter: {ids} for letter, ids in families.items()
    }
