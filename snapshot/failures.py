"""How many checkpoints may fail before the job does: Flink's failure manager. Pure.

Source: Flink's ``CheckpointFailureManager``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class FailureReason(Enum):
    """Why a checkpoint was not completed."""

    STORAGE = "its data could not be written"
    ASYNC_PART = "the asynchronous part of a snapshot failed"
    DECLINED = "a task declined it"
    EXPIRED = "it took longer than the timeout"
    FINALIZE = "its metadata could not be written"
    SUBSUMED = "a later checkpoint was completed before it"
    TASK_FAILED = "a task failed"
    TASK_NOT_READY = "a task was not ready for it"
    TASK_CLOSING = "a task was closing"
    INPUT_ENDED = "the input ended"
    TRIGGER = "it could not be triggered"
    SUSPENDED = "periodic checkpoints were stopped"
    SHUTDOWN = "the coordinator was shut down"
    FENCED = "another coordinator has taken over"
    OUTCOME_UNKNOWN = "the store did not say whether it is complete"

    @property
    def is_counted(self) -> bool:
        """Whether it says that checkpoints do not work, rather than that this one was in the way of something."""
        return self in _COUNTED


_COUNTED = {
    FailureReason.STORAGE,
    FailureReason.ASYNC_PART,
    FailureReason.DECLINED,
    FailureReason.EXPIRED,
    FailureReason.FINALIZE,
}


@dataclass(frozen=True, slots=True)
class FailureTally:
    """Failures since the last completed checkpoint."""

    tolerable: int = 0
    """So many failures in a row are borne; the next one fails the job."""
    counted: frozenset[int] = frozenset()
    """Ids of the failed checkpoints, each counted once however many tasks report it."""
    last_completed: int = 0

    def failed(self, checkpoint_id: int, reason: FailureReason) -> tuple[FailureTally, bool]:
        """Count a failure, and say whether the job fails by it; then counting begins anew.

        A checkpoint older than the last completed one has failed too late to say anything.
        """
        if not reason.is_counted or checkpoint_id < self.last_completed:
            return self, False
        counted = self.counted | {checkpoint_id}
        is_over = len(counted) > self.tolerable
        return replace(self, counted=frozenset() if is_over else counted), is_over

    def completed(self, checkpoint_id: int) -> FailureTally:
        """A checkpoint was completed: earlier failures no longer count."""
        return replace(self, counted=frozenset(), last_completed=max(self.last_completed, checkpoint_id))
