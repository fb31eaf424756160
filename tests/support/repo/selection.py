"""Tests of many cases of which a run draws a few: ``@pytest.mark.drawn(few)``; ``drawn`` alone is the quick lane's."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def left_out(tests: Sequence[pytest.Item], seed: object, most: int | None = None) -> set[pytest.Item]:
    """The cases that this run does not draw.

    Args:
        tests: All that were collected; processes that share them must leave out the same, so their order is nothing.
        seed: Of the run. Each test draws by itself, so that a choice of tests repeats what a whole run drew.
        most: Cases of one test that are drawn; None draws as many as its mark says.

    Raises:
        pytest.UsageError: A mark says no number.
    """
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for test in tests:
        # What is skipped anyway must not take the place of what would run.
        if (mark := test.get_closest_marker("drawn")) is not None and test.get_closest_marker("skip") is None:
            few = _few(test, mark)
            cases[test.nodeid.partition("[")[0], few if most is None else min(few, most)].append(test)
    return {
        test
        for (name, few), own in cases.items()
        for test in random.Random(f"{seed}/{name}").sample(sorted(own, key=_nodeid), max(0, len(own) - few))
    }


def names(tests: Sequence[pytest.Item], most: int | None = None) -> list[str]:
    """A line for each test of which cases were drawn: its name and their parameters.

    Args:
        tests: What is run.
        most: As ``left_out`` was told.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=_nodeid):
        mark = test.get_closest_marker("drawn")
        if mark is not None and (mark.args or most is not None):
            name, _, parameters = test.nodeid.partition("[")
            cases[name].append(f"[{parameters}" if parameters else "")
    return [f"{name}{' '.join(drawn)}" for name, drawn in cases.items()]


def _few(test: pytest.Item, mark: pytest.Mark) -> int:
    if not mark.args:
        return sys.maxsize
    if len(mark.args) != 1 or not isinstance(mark.args[0], int) or mark.args[0] < 1:
        raise pytest.UsageError(f"{test.nodeid}: @pytest.mark.drawn takes the number of cases that a run draws")
    return mark.args[0]


def _nodeid(test: pytest.Item) -> str:
    return test.nodeid
