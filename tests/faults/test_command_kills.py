"""Kills and power losses of recover and clean, then what follows, on a local directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.crash.commands import CLEANED_TWICE, COMMANDS
from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.worlds import Local, Powerless

if TYPE_CHECKING:
    import random

    from support.crash.scenarios import Scenario
    from support.tokens import NumberedTokens


# Kill recover and clean at every call, then what follows at each of its calls, on a local directory.
#
# Enumerated with ``--long``; else some of the moments at random, and of what follows each of them.

FIRST, SECOND = 5, 4


@pytest.mark.parametrize("scenario", [*COMMANDS, *CLEANED_TWICE], ids=lambda one: one.name)
@pytest.mark.fault("K16", "H6")
def test_two_kills_of_commands_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """What a second kill finds may be the same command or the sink; what a third run leaves is the same as ever."""
    first, second = (all_of, all_of) if is_long else (some_of(rng, FIRST), some_of(rng, SECOND))
    explored = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=second).explore()
    assert explored.moments > 10
    assert explored.second_moments > FIRST


# The power fails after a call of recover or of clean: nothing that counts is lost or doubled (H6).
#
# After each call, and with each picture of it, with ``--long``; else with some at random.

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
