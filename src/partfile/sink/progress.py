"""The report of each batch: one log line and one callback."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


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
    duplicates: int = 0
    """Rows that were left out because their key had been seen, or because they have none (``on_null="drop"``)."""
    state_keys: int = 0
    """Keys that the checkpoint remembers; one that has expired counts until its run falls."""
    state_runs: int = 0
    """Runs that hold them."""
    state_bytes: int = 0
    """Bytes of those runs."""
    restore_ms: float = 0.0
    write_ms: float = 0.0
    commit_ms: float = 0.0
    publish_ms: float = 0.0
    encode_ms: float = 0.0
    """Of what is encoded after the batch, or between two; what its own tasks encode is in ``write_ms``."""
