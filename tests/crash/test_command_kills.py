"""Kill recover and clean at every call, then what follows at each of its calls, on a local directory.

Enumerated with ``--long``; else some of the moments at random, and of what follows each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_scenarios import CLEANED_TWICE, COMMANDS
from crash_harness import CrashHarness, all_of, some_of
from posix_worlds import Local

if TYPE_CHECKING:
    import random

    from crash_scenarios import Scenario
    from numbered_tokens import NumberedTokens

FIRST, SECOND = 5, 4


@pytest.mark.parametrize("scenario", [*COMMANDS, *CLEANED_TWICE], ids=lambda one: one.name)
@pytest.mark.fault("K16", "H6")
def test_two_kills_of_commands_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, *, is_long: bool
) -> None:
    """What a second kill finds may be the same command or the sink; what a third run leaves is the same as ever."""
    first, second = (all_of, all_of) if is_long else (some_of(rng, FIRST), some_of(rng, SECOND))
    explored = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=second).explore()
    assert explored.moments > 15
    assert explored.second_moments > FIRST
