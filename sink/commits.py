"""What the coordinator of a sink does at a checkpoint, and what it reports of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partfile.filesystems.port import Cut
    from partfile.sink.rolling import RollingPolicy


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """What the coordinator does at a checkpoint."""

    rolling: RollingPolicy
    cut: Cut
    publish_threads: int | None
    """None takes what suits the store."""
    accept_missing: bool
    retained_checkpoints: int
    writer: str
    """Version of partfile, written into every checkpoint."""
    interval_ms: int | None = None
    """From the end of a checkpoint to the periodic one after it; None takes none."""


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What completing a checkpoint did."""

    checkpoint_id: int
    published: int
    owed: int
    """Parts whose publication failed and is tried again."""
    commit_ms: float
    publish_ms: float
