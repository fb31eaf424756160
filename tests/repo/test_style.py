"""The house style that ruff cannot check, and what no code of partfile may do."""

from __future__ import annotations

import ast
import gc
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# The house style that ruff cannot check: short functions, no pickle, clocks and randomness in one place each.

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
"""Clocks are injected (R8): only the system clock's own module reads one."""

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


@cache
def tree_of(path: Path) -> ast.Module:
    """What a source file says."""
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Look for no garbage among millions of nodes while they are made, and keep none of them for other tests."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


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


_REFERRAL = re.compile(r"(?:^|; )[Ss]ee (?:``)?[A-Za-z_][\w.]*(?:``)?\.?$")
"""Ends a first paragraph that says nothing, or not all, of what is to be said: a name of the code comes after "see"."""


def referrals_in(tree: ast.AST) -> list[str]:
    """Docstrings that begin by sending the reader to other code, instead of saying what is done and raised."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            summary = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            if _REFERRAL.search(summary):
                found.append(f"{getattr(node, 'name', 'the module')}: {summary}")
    return found


def test_functions_are_short() -> None:
    """No function is longer than the hard limit."""
    found = {name_of(path): long_functions(tree_of(path), FUNCTION_LINES_HARD) for path in sources(EVERYTHING)}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_docstrings_can_be_understood_without_the_code() -> None:
    """None says "see" and a name of the code instead of what is done."""
    found = {name_of(path): referrals_in(tree_of(path)) for path in sources(PACKAGE)}
    assert {name: summaries for name, summaries in found.items() if summaries} == {}


@pytest.mark.parametrize(
    "summary",
    [
        "See ``Store.create``.",
        "See FileSink.savepoint",
        "Read a file; see ``Store``.",
        "Read; see\n    ``Store.read``.",
    ],
)
def test_a_docstring_that_refers_to_code_is_caught(summary: str) -> None:
    """Each way to write it is found, over two lines and with a paragraph after it as well."""
    for text in (summary, f"{summary}\n\n    It raises nothing."):
        assert len(referrals_in(ast.parse(f'def f():\n    """{text}"""'))) == 1


@pytest.mark.parametrize("summary", ["How it is read; see docs/FORMATS.md.", "See that all was read.", "Must see it."])
def test_other_uses_of_the_word_pass(summary: str) -> None:
    """A document of the repository may be named, and there are things to be seen to."""
    assert referrals_in(ast.parse(f'def f():\n    """{summary}"""')) == []


@pytest.mark.fault("T3")
def test_no_pickle_no_hidden_clock_no_hidden_chance() -> None:
    """Persisted state is never code (R10), clocks are injected (R8), tokens come from one module."""
    found = {name_of(path): forbidden_in(tree_of(path), name_of(path)) for path in sources(PACKAGE)}
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
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []


# What no code of partfile may do, whatever the reason: run data, start programs, delete by pattern, widen modes.

SCANNED = ("src/partfile",)

NEVER_IMPORTED = {
    "cPickle",
    "cloudpickle",
    "code",
    "commands",
    "dill",
    "glob",
    "jsonpickle",
    "marshal",
    "pickle",
    "pty",
    "runpy",
    "shelve",
    "shutil",
    "subprocess",
    "yaml",
}
"""Code from data, other programs, and modules made for whole trees."""

NEVER_CALLED = {"eval", "exec", "compile", "__import__", "execfile"}
"""Builtins that run text."""

NEVER_USED = {
    "chmod",
    "fchmod",
    "lchmod",
    "umask",
    "chown",
    "system",
    "popen",
    "spawnv",
    "execv",
    "execvp",
    "fork",
    "removedirs",
    "rmtree",
    "glob",
    "iglob",
    "rglob",
    "expand_path",
    "clear_multipart_uploads",
    "mkstemp",
    "mkdtemp",
    "mktemp",
    "NamedTemporaryFile",
    "TemporaryDirectory",
    "model_construct",
}
"""Attributes: modes of files, shells, deletion of trees, patterns, files outside the base, models around validation."""

NEVER_PASSED = {"recursive": "deletes or expands whole trees", "shell": "starts a shell", "maxdepth": "expands a tree"}
"""Keyword arguments, unless they are a literal False."""

ALLOWED = {
    # The file of a job is what the user asks to be run.
    ("src/partfile/cli/run.py", "imports runpy"),
    # One of the verbs, which are named in the file itself; none comes from what a user types.
    ("src/partfile/cli/main.py", "uses import_module"),
    # A directory of checkpoints that was counted to hold no directory; HDFS deletes no other by one call.
    ("src/partfile/stores/hdfs/store.py", "passes recursive"),
    # The wrapper of HDFS's client hands it through.
    ("src/partfile/stores/hdfs/client.py", "passes recursive"),
    # The shipped contract suite needs a second process to see that a lease holds.
    ("src/partfile/testing/store.py", "uses fork"),
    # A database of keyed state is scratch, and lies in a directory of its own outside of every base.
    ("src/partfile/snapshot/keyed/rocksdb/database.py", "uses mkdtemp"),
    # The curated names of the package, from a table of literals.
    ("src/partfile/__init__.py", "uses import_module"),
}
"""Each with its reason; what is not found any more must go from here."""


def banned_in(tree: ast.AST) -> set[str]:
    """What a module does that it may not."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"imports {alias.name}" for alias in node.names if alias.name.split(".")[0] in NEVER_IMPORTED}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if node.module.split(".")[0] in NEVER_IMPORTED:
                found.add(f"imports {node.module}")
            found |= {f"uses {alias.name}" for alias in node.names if alias.name in NEVER_USED | {"import_module"}}
        elif isinstance(node, ast.Attribute) and node.attr in NEVER_USED | {"import_module"}:
            found.add(f"uses {node.attr}")
        elif isinstance(node, ast.Call):
            found |= _banned_in_call(node)
    return found


def _banned_in_call(node: ast.Call) -> set[str]:
    found = {
        f"passes {keyword.arg}"
        for keyword in node.keywords
        if keyword.arg in NEVER_PASSED
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value in {False, None})
    }
    if isinstance(node.func, ast.Name) and node.func.id in NEVER_CALLED:
        found.add(f"calls {node.func.id}")
    return found


def modules() -> dict[str, Path]:
    """Where each module of the package is, by its path in the repository."""
    paths = {path.resolve() for folder in SCANNED for path in (ROOT / folder).rglob("*.py")}
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(paths)}


def test_nothing_banned_is_in_the_package() -> None:
    """No pickle, eval or YAML, no program started, no tree deleted, no mode widened: each exception has a reason."""
    found = {(name, use) for name, path in modules().items() for use in banned_in(tree_of(path))}
    assert found == ALLOWED


def test_every_module_is_looked_at() -> None:
    """A scan that finds nothing would prove nothing."""
    assert len(modules()) > 100


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import safe_load",
        "import shutil",
        "eval('1')",
        "def f(x):\n    return exec(x)",
        "__import__('os')",
        "from importlib import import_module",
        "import os\nos.chmod('x', 0o777)",
        "from os import chmod",
        "import os\nos.system('rm')",
        "fs.rm('x', recursive=True)",
        "fs.rm('x', recursive=flag)",
        "fs.rm('x', maxdepth=3)",
        "path.rglob('*')",
        "run('x', shell=True)",
        "fs.expand_path('x*')",
        "from tempfile import mkstemp",
        "Model.model_construct(a=1)",
    ],
)
def test_a_banned_use_is_caught(source: str) -> None:
    """Each way to write it is found."""
    assert banned_in(ast.parse(source))


@pytest.mark.parametrize("source", ["import re\nre.compile('x')", "f(recursive=False)", "os.unlink('x')", "open('x')"])
def test_a_literal_single_call_passes(source: str) -> None:
    """Literal single calls are no findings."""
    assert banned_in(ast.parse(source)) == set()
