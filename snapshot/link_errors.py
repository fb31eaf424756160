"""What a coordinator is told whose link does not count, or of whose link nobody knows whether it does."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import Fenced, OutcomeUnknown, SnapshotError, StoreError
from partfile.snapshot import layout
from partfile.snapshot.damage import stands

if TYPE_CHECKING:
    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.storage import CheckpointStorage


def fenced(storage: CheckpointStorage, link: CheckpointMetadata) -> Fenced:
    """Say whether another coordinator has the chain, or whether nobody has and its end was deleted."""
    with suppress(StoreError, SnapshotError):
        before = link.predecessor
        if before is not None and not _is_succeeded(storage, link) and not stands(storage, before):
            lost = before.checkpoint_id
            return Fenced(
                f"checkpoint {lost} of job {storage.job!r} was deleted, and no other coordinator has gone on",
                hint="Nothing counts that follows it. Put it back, or restore a savepoint, before the next start.",
                path=_path_of(storage, lost),
                checkpoint_id=link.checkpoint_id,
            )
    return Fenced(
        f"another coordinator has taken over job {storage.job!r}",
        hint="Only one query or process may write with a uid at a time; stop this one.",
        checkpoint_id=link.checkpoint_id,
    )


def undecided(storage: CheckpointStorage, link: CheckpointMetadata) -> OutcomeUnknown:
    """The error for a link that may count: the store does not answer."""
    path = _path_of(storage, link.checkpoint_id)
    return OutcomeUnknown(
        f"the store does not say whether the checkpoint at {path!r} counts",
        hint="A new start finds out, when the store answers again.",
        path=path,
        checkpoint_id=link.checkpoint_id,
    )


def _is_succeeded(storage: CheckpointStorage, link: CheckpointMetadata) -> bool:
    """Whether another coordinator has the id of a link, or a higher one."""
    found = storage.read_link(link.checkpoint_id)
    is_taken = found is not None and found.nonce != link.nonce
    return is_taken or storage.newest_linked_id() > link.checkpoint_id


def _path_of(storage: CheckpointStorage, checkpoint_id: int) -> str:
    return f"{storage.store.base}/{storage.path(layout.metadata_path(checkpoint_id))}"
