"""When a checkpoint is deleted: by the end of its job, and by newer checkpoints. Pure.

Source: Flink's ``CheckpointProperties`` and ``CheckpointSubsumeHelper``, as of 1.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@dataclass(frozen=True, slots=True)
class Completed:
    """A completed checkpoint, or a savepoint of the same row."""

    checkpoint_id: int
    is_savepoint: bool = False
    ends_the_job: bool = False
    """A savepoint after which nothing more will be written."""


def subsumed(completed: Sequence[Completed], retained: int) -> list[Completed]:
    """Which of these have to go, oldest first, so that ``retained`` are left.

    Never the newest. Savepoints leave the row whenever it is too long (their files stay: a savepoint is the user's).
    The newest checkpoint that is none stays too, since later ones may refer to its files, unless the job has ended with
    a savepoint.

    Args:
        completed: Oldest first.
        retained: How many are to be left, at least 1.
    """
    if not completed:
        return []
    newest = completed[-1]
    checkpoints = [one for one in completed if not one.is_savepoint]
    needed = checkpoints[-1] if checkpoints and not newest.ends_the_job else None
    surplus = len(completed) - max(1, retained)
    going: list[Completed] = []
    for one in completed[:-1]:
        if len(going) >= surplus:
            break
        if one is not needed:
            going.append(one)
    return going
