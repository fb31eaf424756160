"""When the end of a job deletes its checkpoints. Pure. Source: Flink's ``CheckpointProperties``, as of 1.20."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from partfile.snapshot import documents

if TYPE_CHECKING:
    from partfile.snapshot.storage import CheckpointStorage


class JobEnd(Enum):
    """The ends of a job, as far as its checkpoints are concerned."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"
    """It goes on elsewhere or later."""


class Retention(Enum):
    """The fate of the retained checkpoints when their job ends."""

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


def end_job(storage: CheckpointStorage, end: JobEnd, retention: Retention) -> list[int]:
    """Delete the checkpoints of a job that has ended, unless its policy keeps them.

    Oldest first, and ``_metadata`` before the other files, so that whatever a crash leaves can be restored or deleted
    again. Files of unfinished checkpoints go too. Files that tasks own stay.

    Shut the coordinator down before. One that still runs is fenced at its next checkpoint, but the checkpoint that it
    creates to find that out stays, and a later start takes it for the newest: then end the job again.

    Args:
        storage: The job's checkpoints.
        end: How the job ended.
        retention: The job's policy.

    Returns:
        The ids whose directories were deleted.

    Source: Flink's ``CheckpointProperties``, as of 1.20.
    """
    if retention.keeps_after(end):
        return []
    names = storage.store.list_names(storage.directory)
    deleted = sorted(number for number in map(documents.checkpoint_id_of, names) if number is not None)
    for checkpoint_id in deleted:
        # A `_published` without its `_metadata` would say that the checkpoint was lost.
        storage.store.delete_file(storage.path(documents.published_path(checkpoint_id)))
        storage.delete_checkpoint(checkpoint_id)
    storage.store.delete_directory(storage.path(documents.SHARED))
    return deleted
