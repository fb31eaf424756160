"""What a Spark driver tells of a batch, a replay and a checkpoint between batches. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.sink.progress import BatchProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.sink.commits import CommitReport
    from partfile.sink.coordinator import SinkCoordinator
    from partfile.sink.spark.task import Acknowledgement
    from partfile.sink.states import QueryPosition, SubtaskSnapshot


def of_commit(uid: str, coordinator: SinkCoordinator, done: CommitReport) -> BatchProgress:
    """A checkpoint that has just completed, by whatever made it."""
    query = coordinator.state.position.query
    return BatchProgress(
        uid=uid,
        query_id=query.query_id if query else None,
        batch_id=None,
        checkpoint_id=done.checkpoint_id,
        parts_in_progress=sum(len(parts) for parts in coordinator.state.open.values()),
        parts_pending=done.owed,
        parts_finished=done.published,
        commit_ms=done.commit_ms,
        publish_ms=done.publish_ms,
        parts_encoded=done.encoded,
        stages_waiting=len(coordinator.state.rolled),
        encode_ms=done.encode_ms,
    )


def of_batch(
    told: BatchProgress,
    batch: QueryPosition,
    acknowledged: Sequence[Acknowledgement],
    snapshots: Sequence[SubtaskSnapshot],
) -> BatchProgress:
    """The same checkpoint as one of a batch, with what its tasks did."""
    counts = {
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
        "rows": sum(one.rows for one in acknowledged),
        "bytes": sum(one.bytes for one in acknowledged),
        "parts_abandoned": sum(map(_abandoned, snapshots)),
        "parts_encoded": told.parts_encoded + sum(len(one.spent) for one in snapshots),
    }
    return told.model_copy(update=counts)


def _abandoned(snapshot: SubtaskSnapshot) -> int:
    return sum(part.abandoned for part in snapshot.pending) + sum(stage.abandoned for stage in snapshot.rolled)


def of_replay(uid: str, batch: QueryPosition, coordinator: SinkCoordinator, done: CommitReport | None) -> BatchProgress:
    """A batch that had been completed before: nothing was written, perhaps something owed was published."""
    return BatchProgress(
        uid=uid,
        query_id=batch.query_id,
        batch_id=batch.batch_id,
        checkpoint_id=coordinator.newest_checkpoint_id,
        replayed=True,
        parts_finished=done.published if done else 0,
    )
