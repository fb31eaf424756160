"""Every permanent mutant still applies, and names tests that are there; ``make mutants`` shows that they kill it."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache

import pytest

from support.repo.mutants import ROOT, Mutant, mutants


@cache
def _program_of(file: str) -> str:
    return ast.dump(ast.parse((ROOT / file).read_text()))


@cache
def _defined_in(path: str) -> set[str]:
    source = (ROOT / path).read_text() if (ROOT / path).is_file() else ""
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_applies_once_and_is_a_program(mutant: Mutant) -> None:
    """The text that it changes is in its file exactly once, and what comes of it is another program."""
    assert ast.dump(ast.parse(mutant.source())) != _program_of(mutant.file)


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_the_tests_that_are_to_kill_it_are_there(mutant: Mutant) -> None:
    """Each is a file, or a class or function in one."""
    assert mutant.tests
    for test in mutant.tests:
        path, *names = test.split("::")
        assert (ROOT / path).exists()
        assert set(names) <= _defined_in(path)


def test_there_are_enough_mutants_and_none_twice() -> None:
    """At least sixteen, each with a name of its own."""
    assert len(mutants()) >= 16
    assert max(Counter(mutant.name for mutant in mutants()).values()) == 1
