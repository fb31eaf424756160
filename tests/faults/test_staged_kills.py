"""Staged parts under kills, lost power and failing calls: every row once, no staging file ever visible."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from partfile.sink import encode as shared_files
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import FailAt
from support.crash.harness import CrashHarness, all_of, none_of, some_of
from support.crash.staged import STAGED_SCENARIOS
from support.crash.worlds import Local, Powerless
from support.s3.model_worlds import AWS, GATEWAY, Objects, make_small

if TYPE_CHECKING:
    import random

    from support.crash.harness import Choose
    from support.crash.scenarios import Scenario
    from support.crash.worlds import PosixPicture
    from support.s3.model import Rules
    from support.state.tokens import NumberedTokens


# Staged parts under kills, lost power and failing calls, encodes among them: every row once, no staging file ever
# visible.

EACH = pytest.mark.parametrize("scenario", STAGED_SCENARIOS, ids=lambda one: one.name)
FEW_LOSSES = 25
FEW_CALLS = 8
"""Of each scenario in every run; with ``--long`` all."""


@pytest.fixture
def some_groups(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Files of a multi-bucket staging file are committed together or one by one.

    A crash falls within a group, or between two.
    """
    monkeypatch.setattr(shared_files, "_MOST_OPEN", rng.choice([1, 64]))


@pytest.mark.slow
@pytest.mark.usefixtures("some_groups")
@pytest.mark.drawn(2)
@EACH
@pytest.mark.fault("K1", "K2", "K3", "K6", "K10", "K13", "K16")
def test_two_kills_anywhere_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    explored = CrashHarness(scenario, Local(), numbered_tokens, second=second).explore()
    assert explored.moments > len(explored.calls) // 2 > 20
    assert explored.second_moments > (5 * explored.moments if is_long else explored.moments // 4)


@pytest.mark.slow
@pytest.mark.usefixtures("some_groups")
@pytest.mark.drawn(1)
@EACH
@pytest.mark.fault("K1", "K2", "K3", "K10", "K16")
def test_what_a_consumer_takes_at_once_is_each_row_once(
    scenario: Scenario, numbered_tokens: NumberedTokens, failing: Choose, second: Choose
) -> None:
    """R5: an encoded file that a consumer has moved never comes back, neither by its staging file nor by itself."""
    harness = CrashHarness(scenario, Local(), numbered_tokens, first=failing, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > len(explored.calls) // 3 > 13
    assert explored.second_moments > 5


@pytest.mark.usefixtures("some_groups")
@pytest.mark.drawn(2)
@EACH
@pytest.mark.fault("K4", "K5", "K7", "K8", "K12")
def test_a_power_loss_loses_and_doubles_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """A file is durable before a checkpoint promises it, and its staging file is there until then."""
    first = all_of if is_long else some_of(rng, FEW_LOSSES)
    explored = CrashHarness(scenario, Powerless(), numbered_tokens, first=first, second=none_of).explore()
    assert explored.moments > len(explored.calls)


@pytest.mark.slow
@pytest.mark.usefixtures("some_groups")
@pytest.mark.drawn(4)
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


@pytest.mark.slow
@pytest.mark.usefixtures("some_groups")
@EACH
@pytest.mark.fault("F3", "F4")
def test_the_disk_is_full_from_a_call_on(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random, is_long: bool
) -> None:
    """Also in the middle of an encode: the next start goes on as after a kill."""
    fails = CHANGING_CALLS - {"lock", "unlock", "lock_shared"}
    harness: CrashHarness[PosixPicture] = CrashHarness(scenario, Local(), numbered_tokens)
    _, ended = harness.fault_at_each(
        lambda call: FailAt(call, OSError(errno.ENOSPC, "deliberate"), persistent=True, only=fails),
        all_of if is_long else some_of(rng, FEW_CALLS),
    )
    assert ended > 0


# Staged parts under kills at some requests or all, on a strict model of S3: a staging file is side objects alone.

FEW_MOMENTS = 8
"""Kills of each scenario that a run draws; with ``--long`` at each request."""
FEW = [one for one in STAGED_SCENARIOS if one.name in {"full staging files", "restored staging files"}]
CASES = [(AWS, one) for one in STAGED_SCENARIOS] + [(GATEWAY, one) for one in FEW]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K2", "K3", "K7", "K10", "K13", "K16")
def test_two_kills_anywhere_lose_and_double_nothing_on_an_object_store(  # noqa: PLR0917 - fixtures.
    rules: Rules,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    second: Choose,
    rng: random.Random,
    is_long: bool,
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    make_small(monkeypatch)
    first = all_of if is_long else some_of(rng, FEW_MOMENTS)
    explored = CrashHarness(scenario, Objects(rules), numbered_tokens, first=first, second=second).explore()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > (5 * explored.moments if is_long else FEW_MOMENTS // 2)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K1", "K3")
def test_what_a_consumer_takes_at_once_comes_back_by_no_upload(  # noqa: PLR0917 - fixtures.
    rules: Rules,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    second: Choose,
    rng: random.Random,
    is_long: bool,
) -> None:
    """R5: an encoded object that a consumer has moved never comes back, by its staging file or an upload."""
    make_small(monkeypatch)
    first = all_of if is_long else some_of(rng, FEW_MOMENTS)
    harness = CrashHarness(scenario, Objects(rules), numbered_tokens, first=first, second=second)
    explored = harness.explore_beside_a_consumer()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > (explored.moments if is_long else FEW_MOMENTS // 2)
