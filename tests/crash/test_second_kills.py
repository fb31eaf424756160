"""Kill at every call, then the recovery at some of its calls, with ``--long`` at each, on a local directory."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest
from crash_harness import CrashHarness
from crash_scenarios import OTHERS, Scenario, restore_that_cuts, stream
from crash_worlds import Camera
from life_cycle import in_child
from posix_worlds import Local

from partfile.testing.faults import KillAt

if TYPE_CHECKING:
    import random

    from crash_harness import Choose
    from numbered_tokens import NumberedTokens


@pytest.mark.drawn(3)
@pytest.mark.parametrize("scenario", [stream("auto"), restore_that_cuts("truncate"), *OTHERS], ids=lambda one: one.name)
@pytest.mark.fault("K1", "K2", "K3", "K5", "K6", "K7", "K9", "K10", "K11", "K11b", "K13", "K15", "K16", "S5", "S8")
def test_two_kills_anywhere_lose_and_double_nothing(
    scenario: Scenario, numbered_tokens: NumberedTokens, second: Choose, is_long: bool
) -> None:
    """At each moment readers see committed rows once; after each recovery all that was acknowledged; in the end all."""
    explored = CrashHarness(scenario, Local(), numbered_tokens, second=second).explore()
    # No moment is the same as another, so these are at least as many kills.
    assert explored.moments > len(explored.calls) // 2 > 20
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
