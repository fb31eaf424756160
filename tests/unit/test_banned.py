"""What no code of partfile may do, whatever the reason: run data, start programs, delete by pattern, widen modes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ("src/partfile",)

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
    # A directory of checkpoints that was counted to hold no directory; HDFS deletes no other by one call.
    ("src/partfile/stores/hdfs/store.py", "passes recursive"),
    # The wrapper of HDFS's client hands it through.
    ("src/partfile/stores/hdfs/client.py", "passes recursive"),
    # The shipped contract suite needs a second process to see that a lease holds.
    ("src/partfile/testing/store.py", "uses fork"),
    # The curated names of the package, from a table of literals.
    ("src/partfile/__init__.py", "uses import_module"),
}
"""Each with its reason; what is not found any more must go from here."""


def banned_in(source: str) -> set[str]:
    """What a module does that it may not."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
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


def modules() -> dict[str, str]:
    """The source of each module of the package, by its path."""
    paths = {path.resolve() for folder in PACKAGE for path in (ROOT / folder).rglob("*.py")}
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def test_nothing_banned_is_in_the_package() -> None:
    """No pickle, eval or YAML, no program started, no tree deleted, no mode widened: each exception has a reason."""
    found = {(name, use) for name, source in modules().items() for use in banned_in(source)}
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
    assert banned_in(source)


@pytest.mark.parametrize("source", ["import re\nre.compile('x')", "f(recursive=False)", "os.unlink('x')", "open('x')"])
def test_what_is_allowed_passes(source: str) -> None:
    """Literal single calls are no findings."""
    assert banned_in(source) == set()
