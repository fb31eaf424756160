"""The documents and the tests say the same: guarantees, threats, faults, items of the snapshot core."""

from __future__ import annotations

import ast
import re
from collections import Counter
from configparser import ConfigParser
from pathlib import Path

import partfile as pf
from partfile import errors
from support.repo.fault_rows import PAGE, excused_rows, held_rows

# docs/GUARANTEES.md is held by tests: each one that it names exists, and no guarantee is without one.

ROOT = Path(__file__).parents[2]
GUARANTEES_PAGE = ROOT / "docs" / "GUARANTEES.md"
_LINK = re.compile(r"`([\w/]+\.py)::(\w+)`")
GUARANTEES = 11


def functions_of(path: Path) -> set[str]:
    """The names of all functions in a file, those of classes included."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    """Renaming or deleting a test is noticed here."""
    links = _LINK.findall(GUARANTEES_PAGE.read_text())
    files = {file for file, _ in links}
    assert [file for file in files if not (ROOT / file).is_file()] == []
    there = {(file, name) for file in files for name in functions_of(ROOT / file)}
    assert sorted(set(links) - there) == []
    assert [name for _, name in links if not name.startswith("test_")] == []


def test_every_line_is_held_by_a_test() -> None:
    """Each guarantee, each fault and each store names at least one test."""
    page = GUARANTEES_PAGE.read_text()
    sections = re.split(r"^### G(\d+)\. ", page.partition("\n## What is not\n")[0], flags=re.MULTILINE)[1:]
    assert [int(number) for number in sections[::2]] == list(range(1, GUARANTEES + 1))
    assert [text.splitlines()[0] for text in sections[1::2] if not _LINK.search(text)] == []
    faults = re.findall(r"^\| (?!fault|---).*\|$", page.partition("\nNot covered")[0], flags=re.MULTILINE)
    assert [row for row in faults if not _LINK.search(row)] == []
    (stores,) = re.findall(r"^\| tests \| (.*) \|$", page, flags=re.MULTILINE)
    assert [cell for cell in stores.split(" | ") if not _LINK.search(cell)] == []


# SECURITY.md says what holds by which test: each file it names is there, and each threat has one.

TEXT = (ROOT / "SECURITY.md").read_text()
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def threats() -> list[list[str]]:
    """The rows of the table of threats."""
    table = TEXT.partition("| threat |")[2].partition("\n\n")[0]
    return [line.strip("|").split(" | ") for line in table.splitlines()[2:]]


def test_every_link_leads_somewhere() -> None:
    """A test that was renamed is missed here."""
    links = LINK.findall(TEXT)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_required_packages_are_named() -> None:
    """A reader who judges the supply chain reads what setup.cfg says."""
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lines = settings["options"]["install_requires"].split("\n")
    required = [line.partition(">")[0] for line in lines if line and "win32" not in line]
    said = re.search(r"(\w+) packages are required: ([^.]+)\.", TEXT)
    assert said is not None
    assert sorted(set(re.findall(r"[a-z]+", said[2])) - {"and", "for", "the", "command", "line"}) == sorted(required)
    assert {"Three": 3, "Four": 4, "Five": 5}[said[1]] == len(required)


def test_every_threat_is_held_by_a_test() -> None:
    """The last column names one that looks like a test."""
    assert len(threats()) >= 12
    for threat in threats():
        assert re.search(r"\(tests/[a-z0-9_/]+/test_[a-z0-9_]+\.py\)", threat[-1]), threat[0]


def test_every_error_that_a_document_names_is_public() -> None:
    """Users catch it as ``partfile.NAME``."""
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    documents = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    named = set().union(*(re.findall(r"\b[A-Z]\w+\b", path.read_text()) for path in documents)) & known
    assert {"NotReady", "PartMissing"} < named
    assert named - {*pf.__all__} == set()


# The runbook has a way out of every error, by its name.


def test_every_error_is_in_the_index_of_the_runbook() -> None:
    """Each class that a user can meet has a row, under the name that a traceback shows, and no other has one."""
    index = (
        (ROOT / "docs" / "RUNBOOK.md").read_text().partition("## By the name of the error\n")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", index, flags=re.MULTILINE)
    raised = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert sorted(rows) == sorted(raised)


# Every row of docs/FAULTS.md is held by a marked test or excused with a reason, and no mark names another.


def ids_of_marks(mark: str) -> set[str]:
    """The ids that tests are marked with by a mark of this name: fault or item."""
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    return {
        argument.value
        for text in texts
        if f"mark.{mark}(" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == mark
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_row_is_held_or_excused_and_no_other_is_marked() -> None:
    """A row is marked on a test, or it has a reason; a mark with an id that the page does not have is a slip."""
    rows, excused = held_rows().keys(), excused_rows().keys()
    marked = ids_of_marks("fault")
    assert rows - marked == set()
    assert marked - rows == set()
    assert rows & excused == set()


def test_every_family_is_whole() -> None:
    """The numbers of each family go up to its last one without a gap, so that no row can be forgotten."""
    found = [*held_rows(), *excused_rows()]
    assert len(found) == len(set(found)) > 90
    for family, last in {"K": 19, "F": 18, "N": 11, "D": 18, "M": 11, "T": 9, "H": 9}.items():
        numbers = {int(re.sub(r"\D", "", row)) for row in found if row.startswith(family)}
        assert numbers == set(range(1, last + 1)), family


def test_every_line_of_the_page_is_a_row() -> None:
    """None is lost by the way it is written."""
    lines = re.findall(r"^\| [A-Z]\d.*$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(lines) == len(held_rows()) + len(excused_rows())


# The page of the snapshot core's items and the marks of the tests say the same.

ITEMS_PAGE, LEFT_OUT_PAGE = (ROOT / "docs" / "SNAPSHOT_ITEMS.md").read_text().split("\n## Items that are left out")
NEWEST_ITEMS = {
    "SS": 34,
    "ST": 13,
    "DL": 12,
    "SP": 26,
    "SB": 13,
    "KS": 16,
    "OS": 6,
    "TT": 22,
    "UC": 38,
    "LR": 16,
    "RI": 15,
    "RM": 15,
    "LT": 12,
    "CC": 16,
}
"""The last number of each family in the list that the core was built from."""


def test_every_item_of_a_test_is_explained_once() -> None:
    """Each id that a test is marked with has one line that says what holds, and no line is about another."""
    used = ids_of_marks("item")
    explained = Counter(re.findall(r"^\| ([A-Z]{2}-\d\d) \| \S.*\|$", ITEMS_PAGE, flags=re.MULTILINE))
    assert len(used) > 90
    assert sorted(explained) == sorted(used)
    assert set(explained.values()) == {1}


def test_every_item_is_on_a_test_or_left_out_with_a_reason() -> None:
    """Each number of a family up to the last is one or the other, and none is both."""
    left_out = re.findall(r"^\| ([A-Z]{2}-\d\d) \| \S.*\|$", LEFT_OUT_PAGE, flags=re.MULTILINE)
    listed = {f"{family}-{number:02}" for family, last in NEWEST_ITEMS.items() for number in range(1, last + 1)}
    assert sorted([*left_out, *ids_of_marks("item")]) == sorted(listed)


def test_every_family_is_explained() -> None:
    """Each family has a line in the table of families and a section of its own, with the letters that its ids have."""
    families = dict(re.findall(r"^\| ([A-Z]) \| ([A-Z]{2}) \|", ITEMS_PAGE, flags=re.MULTILINE))
    sections = re.findall(r"^## ([A-Z]): .*?$(.*?)(?=^## |\Z)", ITEMS_PAGE, flags=re.MULTILINE | re.DOTALL)
    assert {letter: set(re.findall(r"^\| ([A-Z]{2})-", text, flags=re.MULTILINE)) for letter, text in sections} == {
        letter: {ids} for letter, ids in families.items()
    }
