"""The report of each batch: one log line and one callback."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger("partfile")


class BatchProgress(BaseModel):
    """The result of one batch, or of one checkpoint between batches. Durations in milliseconds."""

    model_config = ConfigDict(frozen=True)

    uid: str
    query_id: str | None
    batch_id: int | None
    """None for a checkpoint of the timer's or of the clean end."""
    checkpoint_id: int
    replayed: bool = False
    """The batch had been completed before; nothing was written."""
    rows: int = 0
    bytes: int = 0
    """Bytes added to part files."""
    parts_in_progress: int = 0
    parts_pending: int = 0
    """Parts whose publication failed and is tried again."""
    parts_finished: int = 0
    """Parts published by this checkpoint."""
    parts_abandoned: int = 0
    """Parts that a task had to leave alone, staging files among them; they are cut or encoded at their valid length,
    published and replaced by new ones."""
    parts_encoded: int = 0
    """Staged parts that have become files, by the tasks of the batch or after it."""
    staging_files_waiting: int = 0
    """Closed staging files that are not encoded yet, or not for each of their buckets; the log says why."""
    restore_ms: float = 0.0
    write_ms: float = 0.0
    commit_ms: float = 0.0
    publish_ms: float = 0.0
    encode_ms: float = 0.0
    """Of what is encoded after the batch, or between two; what its own tasks encode is in ``write_ms``."""


def report(progress: BatchProgress, callback: Callable[[BatchProgress], None] | None) -> None:
    """Log the progress and hand it to the callback, whose failure never harms the stream."""
    logger.info(
        "%s: batch %s checkpoint %d%s: %d rows, %d bytes; parts %d in progress, %d pending, %d finished, %d abandoned, "
        "%d encoded, %d staging files waiting; "
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
