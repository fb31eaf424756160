"""Parts that completed checkpoints have promised to publish, as the newest link of each sink says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound, SnapshotCorrupt
from partfile.filesystems.opening import open_store
from partfile.sink import planning
from partfile.snapshot.chain import Chain
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.filesystems.port import PartHandle
    from partfile.snapshot.model import CheckpointMetadata

_MAX_LOOKS = 10


def pending_parts(checkpoint_url: str, storage_options: Mapping[str, object] | None = None) -> list[PartHandle]:
    """The pending parts of every sink whose checkpoints are in one directory.

    Each is vouched for at its valid length, so that its rows count already. Parts that are still open are not among
    them. A part may be finished by the time this returns.

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
    for _ in range(_MAX_LOOKS):
        _, link = Chain(storage).look()
        if link is None or storage.is_published(link.checkpoint_id):
            return []
        try:
            state = planning.restored_state(link.operators, storage.read_state)
        except SnapshotCorrupt:
            if _still_stands(storage, link):
                raise
            continue  # Its state was deleted because the sink has gone on.
        return [pending.part for pending in state.pending]
    raise NotFound(f"the checkpoints of {storage.job!r} change faster than they can be read", path=storage.directory)


def _still_stands(storage: CheckpointStorage, link: CheckpointMetadata) -> bool:
    found = storage.read_link(link.checkpoint_id)
    return found is not None and found.nonce == link.nonce
