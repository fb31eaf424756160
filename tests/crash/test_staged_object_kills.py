"""Staged parts under kills at some requests or all, on a strict model of S3: a stage is side objects alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness, all_of, some_of
from s3_worlds import AWS, GATEWAY, Objects, make_small
from staged_scenarios import STAGED_SCENARIOS

if TYPE_CHECKING:
    import random

    from crash_harness import Choose
    from crash_scenarios import Scenario
    from numbered_tokens import NumberedTokens
    from s3_model import Rules

FEW_MOMENTS = 8
"""Kills of each scenario that a run draws; with ``--long`` at each request."""
FEW = [one for one in STAGED_SCENARIOS if one.name in {"full stages", "restored stages"}]
CASES = [(AWS, one) for one in STAGED_SCENARIOS] + [(GATEWAY, one) for one in FEW]


@pytest.mark.drawn(5)
@pytest.mark.parametrize(("rules", "scenario"), CASES, ids=lambda one: one.name)
@pytest.mark.fault("K2", "K3", "K7", "K10", "K13", "K16")
def test_two_kills_anywhere_lose_and_double_nothing(  # noqa: PLR0917 - fixtures.
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
