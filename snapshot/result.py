"""What a snapshot comes to: the handle that the checkpoint names, and perhaps a local copy of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partfile.snapshot.model import StateHandle


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """Handles of one piece of state. Source: Flink's ``SnapshotResult``, as of 1.20.

    Raises:
        ValueError: There is a local copy of nothing.
    """

    primary: StateHandle | None = None
    """What the coordinator gets; None if there is no state."""
    local: StateHandle | None = None
    """A copy on this machine, for a faster restore; the coordinator never sees it."""

    def __post_init__(self) -> None:
        if self.local is not None and self.primary is None:
            raise ValueError("a snapshot result has a local handle without a primary one")


EMPTY = SnapshotResult()
"""The result of a snapshot without state."""
