"""The power fails after some calls, or with ``--long`` after each: what was not synced may be gone, in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness, all_of, none_of, some_of
from crash_scenarios import EVERY_SCENARIO, Scenario
from posix_worlds import Powerless

if TYPE_CHECKING:
    import random

    from numbered_tokens import NumberedTokens

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
