"""What the tests of the model share."""

from __future__ import annotations

import pytest
from numbered_tokens import NumberedTokens

from partfile.stores import paths


@pytest.fixture
def numbered_tokens(monkeypatch: pytest.MonkeyPatch) -> NumberedTokens:
    """Tokens are drawn from here, so that a seed repeats a run to the byte."""
    drawn = NumberedTokens()
    monkeypatch.setattr(paths, "secrets", drawn)
    return drawn
