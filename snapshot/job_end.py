"""What becomes of a job's checkpoints when the job ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.snapshot import layout

if TYPE_CHECKING:
    from partfile.snapshot.retention import JobEnd, Retention
    from partfile.snapshot.storage import CheckpointStorage


def end_job(storage: CheckpointStorage, end: JobEnd, retention: Retention) -> list[int]:
    """Delete the checkpoints of a job that has ended, unless its policy keeps them.

    Oldest first and each link before its files, so that whatever a crash leaves can be restored or deleted again; also
    what unfinished checkpoints left. Files that tasks own stay.

    Shut the coordinator down before. One that still runs is fenced at its next checkpoint, but the link that it creates
    to find that out stays, and a later start takes it for the newest: then end the job again.

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
    deleted = sorted(number for number in map(layout.checkpoint_id_of, names) if number is not None)
    for checkpoint_id in deleted:
        # A mark without its link would say that the link was lost.
        storage.store.delete_file(storage.path(layout.published_path(checkpoint_id)))
        storage.delete_checkpoint(checkpoint_id)
    storage.store.delete_directory(storage.path(layout.SHARED))
    return deleted
