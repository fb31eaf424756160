"""What the tests of the local store and of the one over fsspec share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest

from partfile.testing.power_loss import PowerLossCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[str]:
    """A base in memory that is of this test alone."""
    yield f"memory:/{tmp_path}"
    fsspec.filesystem("memory").store.clear()
