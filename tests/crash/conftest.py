"""What the crash tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import all_of, some_of
from numbered_tokens import NumberedTokens

from partfile.stores import paths

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from crash_harness import Choose

FEW_SECOND = 1
"""Second kills after each first one, in every run."""
FEW_FAULTS = 12
"""Calls of each life that fail, in every run."""


@pytest.fixture
def numbered_tokens(monkeypatch: pytest.MonkeyPatch) -> NumberedTokens:
    """Tokens are drawn from here, so that equal pictures are seen to be equal."""
    drawn = NumberedTokens()
    monkeypatch.setattr(paths, "secrets", drawn)
    return drawn


@pytest.fixture
def chosen(rng: random.Random, *, is_long: bool) -> Callable[[int, int], list[int]]:
    """Chooses among so many calls, counted from 1: a few at random, or with --long all of them."""
    return lambda calls, few: sorted(rng.sample(range(1, calls + 1), calls if is_long else min(few, calls)))


@pytest.fixture
def second(is_long: bool, rng: random.Random) -> Choose:
    """The moments of each recovery that is killed too: a few at random, or with ``--long`` all of them."""
    return all_of if is_long else some_of(rng, FEW_SECOND)


@pytest.fixture
def failing(is_long: bool, rng: random.Random) -> Choose:
    """The calls of a life that fail: some at random, or with ``--long`` all of them."""
    return all_of if is_long else some_of(rng, FEW_FAULTS)


@pytest.fixture
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether nothing is to be left out, however long it takes."""
    return bool(request.config.getoption("--long"))
