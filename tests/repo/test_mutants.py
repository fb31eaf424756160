"""Every permanent mutant still applies, and names tests that are there; ``make mutants`` shows that they kill it."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from support.repo.mutants import ROOT, Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_applies_once_and_is_a_program(mutant: Mutant) -> None:
    """The text that it changes is in its file exactly once, and what comes of it is another program."""
    changed = ast.parse(mutant.source())
    assert ast.dump(changed) != ast.dump(ast.parse((ROOT / mutant.file).read_text()))


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_the_tests_that_are_to_kill_it_are_there(mutant: Mutant) -> None:
    """Each is a file, or a class or function in one."""
    assert mutant.tests
    for test in mutant.tests:
        path, *names = test.split("::")
        source = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
        assert source or (ROOT / path).is_dir()
        defined = [
            node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]
        assert set(names) <= set(defined)


def test_there_are_enough_mutants_and_none_twice() -> None:
    """At least sixteen, each with a name of its own."""
    assert len(mutants()) >= 16
    assert max(Counter(mutant.name for mutant in mutants()).values()) == 1
