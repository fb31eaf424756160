"""The power fails, once or twice: what was not synced may be gone, in any order."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import FailAt
from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.scenarios import EVERY_SCENARIO, Scenario, restore_that_cuts
from support.crash.worlds import Local, Powerless

if TYPE_CHECKING:
    import random

    from support.crash.harness import Choose
    from support.crash.worlds import PosixPicture
    from support.state.tokens import NumberedTokens


# The power fails after some calls, or with ``--long`` after each: what was not synced may be gone, in any order.

FEW = 25
"""Different pictures of what a power loss leaves that are gone on from, in every run."""


@pytest.mark.drawn
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K4", "K5", "K7", "K8", "K12", "K14")
def test_a_power_loss_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """Whatever subset of unsynced names and bytes survives, all that was acknowledged is there, once."""
    first = all_of if is_long else some_of(rng, FEW)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert explored.moments > len(explored.calls)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K4", "K5", "K7", "K8", "K12", "K14")
def test_what_a_consumer_takes_at_once_is_each_row_once(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """R5: a file that was durably taken away comes back by no power loss; see ``PowerlessWorld.take``."""
    first = all_of if is_long else some_of(rng, FEW)
    harness = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > len(explored.calls) // 2 > 13


# The power fails twice, or after a kill: a recovery finds what its predecessor has not synced. Random moments.


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K12", "K16")
def test_two_power_losses(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """The recovery loses its power too; moments at random, with ``--long`` all first ones and more second ones."""
    first, second = (all_of, some_of(rng, 10)) if is_long else (some_of(rng, 6), some_of(rng, 6))
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=second).explore()
    assert explored.second_moments > 10


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.fault("K8", "K12")
def test_a_power_loss_after_a_kill(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """A recovery finds names that its killed predecessor has not synced, acts on them, and loses its power."""
    harness = CrashHarness(scenario, Powerless(), numbered_tokens, second=some_of(rng, 60 if is_long else 5))
    assert harness.kill_then_crash(all_of if is_long else some_of(rng, 6)) > 10


# System calls that fail, done or not, once or from then on, at each call of each life on a local directory.


@pytest.mark.slow
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda one: one.name)
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.fault("F16")
def test_a_call_fails_once(
    scenario: Scenario, applied: bool, is_long: bool, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """EIO, whether the call was done or not: the life goes on, or ends by an error of ours; no row is lost."""
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, OSError(errno.EIO, "deliberate"), applied=applied, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10
    # Of a few all can be alike by chance.
    assert not is_long or 0 < ended < lives


CASES = [(errno.ENOSPC, one) for one in EVERY_SCENARIO] + [
    (number, one) for number in (errno.EACCES, errno.EROFS) for one in (EVERY_SCENARIO[0], restore_that_cuts("auto"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "scenario"), CASES, ids=lambda one: getattr(one, "name", None))
@pytest.mark.fault("F3", "F4")
def test_calls_fail_from_one_on(
    number: int, scenario: Scenario, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """The disk is full, or is not to be written to: the next start, once that is mended, goes on as after a kill."""
    fails = CHANGING_CALLS - {"lock", "unlock", "lock_shared"}
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    _, ended = harness.fault_at_each(
        lambda call: FailAt(call, OSError(number, "deliberate"), persistent=True, only=fails),
        failing,
    )
    assert ended > 0
