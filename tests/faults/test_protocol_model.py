"""The model of the commit protocol: no schedule breaks a promise, and with one rule less some schedule does.

The model is not partfile, so no test here holds a row of docs/FAULTS.md. ``test_schedules.py`` runs partfile itself
under fewer schedules. A failure names its seed and the last steps; ``violation_of(seed)`` is the same run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.schedules.protocol import Mutation, World, violation_of

if TYPE_CHECKING:
    import random


SCHEDULES = 2_000
LONG_SCHEDULES = 50_000


def test_no_schedule_of_the_model_breaks_a_promise(rng: random.Random, pytestconfig: pytest.Config) -> None:
    """Readers or a consumer get each row once, as a checkpoint promised it; nothing finished changes or goes."""
    for _ in range(LONG_SCHEDULES if pytestconfig.getoption("long") else SCHEDULES):
        if violation := violation_of(rng.getrandbits(32)):
            pytest.fail(violation, pytrace=False)


# The model bites: with one rule of the protocol less, some schedule breaks a promise.


SEEDS_TO_FIND_IT = 400

MUTATIONS = {
    Mutation.NO_FENCE: 13,
    Mutation.NO_PREDECESSOR_CHECK: 19,
    Mutation.TAKEOVER_COMES_LAST: 0,
    Mutation.PUBLISH_EARLY: 0,
    Mutation.OWED_PARTS_FORGOTTEN: 0,
    Mutation.REPLAY_NOT_RECOGNISED: 0,
    Mutation.NO_LOCK: 26,
    Mutation.NO_LENGTH_CHECK: 620,
    Mutation.NO_INODE_CHECK: 116,
    Mutation.LEFT_PARTS_FORGOTTEN: 0,
    Mutation.RESUME_AFTER_CRASH: 12,
    Mutation.CUT_WITHOUT_LEASE: 26,
    Mutation.COPY_KEEPS_ORIGINAL: 80,
    Mutation.COPY_IS_SHOWN_FIRST: 112,
    Mutation.COPY_BY_ANY_DRIVER: 112,
    Mutation.COPIER_STOPS_BESIDE_A_RIVAL: 440,
    Mutation.NAMES_COLLIDE: 1,
    Mutation.REPLACE_FINISHED: 34,
    Mutation.PUBLISH_LEAVES_SOURCE: 134,
    Mutation.FIRST_MISS_IS_LOSS: 6154,
    Mutation.PUBLISHED_MARK_FORGOTTEN: 16,
    Mutation.FINISHED_STAYS_IN_STATE: 16,
}
"""Each with the first seed whose schedule finds it, as the model is; any other may when that changes."""


@pytest.mark.parametrize("mutation", Mutation, ids=lambda mutation: mutation.value)
def test_a_change_of_the_protocol_is_found(mutation: Mutation) -> None:
    """With one rule less some schedule breaks a promise that the same schedule keeps by all rules."""
    seed = first_seed(mutation)
    assert seed is not None, f"none of {SEEDS_TO_FIND_IT} schedules finds it, nor does seed {MUTATIONS[mutation]}"
    assert violation_of(seed) is None


def first_seed(mutation: Mutation) -> int | None:
    """The first of the seeds whose schedule finds a mutation, the known one before all others."""
    seeds = (MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT))
    return next((seed for seed in seeds if violation_of(seed, mutation)), None)


def test_a_violation_names_its_seed_and_the_last_steps() -> None:
    """The schedule can be read in the message, with the names of drivers, calls and files."""
    violation = violation_of(0, Mutation.PUBLISH_EARLY)
    assert violation is not None
    first, *steps = violation.splitlines()
    assert first.startswith("seed 0: ")
    assert first.endswith("the last steps:")
    assert steps[-1].startswith("driver 1: rename_to_new(")


def test_a_seed_repeats_a_schedule() -> None:
    """The same steps, to the last one; so a violation can be looked at again."""
    worlds = [World(7, shown=100) for _ in range(2)]
    for world in worlds:
        world.run()
    assert worlds[0].steps == worlds[1].steps
    assert worlds[0].steps
