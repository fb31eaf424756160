"""Parts that completed checkpoints have promised to publish, as the newest link of each sink says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound
from partfile.filesystems.opening import open_store
from partfile.sink.newest_state import newest_state
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.filesystems.port import PartHandle


def pending_parts(checkpoint_url: str, storage_options: Mapping[str, object] | None = None) -> list[PartHandle]:
    """The pending parts of every sink whose checkpoints are in one directory.

    Each is vouched for at its valid length, so that its rows count already. Parts that are still open are not among
    them, nor stages: only the file that a stage has been encoded into. A part may be finished by the time this returns.

    Args:
        checkpoint_url: The directory of checkpoints, which holds one directory a sink.
        storage_options: What the store's client needs; none for local files.

    Raises:
        NotFound: The directory is not there.
        SnapshotCorrupt: A newest link cannot be read; never the one before it (S12).
    """
    try:
        store = open_store(checkpoint_url, storage_options, create_base=False)
    except NotFound as error:
        raise NotFound(
            f"there are no checkpoints at {checkpoint_url!r}, so nobody knows which parts are pending",
            hint="Pass checkpoint_dir= as the sink has it, or read finished files alone.",
            path=checkpoint_url,
        ) from error
    with store:
        jobs = sorted(store.list_names(""))
        return [part for job in jobs for part in _pending_of(CheckpointStorage(store, job))]


def _pending_of(storage: CheckpointStorage) -> list[PartHandle]:
    held = newest_state(storage)
    return [] if held is None or held.is_published else [pending.part for pending in held.state.pending]
