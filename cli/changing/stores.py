"""The two stores of a base, opened for looking."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.inspection.places import Place
    from partfile.filesystems.port import Store


@dataclass(frozen=True, slots=True)
class Stores:
    """Both, open."""

    base: Store
    checkpoints: Store


@contextmanager
def open_stores(place: Place) -> Iterator[Stores | None]:
    """Open them; None if no sink has checkpoints there.

    Raises:
        NotFound: The base is not there.
        ConfigError: It cannot be used as it is.
        StoreError: A store cannot be reached.
    """
    checkpoints = place.open_checkpoints()
    if checkpoints is None:
        yield None
        return
    with checkpoints, place.open_base() as base:
        yield Stores(base, checkpoints)
