"""The power fails, once or twice: what was not synced may be gone, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.scenarios import EVERY_SCENARIO, Scenario
from support.crash.worlds import Powerless

if TYPE_CHECKING:
    import random

    from support.tokens import NumberedTokens


# The power fails after some calls, or with ``--long`` after each: what was not synced may be gone, in any order.

FEW = 40
"""Different pictures of what a power loss leaves that are gone on from, in every run."""


@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K4", "K5", "K7", "K8", "K12", "K14")
def test_a_power_loss_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """Whatever subset of unsynced names and bytes survives, all that was acknowledged is there, once."""
    first = all_of if is_long else some_of(rng, FEW)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert explored.moments > len(explored.calls)


# The power fails twice, or after a kill: a recovery finds what its predecessor has not synced. Random moments.


@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K12", "K16")
def test_two_power_losses(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """The recovery loses its power too; moments at random, with ``--long`` all first ones and more second ones."""
    first, second = (all_of, some_of(rng, 10)) if is_long else (some_of(rng, 6), some_of(rng, 6))
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=second).explore()
    assert explored.second_moments > 10


@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K8", "K12")
def test_a_power_loss_after_a_kill(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """A recovery finds names that its killed predecessor has not synced, acts on them, and loses its power."""
    harness = CrashHarness(scenario, Powerless(), numbered_tokens, second=some_of(rng, 60 if is_long else 5))
    assert harness.kill_then_crash(all_of if is_long else some_of(rng, 6)) > 10
