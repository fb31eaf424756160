"""Drivers, tasks, zombies, a timer, and the command line's recover and clean, under random schedules of their calls.

Every call of every process is a step; processes are killed, sleep for thousands of steps, and wake up. A failure names
its seed; ``ModelJob(seed).run()`` is the same run again, and so is ``--randomly-seed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.schedules.job import ModelJob, violation_of

if TYPE_CHECKING:
    import random

    from support.tokens import NumberedTokens


@pytest.mark.fault("D1", "D2", "D3", "D9", "D10", "D14", "D16", "K17", "H4", "H6")
def test_no_schedule_loses_or_doubles_a_row(
    rng: random.Random, numbered_tokens: NumberedTokens, pytestconfig: pytest.Config
) -> None:
    """At each step readers see committed rows once and nothing finished changes; in the end each row is there once."""
    for _ in range(400 if pytestconfig.getoption("long") else 10):
        numbered_tokens.begin("run")
        assert violation_of(rng.getrandbits(32)) is None


@pytest.mark.fault("D1", "D2", "D3", "D9", "D10", "D14", "D16", "K17", "H4", "H6")
def test_no_schedule_loses_or_doubles_a_row_of_a_staging_file(
    rng: random.Random, numbered_tokens: NumberedTokens, pytestconfig: pytest.Config
) -> None:
    """The same where parts are staged; nor does a staging file go that a retained checkpoint names as data."""
    for _ in range(400 if pytestconfig.getoption("long") else 7):
        numbered_tokens.begin("run")
        assert violation_of(rng.getrandbits(32), is_staged=True) is None


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_seed_repeats_a_run(numbered_tokens: NumberedTokens, *, is_staged: bool) -> None:
    """The same steps, to the last one; so a violation can be looked at again."""
    steps = []
    for _ in range(2):
        numbered_tokens.begin("run")
        job = ModelJob(7, is_staged=is_staged)
        files = job.run()
        steps.append((job.schedule.steps, job.drivers, job.ends, files))
    assert steps[0] == steps[1]
