"""Kills, lost power and failing calls in the life of parts that are binary or compressed, and of staged ORC."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import FailAt
from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.scenarios import FORMAT_SCENARIOS
from support.crash.worlds import Local, Powerless

if TYPE_CHECKING:
    import random

    from support.crash.harness import Choose
    from support.crash.scenarios import Scenario
    from support.crash.worlds import PosixPicture
    from support.state.tokens import NumberedTokens


EACH = pytest.mark.parametrize("scenario", FORMAT_SCENARIOS, ids=lambda one: one.name)
FEW_LOSSES = 15
FEW_CALLS = 8
"""Of each scenario that a run draws; with ``--long`` all."""


@pytest.mark.drawn(3)
@EACH
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13")
def test_a_kill_anywhere_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """At each moment readers decode committed rows once, and no half block or member; in the end all of them."""
    again = second if is_long else none_of
    explored = CrashHarness(scenario, Local(), numbered_tokens, second=again).explore()
    assert explored.moments > len(explored.calls) // 3 > 6


@pytest.mark.drawn(2)
@EACH
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13")
def test_what_a_consumer_takes_at_once_is_each_row_once(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, rng: random.Random, is_long: bool
) -> None:
    """R5: a block or a member that a consumer has with its file comes in no other file."""
    first, again = (all_of, second) if is_long else (some_of(rng, FEW_LOSSES), none_of)
    harness = CrashHarness(scenario, Local(), numbered_tokens, first=first, second=again)
    assert harness.explore_beside_a_consumer().moments > 13


@pytest.mark.slow
@EACH
@pytest.mark.fault("K4", "K5", "K7", "K8", "K12")
def test_a_power_loss_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """A block or a member is durable before a checkpoint promises it."""
    first = all_of if is_long else some_of(rng, FEW_LOSSES)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert explored.moments > len(explored.calls)


@pytest.mark.slow
@EACH
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.fault("F16")
def test_a_call_fails_once(
    scenario: Scenario, applied: bool, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """EIO, whether the call was done or not: the life goes on, or ends by an error of ours; no row is lost."""
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, OSError(errno.EIO, "deliberate"), applied=applied, only=CHANGING_CALLS),
        all_of if is_long else some_of(rng, FEW_CALLS),
    )
    assert 0 <= ended < lives
