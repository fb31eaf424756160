"""The state that the newest link of a sink holds, read while the sink may be running. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import NotReady, SnapshotCorrupt
from partfile.sink import planning
from partfile.snapshot.chain import Chain

if TYPE_CHECKING:
    from partfile.sink.planning import SinkSnapshot
    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.storage import CheckpointStorage

_MAX_LOOKS = 10


class NewestState(NamedTuple):
    """What is in force."""

    newest: CheckpointMetadata
    """The newest link, perhaps a tombstone."""
    link: CheckpointMetadata
    """The newest link that holds state."""
    state: SinkSnapshot
    is_published: bool
    """Whether its pending parts have their final names, so that nobody looks for them again."""

    @property
    def owes_nothing(self) -> bool:
        """Whether no part waits for its publication, and no stage for its encoding."""
        return (self.is_published or not self.state.pending) and not self.state.rolled


def newest_state(storage: CheckpointStorage) -> NewestState | None:
    """The state of the newest link; None if there has never been any.

    Args:
        storage: The checkpoints of the sink.

    Raises:
        SnapshotCorrupt: It cannot be read; never the one before it (S12).
        SnapshotVersionError: A newer partfile wrote it.
        NotReady: The checkpoints change faster than they can be read.
    """
    for _ in range(_MAX_LOOKS):
        newest, link = Chain(storage).look()
        if newest is None or link is None:
            return None
        is_published = storage.is_published(link.checkpoint_id)
        state = state_of(storage, link)
        if state is not None:
            return NewestState(newest, link, state, is_published)
    raise NotReady(f"the checkpoints of {storage.job!r} change faster than they can be read", path=storage.directory)


def state_of(storage: CheckpointStorage, link: CheckpointMetadata) -> SinkSnapshot | None:
    """The state that a link holds; None if it was deleted meanwhile because the sink has gone on.

    Raises:
        SnapshotCorrupt: It cannot be read although the link is there.
    """
    try:
        return planning.restored_state(link.operators, storage.read_state)
    except SnapshotCorrupt:
        found = storage.read_link(link.checkpoint_id)
        if found is not None and found.nonce == link.nonce:
            raise
        return None
