"""Drivers, tasks, zombies, a timer, and the command line's recover and clean, under random schedules of their calls.

Every call of every process is a step; processes are killed, sleep for thousands of steps, and wake up. Some drivers
stall until the last one is done, when the checkpoints that they go on from are deleted (R7). Finished files stay, or a
consumer takes each at once (R5). A failure names its seed; ``ModelJob(seed).run()`` is the same run again, and so is
``--randomly-seed``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.schedules.job import ModelJob, violation_of
from support.schedules.mutations import CONSUMER_MUTATIONS, DISTINCT_MUTATIONS, MUTATIONS, STAGING_MUTATIONS

if TYPE_CHECKING:
    import random

    from support.schedules.mutations import Mutation
    from support.state.tokens import NumberedTokens


@pytest.mark.slow
@pytest.mark.fault("D1", "D2", "D3", "D9", "D10", "D14", "D16", "K17", "H4", "H6")
def test_no_schedule_loses_or_doubles_a_row(
    rng: random.Random, numbered_tokens: NumberedTokens, pytestconfig: pytest.Config, has_consumer: bool
) -> None:
    """At each step readers see committed rows once and nothing finished changes; in the end each row is there once."""
    for _ in schedules(10, pytestconfig, has_consumer):
        numbered_tokens.begin("run")
        assert violation_of(rng.getrandbits(32), has_consumer=has_consumer) is None


@pytest.mark.slow
@pytest.mark.fault("D1", "D2", "D3", "D9", "D10", "D14", "D16", "K17", "H4", "H6")
def test_no_schedule_loses_or_doubles_a_row_of_a_staging_file(
    rng: random.Random, numbered_tokens: NumberedTokens, pytestconfig: pytest.Config, has_consumer: bool
) -> None:
    """The same where parts are staged; nor does a staging file go that a retained checkpoint names as data."""
    for _ in schedules(7, pytestconfig, has_consumer):
        numbered_tokens.begin("run")
        assert violation_of(rng.getrandbits(32), is_staged=True, has_consumer=has_consumer) is None


@pytest.mark.slow
@pytest.mark.fault("D1", "D2", "D3", "D9", "D10", "D14", "K17", "H6")
def test_no_schedule_loses_or_doubles_a_row_that_comes_again(
    rng: random.Random, numbered_tokens: NumberedTokens, pytestconfig: pytest.Config, has_consumer: bool
) -> None:
    """The same where the sink deduplicates: each key is there once, and no run goes that a retained checkpoint names.

    A driver that misses a run is fenced.
    """
    for _ in schedules(6, pytestconfig, has_consumer):
        numbered_tokens.begin("run")
        assert violation_of(rng.getrandbits(32), is_distinct=True, has_consumer=has_consumer) is None


def schedules(few: int, config: pytest.Config, has_consumer: bool) -> range:
    """So many in every run, and half of that beside a consumer; with ``--long`` many."""
    return range(400 if config.getoption("long") else few // (1 + has_consumer))


@pytest.mark.slow
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


# The model bites: with one rule of the protocol less, some schedule loses or doubles a row.


SEEDS_TO_FIND_IT = 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.drawn(2)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_the_protocol_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule less some schedule breaks a promise: the model would see if the rule were not kept."""
    mutation(monkeypatch)
    assert finds_it([MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens)


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("mutation", STAGING_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_what_becomes_of_staging_files_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where parts are staged.

    With one rule less a row is lost or comes twice, or a staging file goes too early.
    """
    mutation(monkeypatch)
    assert finds_it([STAGING_MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens, is_staged=True)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("mutation", DISTINCT_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_what_becomes_of_keys_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule less a row comes twice, or a run goes that a retained checkpoint names."""
    mutation(monkeypatch)
    assert finds_it([DISTINCT_MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens, is_distinct=True)


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("mutation", CONSUMER_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_what_a_consumer_sees_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule less a row that a consumer has taken comes again, or a start stops for it."""
    mutation(monkeypatch)
    assert finds_it([CONSUMER_MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens, has_consumer=True)


def finds_it(seeds: list[int], numbered_tokens: NumberedTokens, **options: bool) -> bool:
    """Whether the schedule of one of these seeds breaks a promise."""
    for seed in seeds:
        numbered_tokens.begin("run")
        if violation_of(seed, **options):
            return True
    return False
