"""What the coordinator of a sink does at a checkpoint, and what it reports of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.snapshot.machine_state import CoordinatorRules
from partfile.snapshot.requests import RequestLimits

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

    @property
    def rules(self) -> CoordinatorRules:
        """Of these only the interval means something: whoever asks for a checkpoint waits for it, and fails with it."""
        # One checkpoint at a time: a start has one id to close.
        if self.interval_ms is None:
            return CoordinatorRules(spare_ids=0)
        # A pause as long as the interval makes it count from the end of a checkpoint, also of one that was asked for.
        limits = RequestLimits(min_pause_ms=self.interval_ms)
        return CoordinatorRules(limits=limits, interval_ms=self.interval_ms, spare_ids=0)


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What completing a checkpoint did."""

    checkpoint_id: int
    published: int
    """Parts that have their final names by now."""
    owed: int
    """Parts whose publication failed and is tried again."""
    commit_ms: float
    publish_ms: float
    given_up: int = 0
    """Parts and stages that were gone, and that nobody looks for again because ``accept_missing`` is set."""
    encoded: int = 0
    """Stages that were encoded for it, or for the checkpoint that came before it and rolled them."""
    encode_ms: float = 0.0

    def followed_by(self, later: CommitReport) -> CommitReport:
        """What this checkpoint and the one after it did together."""
        return CommitReport(
            checkpoint_id=later.checkpoint_id,
            published=self.published + later.published,
            owed=later.owed,
            commit_ms=self.commit_ms + later.commit_ms,
            publish_ms=self.publish_ms + later.publish_ms,
            given_up=self.given_up + later.given_up,
        )

    def giving_up(self, stages: int) -> CommitReport:
        """The same, with so many stages given up as well."""
        return replace(self, given_up=self.given_up + stages)
