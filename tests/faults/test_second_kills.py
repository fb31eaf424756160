"""Kill at every call, then the recovery at some of its calls, with ``--long`` at each."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.testing.faults import KillAt
from support.crash.harness import CrashHarness
from support.crash.scenarios import OTHERS, Scenario, restore_that_cuts, stream
from support.crash.worlds import Camera, Local
from support.life_cycle import in_child

if TYPE_CHECKING:
    import random

    from partfile.stores.base import Cut
    from support.crash.harness import Choose
    from support.tokens import NumberedTokens


# Kill at every call, then the recovery at some of its calls, with ``--long`` at each, on a local directory.


@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", [stream("auto"), restore_that_cuts("truncate"), *OTHERS], ids=lambda one: one.name)
@pytest.mark.fault("K1", "K2", "K3", "K5", "K6", "K7", "K9", "K10", "K11", "K11b", "K13", "K15", "K16", "F5", "F8")
def test_two_kills_anywhere_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    explored = CrashHarness(scenario, Local(), numbered_tokens, second=second).explore()
    # No moment is the same as another, so these are at least as many kills.
    assert explored.moments >= len(explored.calls) // 3 > 20
    assert explored.second_moments > (10 * explored.moments if is_long else explored.moments // 4)


@pytest.mark.parametrize("scenario", [stream("auto"), *OTHERS[:1]], ids=lambda one: one.name)
def test_a_picture_is_what_a_real_kill_leaves(
    scenario: Scenario, numbered_tokens: NumberedTokens, rng: random.Random
) -> None:
    """SIGKILL in a process of its own leaves, to the byte, one of the pictures that the camera takes."""
    numbered_tokens.begin("life")
    world = Local().world()
    camera = Camera(world)
    scenario.life(camera.process())
    world.close()
    pictures = {moment.picture for moment in camera.moments}
    for number in rng.sample(range(1, len(camera.calls) + 1), 8):
        numbered_tokens.begin("life")
        world = Local().world()
        killer = KillAt(number, "after", only=world.changing_calls)
        code = in_child(partial(scenario.life, world.process(killer)))
        assert code == -signal.SIGKILL, f"call {number}"
        assert world.now() in pictures, f"call {number}, {camera.calls[number - 1]}"
        world.close()


# Kill at every call, then the recovery at some of its calls or all, where parts are copied or get sidecars.


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", ["rewrite", "valid-length"])
@pytest.mark.fault("K3", "K14", "K16")
def test_two_kills_anywhere_lose_and_double_nothing_where_parts_are_copied(
    cut: Cut, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """As with parts that are cut in place; a sidecar is there before its file is."""
    explored = CrashHarness(restore_that_cuts(cut), Local(), numbered_tokens, second=second).explore()
    assert explored.moments >= len(explored.calls) // 3 > 20
    assert explored.second_moments > (10 * explored.moments if is_long else explored.moments // 4)
