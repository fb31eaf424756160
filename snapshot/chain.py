"""The chain of links that makes two coordinators unable to both win (S7).

Completed checkpoints are links with consecutive ids. A coordinator creates only the direct successor of the newest link
it knows, and the link counts only if its predecessor is still there afterwards. So of two coordinators that go on from
the same link one gets ``AlreadyExists``, and one that slept until its predecessor was deleted finds that it is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import (
    AlreadyExists,
    Fenced,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    SnapshotCorrupt,
    SnapshotError,
    StoreError,
)
from partfile.snapshot import layout
from partfile.snapshot.codec import CORRUPT_HINT
from partfile.snapshot.damage import DamagedEnd, damaged_end, stands
from partfile.snapshot.link_errors import fenced, undecided
from partfile.snapshot.links import linked_to, tombstone_of
from partfile.snapshot.subsumption import Link, subsumable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.snapshot.model import CheckpointMetadata
    from partfile.snapshot.storage import CheckpointStorage

MAX_START_ATTEMPTS = 100


class Chain:
    """One coordinator's view of the chain: what it restored from, and the newest link, which is its own.

    Args:
        storage: The job's checkpoints.
        retained: Links holding state that are kept, at least 1.
    """

    def __init__(self, storage: CheckpointStorage, *, retained: int = 2) -> None:
        if retained < 1:
            raise ValueError(f"retained is {retained}; at least 1 checkpoint must be kept")
        self._storage = storage
        self._retained = retained
        self._newest: CheckpointMetadata | None = None
        self._links: list[Link] = []
        self._strays: set[str] = set()
        """The nonces of links of this start that do not count; they stay, for nothing is deleted on suspicion (S6)."""

    @property
    def newest(self) -> CheckpointMetadata:
        """The newest link, created by this coordinator."""
        if self._newest is None:
            raise Fenced("this coordinator holds no link; start it first")
        return self._newest

    @property
    def oldest_id(self) -> int:
        """Id of the oldest link that is still there, as far as this coordinator has seen or deleted any."""
        return self._links[0].checkpoint_id if self._links else self.newest.checkpoint_id

    def look(self) -> tuple[CheckpointMetadata | None, CheckpointMetadata | None]:
        """Return the newest link and the newest one that holds state, without changing anything.

        Raises:
            SnapshotCorrupt: The newest link cannot be read: never fall back to the one before it (S12).
        """
        seen = self.see()
        if isinstance(seen, DamagedEnd):
            raise seen.error
        return seen

    def see(self) -> tuple[CheckpointMetadata | None, CheckpointMetadata | None] | DamagedEnd:
        """The same, or what is known of a chain whose newest link cannot be read."""
        for _ in range(MAX_START_ATTEMPTS):
            ids, published = self._storage.list_ids()
            lost = self._lost_after(ids[-1] if ids else 0, published)
            try:
                if lost is not None:
                    raise self._deleted(lost)
                links = _read_from_newest(self._storage, ids)
            except SnapshotCorrupt as error:
                end = damaged_end(self._storage, ids, error, lost or 0)
                if end is None:
                    continue
                self._links = [Link(number, number in end.holders) for number in ids]
                return end
            if links is None:
                continue
            self._check_origin(ids, links)
            self._links = [Link(number, holds_state=True) for number in ids[: len(ids) - len(links)]]
            self._links += [Link(link.checkpoint_id, link.holds_state) for link in reversed(links)]
            if not links or links[-1].holds_state:
                return (links[0], links[-1]) if links else (None, None)
            if ids[0] > 1:
                raise SnapshotCorrupt(f"no link of job {self._storage.job!r} holds state, only tombstones are left")
            # The chain's very first links were closed again: there has never been any state.
            return links[0], None
        raise Fenced(f"the checkpoints of job {self._storage.job!r} change faster than they can be read")

    def start(
        self, successor: Callable[[CheckpointMetadata | DamagedEnd | None, int], CheckpointMetadata]
    ) -> CheckpointMetadata:
        """Take the chain over: create the link after the newest one, holding what that one held.

        The ids that the last coordinator may have triggered without a link get tombstones first, so that none is ever
        used again (CC-06).

        Args:
            successor: From the newest link that holds state (None in an empty chain) and the id to take, makes the
                metadata of the fence link. It may raise to refuse, before anything is created, and does so for a
                damaged end unless its user chose an older checkpoint. Its predecessor is filled in here.

        Returns:
            The link as created.

        Raises:
            Fenced: Others kept taking the link first.
            OutcomeUnknown: The store did not say whether the link was created; start again.
        """
        for _ in range(MAX_START_ATTEMPTS):
            seen = self.see()
            newest, restored = (seen, seen) if isinstance(seen, DamagedEnd) else seen
            fence = successor(restored, newest.reserved_through + 1 if newest else 1)
            last = self._close_reserved(newest, fence) if newest else None
            if newest and last is None:
                continue
            link = linked_to(last, fence)
            if self._create(link) == link:
                if self._predecessor_stands(link) and self._is_last(link):
                    self._append(link)
                    return link
                self._strays.add(link.nonce)
        raise Fenced(f"other coordinators of job {self._storage.job!r} took {MAX_START_ATTEMPTS} links before this one")

    def extend(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Complete a checkpoint: create its link as the successor of the newest one.

        Raises:
            Fenced: Another coordinator has taken the chain over; this one's state is not part of it.
            NotApplied: The checkpoint is not complete. If the outcome was unknown at first, the id is closed now, and
                ``newest`` is its tombstone.
            OutcomeUnknown: The outcome is still unknown: start again.
        """
        link = linked_to(self.newest, metadata)
        created = self._create(link)
        if created is None or not self._predecessor_stands(created):
            raise fenced(self._storage, link)
        self._append(created)
        if created.kind != link.kind:
            raise NotApplied(
                "the store did not say whether the checkpoint was created; its id is closed now",
                checkpoint_id=link.checkpoint_id,
            )
        return link

    def subsume(self) -> list[int]:
        """Delete the links beyond the retained ones, strictly oldest first, and return their ids.

        Never deletes the newest link that holds state; a tombstone does not count as retained.
        """
        deleted = []
        for checkpoint_id in subsumable(self._links, self._retained):
            self._storage.delete_checkpoint(checkpoint_id)
            del self._links[0]
            deleted.append(checkpoint_id)
        return deleted

    def _check_origin(self, ids: Sequence[int], links: Sequence[CheckpointMetadata]) -> None:
        """Refuse a newest link that was put here from elsewhere, if there is another one that can tell."""
        if len(ids) < 2:  # noqa: PLR2004 - a pair
            return
        try:
            other = links[1] if len(links) > 1 else self._storage.read_link(ids[-2])
        except (SnapshotError, StoreError):
            return  # The newest link alone is what a restore needs (S12).
        if other is not None and other.nonce not in self._strays and other.chain_id != links[0].chain_id:
            newest = links[0].checkpoint_id
            raise SnapshotCorrupt(
                f"checkpoint {newest} of job {self._storage.job!r} does not belong to the chain of checkpoint "
                f"{other.checkpoint_id} beside it",
                hint="One of the two was copied here. Nothing was changed; remove the one that does not belong here.",
                path=self._storage.path(layout.metadata_path(newest)),
                checkpoint_id=newest,
            )

    def _lost_after(self, newest: int, published: Sequence[int]) -> int | None:
        """The id of a link beyond the newest one that was deleted: its parts are there, and would come again (S12)."""
        lost = [number for number in published if number > newest]
        # Subsumption deletes a link before its mark, but never the newest: whoever went on since has left one above.
        return lost[-1] if lost and lost[-1] > self._storage.newest_linked_id() else None

    def _deleted(self, checkpoint_id: int) -> SnapshotCorrupt:
        return SnapshotCorrupt(
            f"checkpoint {checkpoint_id} of job {self._storage.job!r} was complete, and its _metadata is gone",
            hint=CORRUPT_HINT,
            path=self._storage.path(layout.metadata_path(checkpoint_id)),
            checkpoint_id=checkpoint_id,
        )

    def _close_reserved(
        self, newest: CheckpointMetadata | DamagedEnd, fence: CheckpointMetadata
    ) -> CheckpointMetadata | DamagedEnd | None:
        """Close the ids between the newest link and the fence; None if another coordinator was faster."""
        last = newest
        for checkpoint_id in range(newest.checkpoint_id + 1, fence.checkpoint_id):
            # A start that dies here has to be gone on with by the next one: the promise is handed on.
            tombstone = tombstone_of(
                fence,
                checkpoint_id=checkpoint_id,
                generation=newest.generation,
                ids_ahead=newest.reserved_through - checkpoint_id,
            )
            closed = self._create(linked_to(last, tombstone))
            if closed is None or not self._predecessor_stands(closed):
                return None
            self._links.append(Link(checkpoint_id, closed.holds_state))
            last = closed
        return last

    def _append(self, link: CheckpointMetadata) -> None:
        self._newest = link
        self._links.append(Link(link.checkpoint_id, link.holds_state))

    def _create(self, link: CheckpointMetadata) -> CheckpointMetadata | None:
        """Create a link; return what stands under its id: it, its tombstone, or None for another coordinator's."""
        try:
            self._storage.create_link(link)
        except AlreadyExists:
            return self._read_back(link)
        except NotFound:
            # Its directory was deleted meanwhile, as only subsumption by another coordinator does; or cannot be made.
            if self._predecessor_stands(link) or self._is_alone(link):
                raise
            return None
        except OutcomeUnknown:
            return self._decide_by_tombstone(link)
        return link

    def _decide_by_tombstone(self, link: CheckpointMetadata) -> CheckpointMetadata | None:
        # Reading alone cannot decide: a request that is still on its way could create the link later.
        tombstone = tombstone_of(link)
        try:
            self._storage.create_link(tombstone)
        except AlreadyExists:
            return self._read_back(link)
        except NotApplied as error:
            raise undecided(self._storage, link) from error
        return tombstone

    def _read_back(self, link: CheckpointMetadata) -> CheckpointMetadata | None:
        try:
            found = self._storage.read_link(link.checkpoint_id)
        except NotApplied as error:
            raise undecided(self._storage, link) from error
        return link if found is not None and found.nonce == link.nonce else None

    def _predecessor_stands(self, link: CheckpointMetadata) -> bool:
        try:
            if link.predecessor is None:
                return self._storage.list_links() == [link.checkpoint_id]
            return stands(self._storage, link.predecessor)
        except NotApplied as error:
            # What was not applied is this look, not the link.
            raise undecided(self._storage, link) from error

    def _is_alone(self, link: CheckpointMetadata) -> bool:
        """Whether this would be the first link, and nobody has one."""
        try:
            return link.predecessor is None and not self._storage.list_links()
        except NotApplied as error:
            raise undecided(self._storage, link) from error

    def _is_last(self, link: CheckpointMetadata) -> bool:
        """Whether no link is above a start's.

        Its predecessor may be a stray link of a fenced coordinator, which a list that was made slowly took for the
        newest: then the chain has gone on above both.
        """
        try:
            return self._storage.newest_linked_id() == link.checkpoint_id
        except NotApplied as error:
            raise undecided(self._storage, link) from error


def _read_from_newest(storage: CheckpointStorage, ids: Sequence[int]) -> list[CheckpointMetadata] | None:
    """Read links from the newest down to one that holds state; None if one vanished while it was read."""
    links: list[CheckpointMetadata] = []
    for checkpoint_id in reversed(ids):
        link = storage.read_link(checkpoint_id)
        if link is None:
            return None
        links.append(link)
        if link.holds_state:
            break
    return links
