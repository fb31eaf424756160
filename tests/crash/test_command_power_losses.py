"""The power fails after a call of recover or of clean: nothing that counts is lost or doubled (H6).

After each call, and with each picture of it, with ``--long``; else with some at random.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_scenarios import COMMANDS
from crash_harness import CrashHarness, all_of, none_of, some_of
from posix_worlds import Powerless

if TYPE_CHECKING:
    import random

    from crash_scenarios import Scenario
    from numbered_tokens import NumberedTokens


FEW = 40
"""Different pictures of what a power loss leaves that are gone on from, in every run."""


@pytest.mark.parametrize("scenario", COMMANDS, ids=lambda one: one.name)
@pytest.mark.fault("H6")
def test_a_power_loss_during_a_command_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """Whatever subset of unsynced names and bytes survives, the sink or the same command goes on from there."""
    first = all_of if is_long else some_of(rng, FEW)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert {"link", "sync"} <= set(explored.calls)
    assert ("move" in explored.calls) is (scenario.name == "clean")
