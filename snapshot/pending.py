"""A checkpoint between its trigger and its completion: which subtasks have acknowledged. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Self

from pydantic import Field

from partfile.filesystems.errors import OutcomeUnknown
from partfile.filesystems.port import Persisted
from partfile.snapshot.model import CheckpointId, SubtaskState


class AckResult(Enum):
    """What an acknowledgement did."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class PendingCheckpoint(Persisted):
    """One triggered checkpoint. Frozen: an acknowledgement makes a new one."""

    checkpoint_id: CheckpointId
    time_ms: int
    """The coordinator's batch time at the trigger, in milliseconds since the epoch."""
    submission: str
    """Nonce of this trigger; an acknowledgement that echoes another one belongs to an earlier try."""
    acknowledged: dict[int, SubtaskState] = Field(default_factory=dict)

    def acknowledge(self, ack: SubtaskState, submission: str) -> tuple[Self, AckResult]:
        """Take one subtask's acknowledgement; the first one counts, a second one changes nothing."""
        if submission != self.submission:
            return self, AckResult.UNKNOWN
        if ack.subtask in self.acknowledged:
            return self, AckResult.DUPLICATE
        return self.model_copy(update={"acknowledged": {**self.acknowledged, ack.subtask: ack}}), AckResult.ACCEPTED

    def subtasks(self) -> tuple[SubtaskState, ...]:
        """The acknowledged states in the order of their subtasks.

        Raises:
            OutcomeUnknown: The subtasks are not exactly 0 to n-1: somebody's rows are missing.
        """
        if sorted(self.acknowledged) != list(range(len(self.acknowledged))):
            raise OutcomeUnknown(
                f"subtasks {sorted(self.acknowledged)} acknowledged; expected 0 to n-1 without a gap",
                checkpoint_id=self.checkpoint_id,
            )
        return tuple(self.acknowledged[subtask] for subtask in sorted(self.acknowledged))
