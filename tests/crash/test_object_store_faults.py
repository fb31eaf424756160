"""Requests that fail, done or not, or are done later, and lists that are old: on a strict model of S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness, none_of
from crash_scenarios import OTHERS, Scenario, restore_that_cuts
from s3_model import refusal
from s3_worlds import AWS, GATEWAY, Objects, make_small

from partfile.stores.s3.client import CHANGING_CALLS
from partfile.testing.faults import FailAt, LateAt

if TYPE_CHECKING:
    from crash_harness import Choose
    from numbered_tokens import NumberedTokens
    from s3_model import Bucket, Rules

SCENARIOS = [restore_that_cuts("auto"), *(one for one in OTHERS if one.name in {"long parts", "keep", "abort"})]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture(params=[AWS, GATEWAY], ids=lambda rules: rules.name)
def rules(request: pytest.FixtureRequest) -> Rules:
    """A server that honours preconditions on PUT: others can be told nothing by a request that comes late."""
    found: Rules = request.param
    return found


@pytest.mark.drawn(6)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("applied", [True, False], ids=["done", "not done"])
@pytest.mark.fault("N1", "N2")
def test_a_reply_is_lost(
    scenario: Scenario, applied: bool, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """Whether the request was done or not, the life goes on: it is repeated, and what was done is known again."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, ConnectionResetError("lost"), applied=applied, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10
    assert ended == 0


@pytest.mark.drawn(8)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("gap", [1, 4, 1000])
@pytest.mark.fault("N2", "N9")
def test_a_request_is_done_after_it_was_given_up(
    scenario: Scenario, gap: int, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """It arrives behind its own repetition, a few requests later, or never."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, _ = harness.fault_at_each(
        lambda number: LateAt(number, TimeoutError("given up"), gap=gap, only=CHANGING_CALLS),
        failing,
    )
    assert lives > 10


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
@pytest.mark.fault("N6")
def test_credentials_expire_for_good(
    scenario: Scenario, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """From any request on all that would change something are refused; the next start has new credentials."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules), numbered_tokens)
    lives, ended = harness.fault_at_each(
        lambda number: FailAt(number, refusal("ExpiredToken"), persistent=True, only=CHANGING_CALLS),
        failing,
    )
    assert ended > lives // 2


@pytest.mark.drawn(5)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
@pytest.mark.parametrize("lag", [2, 12])
@pytest.mark.fault("S12")
def test_lists_are_old_and_name_keys_twice(
    scenario: Scenario, lag: int, rules: Rules, numbered_tokens: NumberedTokens, failing: Choose
) -> None:
    """After a kill the next start asks again until it has found the end of the chain."""
    harness: CrashHarness[Bucket] = CrashHarness(scenario, Objects(rules, lag), numbered_tokens, second=none_of)
    assert harness.kill_then_crash(failing) >= 1
