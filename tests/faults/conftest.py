"""What the tests of crashes, faults and random schedules share."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from partfile.stores import paths
from support.crash.harness import all_of, some_of
from support.crash.worlds import temporary_directory
from support.state.tokens import NumberedTokens

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from support.crash.harness import Choose


FEW_SECOND = 1
"""Second kills after each first one, in every run."""
FEW_FAULTS = 12
"""Calls of each life that fail, in every run."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Where thousands of syncs wait for no disk. A kill takes nothing that is written; the power fails in a model."""
    path = temporary_directory("partfile-faults-")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def numbered_tokens(monkeypatch: pytest.MonkeyPatch) -> NumberedTokens:
    """Tokens are drawn from here, so that equal pictures are seen to be equal."""
    drawn = NumberedTokens()
    monkeypatch.setattr(paths, "secrets", drawn)
    return drawn


@pytest.fixture(params=[False, True], ids=["files stay", "files are taken"])
def has_consumer(request: pytest.FixtureRequest) -> bool:
    """Whether a consumer takes each finished file the instant it is visible; a test that asks has both cases."""
    return bool(request.param)


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
