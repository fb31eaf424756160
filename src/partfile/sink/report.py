"""What a sink tells of a checkpoint: how its progress is made, one log line, one callback."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.sink.progress import BatchProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.sink.coordinator import CommitReport, SinkCoordinator
    from partfile.sink.states import SubtaskSnapshot


logger = logging.getLogger("partfile")


def progress_of(
    uid: str,
    coordinator: SinkCoordinator,
    done: CommitReport,
    snapshots: Sequence[SubtaskSnapshot] = (),
    *,
    batch_id: int | None = None,
    rows: int = 0,
    added_bytes: int = 0,
    duplicates: int = 0,
) -> BatchProgress:
    """A checkpoint that has just completed.

    Args:
        uid: Of the sink.
        coordinator: Has completed it.
        done: What that did.
        snapshots: What subtasks acknowledged for it; none for a checkpoint between batches.
        batch_id: Spark's, if it is one of a batch.
        rows: Written for it.
        added_bytes: Added to part files for it.
        duplicates: Rows that were left out of it.
    """
    query, seen = coordinator.state.position.query, coordinator.state.position.seen_keys
    runs = seen.runs if seen is not None else ()
    return BatchProgress(
        uid=uid,
        query_id=query.query_id if query else None,
        batch_id=batch_id,
        checkpoint_id=done.checkpoint_id,
        rows=rows,
        bytes=added_bytes,
        parts_in_progress=sum(len(parts) for parts in coordinator.state.open.values()),
        parts_pending=done.owed,
        parts_finished=done.published,
        parts_abandoned=sum(part.abandoned for one in snapshots for part in one.pending)
        + sum(staging_file.abandoned for one in snapshots for staging_file in one.closed),
        parts_encoded=done.encoded + sum(len(one.encoded) for one in snapshots),
        staging_files_waiting=len(coordinator.state.closed),
        duplicates=duplicates,
        state_keys=sum(run.keys for run in runs),
        state_runs=len(runs),
        state_bytes=sum(run.handle.size_bytes for run in runs),
        commit_ms=done.commit_ms,
        publish_ms=done.publish_ms,
        encode_ms=done.encode_ms,
    )


def report(progress: BatchProgress, callback: Callable[[BatchProgress], None] | None) -> None:
    """Log the progress and hand it to the callback, whose failure never harms the stream."""
    logger.info(
        "%s: batch %s checkpoint %d%s: %d rows, %d bytes; parts %d in progress, %d pending, %d finished, %d abandoned, "
        "%d encoded, %d staging files waiting; %d duplicates, %d keys; "
        "restore %.0f ms, write %.0f ms, commit %.0f ms, publish %.0f ms, encode %.0f ms",
        progress.uid,
        progress.batch_id,
        progress.checkpoint_id,
        " (replayed)" if progress.replayed else "",
        progress.rows,
        progress.bytes,
        progress.parts_in_progress,
        progress.parts_pending,
        progress.parts_finished,
        progress.parts_abandoned,
        progress.parts_encoded,
        progress.staging_files_waiting,
        progress.duplicates,
        progress.state_keys,
        progress.restore_ms,
        progress.write_ms,
        progress.commit_ms,
        progress.publish_ms,
        progress.encode_ms,
    )
    if callback is not None:
        try:
            callback(progress)
        except Exception:
            logger.exception("%s: on_progress raised; the stream goes on", progress.uid)
