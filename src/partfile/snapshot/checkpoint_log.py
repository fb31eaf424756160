"""The checkpoint log, by which two coordinators cannot both win (R7): read it, take it over, add to it, subsume.

Completed checkpoints are links with consecutive ids. A coordinator creates only the direct successor of the newest link
it knows, and the link counts only if its predecessor is still there afterwards. So of two coordinators that go on from
the same link one gets ``AlreadyExists``, and one that slept until its predecessor was deleted finds that it is gone.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import (
    AlreadyExists,
    Fenced,
    FileTooLarge,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    SnapshotCorrupt,
    SnapshotError,
    StoreError,
)
from partfile.snapshot import documents
from partfile.snapshot.documents import CORRUPT_HINT, MAX_DOCUMENT_BYTES, CheckpointMetadata, LinkRef
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partfile.snapshot.documents import LinkKind, OperatorState
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
    if len({link.chain_id for link in readable.values()}) != 1 or max(*ids, lost) > documents.MAX_CHECKPOINT_ID:
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
    tried = [number for number in map(documents.checkpoint_id_of, names) if number is not None]
    highest = max(newest + ahead, *tried)
    if highest > newest + documents.MAX_IDS_AHEAD:
        # No coordinator has come so far, so another program made that directory.
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
        data = storage.store.read_file(storage.path(documents.metadata_path(checkpoint_id)), MAX_DOCUMENT_BYTES)
    except NotFound:
        return ""
    except FileTooLarge:
        return _OVERSIZED
    return f"{_DAMAGED}{hashlib.sha256(data).hexdigest()}"


def fenced(storage: CheckpointStorage, link: CheckpointMetadata) -> Fenced:
    """The error for a link that does not count: another coordinator has gone on, or the end of the log was deleted."""
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
    return f"{storage.store.base}/{storage.path(documents.metadata_path(checkpoint_id))}"


def new_checkpoint(
    job: str,
    kind: LinkKind,
    checkpoint_id: int,
    *,
    generation: int,
    ids_ahead: int,
    time_ms: int,
    writer: str,
    operators: Mapping[str, OperatorState],
) -> CheckpointMetadata:
    """An entry of a checkpoint log that is not part of it yet; ``Chain`` names its predecessor and creates it.

    Args:
        job: The name of the log.
        kind: What it is for.
        checkpoint_id: The id it takes.
        generation: The epoch that creates it.
        ids_ahead: So many ids after its own may be triggered before the next entry.
        time_ms: The coordinator's batch time, in milliseconds since the epoch.
        writer: Version of the program.
        operators: The state of each operator.
    """
    return CheckpointMetadata(
        checkpoint_id=checkpoint_id,
        kind=kind,
        job=job,
        generation=generation,
        nonce=new_token(),
        chain_id=new_token(),
        predecessor=None,
        ids_ahead=ids_ahead,
        time_ms=time_ms,
        writer=writer,
        operators=dict(operators),
    )


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


class Link(NamedTuple):
    """What retention needs to know of a link."""

    checkpoint_id: int
    holds_state: bool


def subsumable(links: Sequence[Link], retained: int) -> list[int]:
    """The ids that retention no longer keeps, oldest first.

    Args:
        links: The links that are there, oldest first.
        retained: Links holding state to keep, at least 1.
    """
    holders = [link.checkpoint_id for link in links if link.holds_state]
    if len(holders) <= retained:
        return []
    oldest_kept = holders[-retained]
    return [link.checkpoint_id for link in links if link.checkpoint_id < oldest_kept]


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
                path=self._storage.path(documents.metadata_path(newest)),
                checkpoint_id=newest,
            )

    def _lost_after(self, newest: int, published: Sequence[int]) -> int | None:
        """The id of a link beyond the newest one that was deleted: its parts are there, and would come again (S12)."""
        lost = [number for number in published if number > newest]
        # Subsumption deletes a link before its mark, but never the newest: one that went on since is above.
        return lost[-1] if lost and lost[-1] > self._storage.newest_linked_id() else None

    def _deleted(self, checkpoint_id: int) -> SnapshotCorrupt:
        return SnapshotCorrupt(
            f"checkpoint {checkpoint_id} of job {self._storage.job!r} was complete, and its _metadata is gone",
            hint=CORRUPT_HINT,
            path=self._storage.path(documents.metadata_path(checkpoint_id)),
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
        """Whether this would be the first link, and there is none yet."""
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
