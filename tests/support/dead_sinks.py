"""Sinks that died at one place of their life, for those who look at what they left; see also ``life_cycle``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from life_cycle import batch, in_child, make_sink

from partfile.stores.base import PartHandle

if TYPE_CHECKING:
    from pathlib import Path

_TOKEN = "0123456789abcdef" * 2


class Dying:
    """In place of what publishes."""

    def publish(self, *_: object) -> None:
        """The process ends here, without a word."""
        os._exit(0)


def orphan_of(chain: str, number: int) -> PartHandle:
    """A part of this chain that no checkpoint has heard of."""
    name = f"part-{chain}-0-{number}.txt"
    return PartHandle(
        bucket="bucket=b0",
        name=name,
        in_progress=f"_{name}.{_TOKEN}.in-progress",
        pending=f"_{name}.{_TOKEN}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=0,
    )


def crash_when_promised(base: Path, **options: Any) -> None:
    """A checkpoint is complete, and its process is killed before it publishes."""

    def begin() -> None:
        with make_sink(base, **options).local() as out:
            out._runtime.coordinator._publisher = Dying()  # type: ignore[assignment]
            out.write(batch(0, 8), position=8)
            out.checkpoint()

    assert in_child(begin) == 0
