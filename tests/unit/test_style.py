"""The house style that ruff cannot check: short functions, no pickle, clocks and randomness in one place each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ("src/partfile",)
EVERYTHING = (*PACKAGE, "docs", "tests", "benchmarks", "examples")

FUNCTION_LINES_HARD = 70

SERIALISERS = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "jsonpickle"}

CLOCKS = {
    "time.time",
    "time.time_ns",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}
"""Clocks are injected (S8): only the system clock's own module reads one."""

CHANCE = {"random", "secrets", "uuid", "os.urandom"}
"""Tokens come from one place, so that a test can replace them."""

MAY_READ_A_CLOCK = {"src/partfile/sink/clock.py"}
MAY_DRAW = {"src/partfile/stores/paths.py"}
SHIPPED_SUITE = "src/partfile/testing/"
"""The shipped kits draw test data from fixed seeds."""


def sources(folders: tuple[str, ...]) -> list[Path]:
    """The Python files below some folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """The path of a source file as messages show it."""
    return path.relative_to(ROOT).as_posix()


def long_functions(tree: ast.AST, limit: int) -> list[str]:
    """Functions of more than ``limit`` lines, docstring included."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [f"{name} has {length} lines" for name, length in lengths if length > limit]


def forbidden_in(tree: ast.AST, file: str) -> list[str]:
    """Uses of serialisers, clocks and chance that ``file`` may not make."""
    imported = imported_names(tree)
    may_draw = file in MAY_DRAW or file.startswith(SHIPPED_SUITE)
    loaded = {name for name in imported.values() if name}
    found = [f"imports {name}" for name in loaded if name.split(".")[0] in SERIALISERS]
    if not may_draw:
        found += [f"imports {name}" for name in loaded if name.split(".")[0] in CHANCE or name in CHANCE]
    used = {full_name(node, imported) for node in ast.walk(tree) if isinstance(node, ast.Attribute | ast.Name)}
    if not may_draw:
        found += [f"uses {name}" for name in used & CHANCE if "." in name]
    if file not in MAY_READ_A_CLOCK:
        found += [f"uses {name}" for name in used & CLOCKS]
    return sorted(found)


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for, by absolute imports only."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def full_name(node: ast.expr, imported: dict[str, str]) -> str:
    """``now`` in ``from datetime import datetime as d; d.now()`` as ``datetime.datetime.now``; '' if it is no name."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute):
        before = full_name(node.value, imported)
        return f"{before}.{node.attr}" if before else ""
    return ""


def test_functions_are_short() -> None:
    """No function is longer than the hard limit."""
    found = {
        name_of(path): long_functions(ast.parse(path.read_text()), FUNCTION_LINES_HARD) for path in sources(EVERYTHING)
    }
    assert {name: functions for name, functions in found.items() if functions} == {}


@pytest.mark.fault("T3")
def test_no_pickle_no_hidden_clock_no_hidden_chance() -> None:
    """Persisted state is never code (S10), clocks are injected (S8), tokens come from one module."""
    found = {name_of(path): forbidden_in(ast.parse(path.read_text()), name_of(path)) for path in sources(PACKAGE)}
    assert {name: uses for name, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import time\nnow = time.time()",
        "from time import time\nnow = time()",
        "from datetime import datetime\nnow = datetime.now()",
        "import datetime as d\nnow = d.datetime.now(d.UTC)",
        "from uuid import uuid4",
        "import random",
        "import os\ntoken = os.urandom(16)",
        "from os import urandom\ntoken = urandom(16)",
        "import time\nclock = time.time_ns",
    ],
)
def test_a_forbidden_use_is_caught(source: str) -> None:
    """Each way to write what is forbidden is found, whatever the import looks like."""
    assert forbidden_in(ast.parse(source), "src/partfile/sink/operator.py")


@pytest.mark.parametrize(
    "source", ["import time\ntime.monotonic()", "from partfile.sink import clock", "import os\nos.fsync(1)"]
)
def test_what_is_allowed_passes(source: str) -> None:
    """Monotonic time, our own package by its full name and the rest of ``os`` are no findings."""
    assert forbidden_in(ast.parse(source), "src/partfile/sink/operator.py") == []


def test_a_long_function_is_caught() -> None:
    """The length of a function is counted in lines, also of a nested one."""
    source = "def outer():\n    def inner():\n" + "        pass\n" * FUNCTION_LINES_HARD
    assert len(long_functions(ast.parse(source), FUNCTION_LINES_HARD)) == 2


def test_every_test_says_what_it_states() -> None:
    """Each test function has a docstring."""
    silent = [
        f"{name_of(path)}: {node.name}"
        for path in sources(("tests",))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []
