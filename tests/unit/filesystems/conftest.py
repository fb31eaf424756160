"""What the tests of the local store share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.power_loss import PowerLossCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def new_model() -> Iterator[Callable[[], PowerLossCalls]]:
    """Makes models of what survives a power loss, one for each base, and releases them."""
    models: list[PowerLossCalls] = []

    def make() -> PowerLossCalls:
        models.append(PowerLossCalls())
        return models[-1]

    yield make
    for model in models:
        model.stop()
