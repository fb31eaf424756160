"""Kill at every request, then the recovery at some of its requests or all, on a strict model of S3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness
from crash_scenarios import OTHERS, Scenario, restore_that_cuts, stream
from s3_worlds import AWS, GATEWAY, IGNORANT, Objects, make_small

from partfile.stores.s3.client import CHANGING_CALLS

if TYPE_CHECKING:
    from crash_harness import Choose
    from numbered_tokens import NumberedTokens
    from s3_model import Rules

SCENARIOS = [stream("auto"), restore_that_cuts("auto"), *OTHERS]
FEW = [stream("auto"), restore_that_cuts("auto"), *(one for one in OTHERS if one.name in {"long parts", "keep"})]
CASES = [(AWS, one) for one in SCENARIOS] + [(GATEWAY, one) for one in FEW] + [(IGNORANT, one) for one in FEW[:2]]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K2", "K3", "K7", "K9", "K10", "K11", "K13", "K15", "K16")
def test_two_kills_anywhere_lose_and_double_nothing(  # noqa: PLR0917 - fixtures.
    rules: Rules,
    scenario: Scenario,
    numbered_tokens: NumberedTokens,
    monkeypatch: pytest.MonkeyPatch,
    second: Choose,
    is_long: bool,
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    make_small(monkeypatch)
    explored = CrashHarness(scenario, Objects(rules), numbered_tokens, second=second).explore()
    assert explored.moments > len(explored.calls) // 2
    assert explored.second_moments > (5 * explored.moments if is_long else explored.moments // 4)


@pytest.mark.parametrize("rules", [AWS, GATEWAY], ids=lambda rules: rules.name)
def test_every_kind_of_request_is_killed(
    rules: Rules, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lives make uploads, side objects, claims, completions: none of the enumerations runs past a path."""
    make_small(monkeypatch)
    harnesses = [CrashHarness(one, Objects(rules), numbered_tokens, first=lambda _: ()) for one in SCENARIOS]
    assert {call for harness in harnesses for call in harness.explore().calls} == CHANGING_CALLS
