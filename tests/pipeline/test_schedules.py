"""Seeded schedules of a small dataflow: deliveries, triggers, late and cancelled barriers, timeouts, ends, crashes.

What must hold is said in ``support.pipeline.dataflow``. A failure names its seed and rules;
``Dataflow(seed, rules).run()`` is the same run again, and so is ``--randomly-seed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.pipeline.barriers import BarrierRules
from support.pipeline.dataflow import ALIGNED, TRACKED, UNALIGNED, Dataflow, alternating

if TYPE_CHECKING:
    import random

SCHEDULES, LONG = 400, 20_000
"""Of each case: in every run, and with ``--long``, where six cases make 120 000."""

RULES = {
    "aligned": ALIGNED,
    "aligned, an end aborts": BarrierRules(end_aborts=True),
    "unaligned": UNALIGNED,
    "after a short timeout": alternating(4),
    "after a long timeout": alternating(25),
    "tracked": TRACKED,
}


@pytest.mark.item("UC-10", "UC-11", "UC-13", "UC-16", "UC-32", "SS-01")
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_no_schedule_loses_or_doubles_a_record(
    rules: BarrierRules, rng: random.Random, pytestconfig: pytest.Config
) -> None:
    """Channel state is exactly what was under way, no channel waits in vain, and each record is counted as promised."""
    schedules = LONG if pytestconfig.getoption("--long") else SCHEDULES
    crashes = completed = persisted = 0
    for _ in range(schedules):
        run = Dataflow(rng.getrandbits(32), rules).run()
        crashes += run.crashes
        completed += len(run.completed_ids)
        persisted += run.persisted
    # Schedules in which nothing happens would prove nothing.
    assert crashes > schedules / 3
    assert completed > schedules / 3
    assert (persisted > schedules / 20) is (rules.is_unaligned)


def test_the_same_seed_draws_the_same_schedule(rng: random.Random) -> None:
    """And another one another."""
    seed = rng.getrandbits(32)
    for rules in RULES.values():
        assert Dataflow(seed, rules).run().history == Dataflow(seed, rules).run().history
    assert len({Dataflow(seed + more, UNALIGNED).run().history for more in range(20)}) > 10


def test_at_least_once_doubles_records_and_exactly_once_does_not(rng: random.Random) -> None:
    """The promises differ, so the check of exactly once would find what is doubled."""
    runs = [Dataflow(rng.getrandbits(32), TRACKED).run() for _ in range(SCHEDULES)]
    assert any(len(run.by_name["sink"].seen) > len({*run.by_name["sink"].seen}) for run in runs)
