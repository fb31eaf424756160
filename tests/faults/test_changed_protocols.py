"""The model bites: with one rule of the protocol less, some schedule loses or doubles a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.schedules.job import violation_of
from support.schedules.mutations import MUTATIONS, STAGING_MUTATIONS

if TYPE_CHECKING:
    from support.schedules.mutations import Mutation
    from support.tokens import NumberedTokens


SEEDS_TO_FIND_IT = 200


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_the_protocol_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule less some schedule breaks a promise: the model would see if the rule were not kept."""
    mutation(monkeypatch)
    assert finds_it([MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens, is_staged=False)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mutation", STAGING_MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_what_becomes_of_staging_files_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where parts are staged.

    With one rule less a row is lost or comes twice, or a staging file goes too early.
    """
    mutation(monkeypatch)
    assert finds_it([STAGING_MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)], numbered_tokens, is_staged=True)


def finds_it(seeds: list[int], numbered_tokens: NumberedTokens, *, is_staged: bool) -> bool:
    """Whether the schedule of one of these seeds breaks a promise."""
    for seed in seeds:
        numbered_tokens.begin("run")
        if violation_of(seed, is_staged=is_staged):
            return True
    return False
