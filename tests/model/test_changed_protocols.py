"""The model bites: with one rule of the protocol less, some schedule loses or doubles a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from model_job import violation_of
from model_mutations import MUTATIONS

if TYPE_CHECKING:
    from model_mutations import Mutation
    from numbered_tokens import NumberedTokens

SEEDS_TO_FIND_IT = 200


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_change_of_the_protocol_is_found(
    mutation: Mutation, numbered_tokens: NumberedTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one rule less some schedule breaks a promise: the model would see if the rule were not kept."""
    mutation(monkeypatch)
    for seed in [MUTATIONS[mutation], *range(SEEDS_TO_FIND_IT)]:
        numbered_tokens.begin("run")
        if violation_of(seed):
            return
    pytest.fail(f"{SEEDS_TO_FIND_IT} schedules have not found it")
