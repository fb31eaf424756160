"""Kill at every call, then the recovery at some of its calls or all, where parts are copied or get sidecars."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness
from crash_scenarios import restore_that_cuts
from posix_worlds import Local

if TYPE_CHECKING:
    from crash_harness import Choose
    from numbered_tokens import NumberedTokens

    from partfile.stores.base import Cut


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", ["rewrite", "valid-length"])
@pytest.mark.fault("K3", "K14", "K16")
def test_two_kills_anywhere_lose_and_double_nothing(
    cut: Cut, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """As with parts that are cut in place; a sidecar is there before its file is."""
    explored = CrashHarness(restore_that_cuts(cut), Local(), numbered_tokens, second=second).explore()
    assert explored.moments > len(explored.calls) // 2 > 20
    assert explored.second_moments > (10 * explored.moments if is_long else explored.moments // 4)
