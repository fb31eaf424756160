"""Links as values: the one that closes an id, and one that follows another. Pure but for the nonce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from partfile.snapshot.damage import DamagedEnd
    from partfile.snapshot.model import CheckpointMetadata


def tombstone_of(link: CheckpointMetadata, **changes: int) -> CheckpointMetadata:
    """A link that closes an id, otherwise as another one.

    Args:
        link: The other one.
        **changes: Further fields that differ.
    """
    return link.model_copy(update={"kind": "tombstone", "nonce": new_token(), "operators": {}, **changes})


def linked_to(predecessor: CheckpointMetadata | DamagedEnd | None, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """A link as the successor of another one, in the same chain.

    Args:
        predecessor: The other one; None is the beginning of a chain.
        metadata: The link.
    """
    if predecessor is None:
        return metadata
    return metadata.model_copy(update={"predecessor": predecessor.ref, "chain_id": predecessor.chain_id})
