"""When the end of a job deletes its checkpoints. Pure. Source: Flink's ``CheckpointProperties``, as of 1.20."""

from __future__ import annotations

from enum import Enum


class JobEnd(Enum):
    """How a job ends, as far as its checkpoints are concerned."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"
    """It goes on elsewhere or later."""


class Retention(Enum):
    """What happens to the retained checkpoints when their job ends."""

    NEVER = "never"
    """They serve recovery only: any end deletes them."""
    ON_FAILURE = "on failure"
    """A failed job leaves them; any other end deletes them."""
    ON_CANCELLATION = "on cancellation"
    """Only a job that has finished its input deletes them; after all else the user does."""

    def keeps_after(self, end: JobEnd) -> bool:
        """Whether the checkpoints outlive this end."""
        return end in _KEPT[self]


_KEPT = {
    Retention.NEVER: frozenset[JobEnd](),
    Retention.ON_FAILURE: frozenset({JobEnd.FAILED}),
    Retention.ON_CANCELLATION: frozenset({JobEnd.CANCELLED, JobEnd.FAILED, JobEnd.SUSPENDED}),
}
