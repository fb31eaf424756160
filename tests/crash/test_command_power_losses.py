"""The power fails after every call of recover and of clean: nothing that counts is lost or doubled (H6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_scenarios import COMMANDS
from crash_harness import CrashHarness, none_of
from posix_worlds import Powerless

if TYPE_CHECKING:
    from crash_scenarios import Scenario
    from numbered_tokens import NumberedTokens


@pytest.mark.parametrize("scenario", COMMANDS, ids=lambda one: one.name)
@pytest.mark.fault("H6")
def test_a_power_loss_during_a_command_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens
) -> None:
    """Whatever subset of unsynced names and bytes survives, the sink or the same command goes on from there."""
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, second=none_of).explore()
    assert {"link", "sync"} <= set(explored.calls)
    assert ("move" in explored.calls) is (scenario.name == "clean")
