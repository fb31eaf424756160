"""docs/GUARANTEES.md is held by tests: each one that it names exists, and no guarantee is without one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "GUARANTEES.md"
_LINK = re.compile(r"`([\w/]+\.py)::(\w+)`")
GUARANTEES = 10


def functions_of(path: Path) -> set[str]:
    """The names of all functions in a file, those of classes included."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    """Renaming or deleting a test is noticed here."""
    links = _LINK.findall(PAGE.read_text())
    files = {file for file, _ in links}
    assert [file for file in files if not (ROOT / file).is_file()] == []
    there = {(file, name) for file in files for name in functions_of(ROOT / file)}
    assert sorted(set(links) - there) == []
    assert [name for _, name in links if not name.startswith("test_")] == []


def test_every_line_is_held_by_a_test() -> None:
    """Each guarantee, each fault and each store names at least one test."""
    page = PAGE.read_text()
    sections = re.split(r"^### G(\d+)\. ", page.partition("\n## What is not\n")[0], flags=re.MULTILINE)[1:]
    assert [int(number) for number in sections[::2]] == list(range(1, GUARANTEES + 1))
    assert [text.splitlines()[0] for text in sections[1::2] if not _LINK.search(text)] == []
    faults = re.findall(r"^\| (?!fault|---).*\|$", page.partition("\nNot covered")[0], flags=re.MULTILINE)
    assert [row for row in faults if not _LINK.search(row)] == []
    (stores,) = re.findall(r"^\| tests \| (.*) \|$", page, flags=re.MULTILINE)
    assert [cell for cell in stores.split(" | ") if not _LINK.search(cell)] == []
