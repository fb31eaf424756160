"""The end of a chain whose newest state cannot be read: what is known of it all the same (S12)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import FileTooLarge, NotFound, SnapshotCorrupt
from partfile.snapshot import layout
from partfile.snapshot.codec import MAX_DOCUMENT_BYTES
from partfile.snapshot.model import LinkRef

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.storage import CheckpointStorage

_DAMAGED = "damaged-"
_OVERSIZED = f"{_DAMAGED}oversized"
"""More than any link holds is not read, and no coordinator ever writes it."""


@dataclass(frozen=True, slots=True)
class DamagedEnd:
    """What a start that is told to go back to an older checkpoint knows of what came later."""

    ref: LinkRef
    """The newest link; one that cannot be read is known by a digest of its bytes in place of its nonce."""
    chain_id: str
    """As the readable links have it."""
    generation: int
    """No link of the chain has a higher one: each raises it by one at most."""
    reserved_through: int
    """Beyond every id that its coordinator is known to have triggered, or may trigger if it reserves as others do."""
    holders: frozenset[int]
    """The ids of the readable links that hold state."""
    error: SnapshotCorrupt
    """Why the newest state cannot be read."""

    @property
    def checkpoint_id(self) -> int:
        """Id of the newest link."""
        return self.ref.checkpoint_id


def damaged_end(
    storage: CheckpointStorage, ids: Sequence[int], error: SnapshotCorrupt, lost: int = 0
) -> DamagedEnd | None:
    """What is known of a chain whose newest state cannot be read; None if a link vanished while it was looked at.

    Args:
        storage: The job's checkpoints.
        ids: The ids that have a link, ascending.
        error: Why the newest state cannot be read.
        lost: The id of a later link that was deleted; 0 if none was.

    Raises:
        SnapshotCorrupt: That error, if no readable link tells of the chain, or two tell of different ones.
        SnapshotVersionError: A newer partfile wrote a link, which is no damage.
    """
    readable: dict[int, CheckpointMetadata] = {}
    marks: dict[int, str] = {}
    for checkpoint_id in ids:
        try:
            link = storage.read_link(checkpoint_id)
        except SnapshotCorrupt:
            marks[checkpoint_id] = _mark(storage, checkpoint_id)
        else:
            if link is None:
                return None
            readable[checkpoint_id] = link
    if len({link.chain_id for link in readable.values()}) != 1 or max(*ids, lost) > layout.MAX_CHECKPOINT_ID:
        raise error
    if not all(marks.values()):
        return None
    newest, known = ids[-1], readable[max(readable)]
    return DamagedEnd(
        ref=LinkRef(checkpoint_id=newest, nonce=marks[newest]) if newest in marks else readable[newest].ref,
        chain_id=known.chain_id,
        generation=known.generation + max(newest, lost) - known.checkpoint_id,
        reserved_through=readable[newest].reserved_through
        if newest in readable and not lost
        else _reserved(storage, max(newest, lost), readable, error),
        holders=frozenset(number for number, link in readable.items() if link.holds_state),
        error=error,
    )


def _reserved(
    storage: CheckpointStorage, newest: int, readable: Mapping[int, CheckpointMetadata], error: SnapshotCorrupt
) -> int:
    """How far the damaged newest link reserves ids, as far as the others and the directories tell."""
    ahead = max(link.ids_ahead for link in readable.values())
    names = storage.store.list_names(storage.directory)
    tried = [number for number in map(layout.checkpoint_id_of, names) if number is not None]
    highest = max(newest + ahead, *tried)
    if highest > newest + layout.MAX_IDS_AHEAD:
        # No coordinator has come so far: somebody else made that directory.
        raise error
    return highest


def is_of_damage(ref: LinkRef) -> bool:
    """Whether a reference knows a link by its damaged bytes."""
    return ref.nonce.startswith(_DAMAGED)


def stands(storage: CheckpointStorage, ref: LinkRef) -> bool:
    """Whether a link is still there as it was known, by its nonce or by the digest of its damaged bytes.

    Raises:
        SnapshotCorrupt: It could be read, and cannot be any more.
    """
    if is_of_damage(ref):
        return _mark(storage, ref.checkpoint_id) == ref.nonce
    found = storage.read_link(ref.checkpoint_id)
    return found is not None and found.nonce == ref.nonce


def _mark(storage: CheckpointStorage, checkpoint_id: int) -> str:
    """What a damaged link is known by; empty if it is gone."""
    try:
        data = storage.store.read_file(storage.path(layout.metadata_path(checkpoint_id)), MAX_DOCUMENT_BYTES)
    except NotFound:
        return ""
    except FileTooLarge:
        return _OVERSIZED
    return f"{_DAMAGED}{hashlib.sha256(data).hexdigest()}"
