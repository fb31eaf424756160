"""The checkpoint log, by which two coordinators cannot both win (R7): read it, take it over, add to it, subsume.

Completed checkpoints have consecutive ids. A coordinator creates only the direct successor of the newest checkpoint
it knows, and the checkpoint counts only if its predecessor is still there afterwards. So of two coordinators that go on
from the same checkpoint one gets ``AlreadyExists``, and one that slept until its predecessor was deleted finds that it
is gone.
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
from partfile.snapshot.documents import CORRUPT_HINT, MAX_DOCUMENT_BYTES, CheckpointMetadata, CheckpointRef
from partfile.stores.paths import new_token
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partfile.snapshot.documents import CheckpointKind, OperatorState
    from partfile.snapshot.storage import CheckpointStorage


_DAMAGED = "damaged-"
_OVERSIZED = f"{_DAMAGED}oversized"
"""More than any checkpoint holds is not read, and no coordinator ever writes it."""


class LogEnd(NamedTuple):
    """The end of a checkpoint log, as a start reads it."""

    newest: CheckpointMetadata | None
    """The newest checkpoint; None in an empty checkpoint log."""
    restored: CheckpointMetadata | None
    """The newest one that holds state; None if there has never been any."""

    @property
    def next_id(self) -> int:
        """The id that a takeover takes: beyond every one that the last coordinator may have triggered."""
        return 1 if self.newest is None else self.newest.reserved_through + 1

    @property
    def next_epoch(self) -> int:
        """The epoch that a takeover begins."""
        return 1 if self.restored is None else self.restored.epoch + 1


@dataclass(frozen=True, slots=True)
class DamagedEnd:
    """What a start that is told to go back to an older checkpoint knows of what came later."""

    ref: CheckpointRef
    """The newest checkpoint; one that cannot be read is known by a digest of its bytes in place of its nonce."""
    log_id: str
    """As the readable checkpoints have it."""
    epoch: int
    """No checkpoint of the checkpoint log has a higher one: each raises it by one at most."""
    reserved_through: int
    """The last id that its coordinator may have triggered, if it reserves as the readable checkpoints do."""
    holders: frozenset[int]
    """The ids of the readable checkpoints that hold state."""
    error: SnapshotCorrupt
    """Why the newest state cannot be read."""

    @property
    def checkpoint_id(self) -> int:
        """Id of the newest checkpoint."""
        return self.ref.checkpoint_id

    @property
    def next_id(self) -> int:
        """The id that a takeover takes."""
        return self.reserved_through + 1

    @property
    def next_epoch(self) -> int:
        """The epoch that a takeover begins."""
        return self.epoch + 1


def is_of_damage(ref: CheckpointRef) -> bool:
    """Whether a reference knows a checkpoint by its damaged bytes."""
    return ref.nonce.startswith(_DAMAGED)


class LogEntry(NamedTuple):
    """What retention needs to know of a checkpoint."""

    checkpoint_id: int
    holds_state: bool


def subsumable(entries: Sequence[LogEntry], retained: int) -> list[int]:
    """The ids that retention no longer keeps, oldest first.

    Args:
        entries: The checkpoints that are there, oldest first.
        retained: Checkpoints holding state to keep, at least 1.
    """
    holders = [entry.checkpoint_id for entry in entries if entry.holds_state]
    if len(holders) <= retained:
        return []
    oldest_kept = holders[-retained]
    return [entry.checkpoint_id for entry in entries if entry.checkpoint_id < oldest_kept]


MAX_START_ATTEMPTS = 100
"""So many other coordinators may be faster before a start gives up."""


def unplaced_command(verb: str, job: str, *options: str) -> str:
    """A command about a job, for hints of a log that knows no base."""
    return " ".join(["partfile", verb, "PATH", "--uid", job, *options])


class CheckpointLog:
    """One coordinator's view of the checkpoint log: what it restored from, and the newest checkpoint, which is its own.

    Args:
        storage: The job's checkpoints.
        retained: Checkpoints holding state that are kept, at least 1.
        ids_ahead: So many ids after its own each entry lets the coordinator trigger before the next one.
        writer: Version of the program, written into every entry.
        command: Makes a command about a job, for hints.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        *,
        retained: int = 2,
        ids_ahead: int = 0,
        writer: str = __version__,
        command: Callable[..., str] = unplaced_command,
    ) -> None:
        if retained < 1:
            raise ValueError(f"retained is {retained}; at least 1 checkpoint must be kept")
        self._storage = storage
        self._retained = retained
        self._ids_ahead = ids_ahead
        self._writer = writer
        self._command = command
        self._newest: CheckpointMetadata | None = None
        self._entries: list[LogEntry] = []
        self._attempted: set[str] = set()
        self._strays: set[str] = set()
        """The nonces of checkpoints of this start that do not count; they stay, for nothing is deleted on suspicion
        (R6)."""

    @property
    def newest(self) -> CheckpointMetadata:
        """The newest checkpoint, created by this coordinator."""
        if self._newest is None:
            raise Fenced("this coordinator holds no checkpoint; start it first")
        return self._newest

    @property
    def oldest_id(self) -> int:
        """Id of the oldest checkpoint that is still there, as far as this coordinator has seen or deleted any."""
        return self._entries[0].checkpoint_id if self._entries else self.newest.checkpoint_id

    @property
    def attempted_takeovers(self) -> frozenset[str]:
        """Nonces of the takeovers that this coordinator has tried to create, whether one was made or not."""
        return frozenset(self._attempted)

    def look(self) -> LogEnd:
        """Read the end of the checkpoint log, without changing anything.

        Raises:
            SnapshotCorrupt: The newest checkpoint cannot be read: never fall back to the one before it (R12).
        """
        seen = self.see()
        if isinstance(seen, DamagedEnd):
            raise seen.error
        return seen

    def see(self) -> LogEnd | DamagedEnd:
        """The same, or what is known of a checkpoint log whose newest checkpoint cannot be read."""
        for _ in range(MAX_START_ATTEMPTS):
            ids, published = self._storage.list_ids()
            lost = self._lost_after(ids[-1] if ids else 0, published)
            try:
                if lost is not None:
                    raise self._deleted(lost)
                checkpoints = self._read_from_newest(ids)
            except SnapshotCorrupt as error:
                end = self._damaged_end(ids, error, lost or 0)
                if end is None:
                    continue
                self._entries = [LogEntry(number, number in end.holders) for number in ids]
                return end
            if checkpoints is None:
                continue
            self._check_origin(ids, checkpoints)
            self._entries = [LogEntry(number, holds_state=True) for number in ids[: len(ids) - len(checkpoints)]]
            self._entries += [
                LogEntry(checkpoint.checkpoint_id, checkpoint.holds_state) for checkpoint in reversed(checkpoints)
            ]
            if not checkpoints or checkpoints[-1].holds_state:
                return LogEnd(checkpoints[0], checkpoints[-1]) if checkpoints else LogEnd(None, None)
            if ids[0] > 1:
                raise SnapshotCorrupt(
                    f"no checkpoint of job {self._storage.job!r} holds state, only tombstones are left"
                )
            # The checkpoint log's very first checkpoints were closed again: there has never been any state.
            return LogEnd(checkpoints[0], None)
        raise Fenced(f"the checkpoints of job {self._storage.job!r} change faster than they can be read")

    def _read_from_newest(self, ids: Sequence[int]) -> list[CheckpointMetadata] | None:
        """Read checkpoints from the newest down to one that holds state; None if one vanished while it was read."""
        checkpoints: list[CheckpointMetadata] = []
        for checkpoint_id in reversed(ids):
            checkpoint = self._storage.read_checkpoint(checkpoint_id)
            if checkpoint is None:
                return None
            checkpoints.append(checkpoint)
            if checkpoint.holds_state:
                break
        return checkpoints

    def _damaged_end(self, ids: Sequence[int], error: SnapshotCorrupt, lost: int) -> DamagedEnd | None:
        """What is known of a checkpoint log whose newest state cannot be read.

        None if a checkpoint vanished while it was looked at.

        Args:
            ids: The ids that have a checkpoint, ascending.
            error: Why the newest state cannot be read.
            lost: The id of a later checkpoint that was deleted; 0 if none was.

        Raises:
            SnapshotCorrupt: That error, if no readable checkpoint tells of the checkpoint log, or two tell of different
                ones.
            SnapshotVersionError: A newer partfile wrote a checkpoint, which is no damage.
        """
        readable: dict[int, CheckpointMetadata] = {}
        marks: dict[int, str] = {}
        for checkpoint_id in ids:
            try:
                checkpoint = self._storage.read_checkpoint(checkpoint_id)
            except SnapshotCorrupt:
                marks[checkpoint_id] = self._mark(checkpoint_id)
            else:
                if checkpoint is None:
                    return None
                readable[checkpoint_id] = checkpoint
        if (
            len({checkpoint.log_id for checkpoint in readable.values()}) != 1
            or max(*ids, lost) > documents.MAX_CHECKPOINT_ID
        ):
            raise error
        if not all(marks.values()):
            return None
        newest, known = ids[-1], readable[max(readable)]
        return DamagedEnd(
            ref=CheckpointRef(checkpoint_id=newest, nonce=marks[newest]) if newest in marks else readable[newest].ref,
            log_id=known.log_id,
            epoch=known.epoch + max(newest, lost) - known.checkpoint_id,
            reserved_through=readable[newest].reserved_through
            if newest in readable and not lost
            else self._reserved(max(newest, lost), readable, error),
            holders=frozenset(number for number, checkpoint in readable.items() if checkpoint.holds_state),
            error=error,
        )

    def _reserved(self, newest: int, readable: Mapping[int, CheckpointMetadata], error: SnapshotCorrupt) -> int:
        """How far the damaged newest checkpoint reserves ids, as far as the others and the directories tell."""
        ahead = max(checkpoint.ids_ahead for checkpoint in readable.values())
        if ahead == 0:
            # A sink reserves none. An attempt under way finds the name taken, or its predecessor gone (ADR 0031).
            return newest
        names = self._storage.store.list_names(self._storage.directory)
        tried = [number for number in map(documents.checkpoint_id_of, names) if number is not None]
        highest = max(newest + ahead, *tried)
        if highest > newest + documents.MAX_IDS_AHEAD:
            # No coordinator has come so far, so another program made that directory.
            raise error
        return highest

    def take_over(
        self, end: LogEnd | DamagedEnd, time_ms: int, operators: Mapping[str, OperatorState]
    ) -> CheckpointMetadata | None:
        """Create a takeover as the successor of what was seen, and own the checkpoint log from then on (R7).

        The ids that the last coordinator may have triggered without a checkpoint get tombstones first.

        Args:
            end: What ``see`` has returned. A caller goes on from a damaged one only if its user chose an older
                checkpoint.
            time_ms: The coordinator's time, in milliseconds since 1970.
            operators: The state to begin with, written for the id ``end.next_id``.

        Returns:
            The takeover; None if it does not count, because another coordinator was faster: see again.

        Raises:
            OutcomeUnknown: The store did not say whether it was created; start again.
        """
        newest = end if isinstance(end, DamagedEnd) else end.newest
        takeover = self._entry(
            "takeover",
            end.next_id,
            epoch=end.next_epoch,
            after=newest,
            ids_ahead=self._ids_ahead,
            time_ms=time_ms,
            operators=operators,
        )
        # Noted before it is created: after an unknown outcome the caller has to know it as its own.
        self._attempted.add(takeover.nonce)
        if newest is not None:
            last = self._close_reserved(newest, time_ms)
            if last is None:
                return None
            takeover = takeover.model_copy(update={"predecessor": last.ref})
        if self._create(takeover) != takeover:
            return None
        if not (self._predecessor_stands(takeover) and self._is_last(takeover)):
            self._strays.add(takeover.nonce)
            return None
        self._append(takeover)
        return takeover

    def outrun(self) -> Fenced:
        """The error for a start before which other coordinators took every checkpoint."""
        return Fenced(
            f"other coordinators of job {self._storage.job!r} took {MAX_START_ATTEMPTS} checkpoints before this one"
        )

    def next_entry(
        self, kind: CheckpointKind, checkpoint_id: int, time_ms: int, operators: Mapping[str, OperatorState]
    ) -> CheckpointMetadata:
        """An entry after the newest one and of its epoch, which ``extend`` is to create.

        Args:
            kind: What it is for.
            checkpoint_id: The id it takes.
            time_ms: The coordinator's batch time, in milliseconds since 1970.
            operators: The state of each operator.
        """
        return self._entry(
            kind,
            checkpoint_id,
            epoch=self.newest.epoch,
            after=self.newest,
            ids_ahead=self._ids_ahead,
            time_ms=time_ms,
            operators=operators,
        )

    def extend(self, entry: CheckpointMetadata) -> None:
        """Create the next entry: a checkpoint is complete then, an id closed.

        Args:
            entry: As ``next_entry`` has made it.

        Raises:
            Fenced: Another coordinator has taken the checkpoint log over; this one's state is not part of it.
            NotApplied: The checkpoint is not complete. If the outcome was unknown at first, the id is closed now, and
                ``newest`` is its tombstone.
            OutcomeUnknown: The outcome is still unknown: start again.
        """
        created = self._create(entry)
        if created is None or not self._predecessor_stands(created):
            raise self._fenced(entry)
        self._append(created)
        if created.kind != entry.kind:
            raise NotApplied(
                "the store did not say whether the checkpoint was created; its id is closed now",
                checkpoint_id=entry.checkpoint_id,
            )

    def check_is_newest(self) -> None:
        """See that no other coordinator has gone on from the newest checkpoint. Changes nothing.

        Raises:
            Fenced: One has.
            StoreError: The storage does not say.
        """
        if self._storage.newest_completed_id() > self.newest.checkpoint_id:
            raise self._fenced(self.newest)

    def subsume(self) -> list[int]:
        """Delete the checkpoints beyond the retained ones, strictly oldest first, and return their ids.

        Never deletes the newest checkpoint that holds state; a tombstone does not count as retained.
        """
        deleted = []
        for checkpoint_id in subsumable(self._entries, self._retained):
            self._storage.delete_checkpoint(checkpoint_id)
            del self._entries[0]
            deleted.append(checkpoint_id)
        return deleted

    def _check_origin(self, ids: Sequence[int], checkpoints: Sequence[CheckpointMetadata]) -> None:
        """Refuse a newest checkpoint that was put here from elsewhere, if there is another one that can tell."""
        if len(ids) < 2:  # noqa: PLR2004 - a pair
            return
        try:
            other = checkpoints[1] if len(checkpoints) > 1 else self._storage.read_checkpoint(ids[-2])
        except (SnapshotError, StoreError):
            return  # The newest checkpoint alone is what a restore needs (R12).
        if other is not None and other.nonce not in self._strays and other.log_id != checkpoints[0].log_id:
            newest = checkpoints[0].checkpoint_id
            raise SnapshotCorrupt(
                f"checkpoint {newest} of job {self._storage.job!r} does not belong to the checkpoint log of checkpoint "
                f"{other.checkpoint_id} beside it",
                hint=(
                    "One of the two was copied here. Nothing was changed; remove the one that does not belong "
                    f"here. See which there are: {self._command('checkpoints', self._storage.job)}"
                ),
                path=self._storage.path(documents.metadata_path(newest)),
                checkpoint_id=newest,
            )

    def _lost_after(self, newest: int, published: Sequence[int]) -> int | None:
        """The id of a checkpoint beyond the newest one that was deleted.

        Its parts are there, and would come again (R12).
        """
        lost = [number for number in published if number > newest]
        # Subsumption deletes a checkpoint before its mark, but never the newest: one that went on since is above.
        return lost[-1] if lost and lost[-1] > self._storage.newest_completed_id() else None

    def _deleted(self, checkpoint_id: int) -> SnapshotCorrupt:
        return SnapshotCorrupt(
            f"checkpoint {checkpoint_id} of job {self._storage.job!r} was complete, and its _metadata is gone",
            hint=CORRUPT_HINT,
            path=self._storage.path(documents.metadata_path(checkpoint_id)),
            checkpoint_id=checkpoint_id,
        )

    def _entry(
        self,
        kind: CheckpointKind,
        checkpoint_id: int,
        *,
        epoch: int,
        after: CheckpointMetadata | DamagedEnd | None,
        ids_ahead: int,
        time_ms: int,
        operators: Mapping[str, OperatorState],
    ) -> CheckpointMetadata:
        """An entry that is not part of the log yet, after another one; None begins a log."""
        return CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            kind=kind,
            job=self._storage.job,
            epoch=epoch,
            nonce=new_token(),
            log_id=new_token() if after is None else after.log_id,
            predecessor=None if after is None else after.ref,
            ids_ahead=ids_ahead,
            time_ms=time_ms,
            writer=self._writer,
            operators=dict(operators),
        )

    def _close_reserved(
        self, newest: CheckpointMetadata | DamagedEnd, time_ms: int
    ) -> CheckpointMetadata | DamagedEnd | None:
        """Close the ids that the newest checkpoint reserves; None if another coordinator was faster."""
        last = newest
        for checkpoint_id in range(newest.checkpoint_id + 1, newest.reserved_through + 1):
            tombstone = self._entry(
                "tombstone",
                checkpoint_id,
                epoch=newest.epoch,
                after=last,
                # A start that dies here has to be gone on with by the next one: the promise is handed on.
                ids_ahead=newest.reserved_through - checkpoint_id,
                time_ms=time_ms,
                operators={},
            )
            closed = self._create(tombstone)
            if closed is None or not self._predecessor_stands(closed):
                return None
            self._entries.append(LogEntry(checkpoint_id, closed.holds_state))
            last = closed
        return last

    def _append(self, checkpoint: CheckpointMetadata) -> None:
        self._newest = checkpoint
        self._entries.append(LogEntry(checkpoint.checkpoint_id, checkpoint.holds_state))

    def _create(self, checkpoint: CheckpointMetadata) -> CheckpointMetadata | None:
        """Create a checkpoint; return what stands under its id.

        It, its tombstone, or None for another coordinator's.
        """
        try:
            self._storage.create_checkpoint(checkpoint)
        except AlreadyExists:
            return self._read_back(checkpoint)
        except NotFound:
            # Its directory was deleted meanwhile, as only subsumption by another coordinator does; or cannot be made.
            if self._predecessor_stands(checkpoint) or self._is_alone(checkpoint):
                raise
            return None
        except OutcomeUnknown:
            return self._decide_by_tombstone(checkpoint)
        return checkpoint

    def _decide_by_tombstone(self, checkpoint: CheckpointMetadata) -> CheckpointMetadata | None:
        # Reading alone cannot decide: a request that is still on its way could create the checkpoint later.
        tombstone = checkpoint.model_copy(update={"kind": "tombstone", "nonce": new_token(), "operators": {}})
        try:
            self._storage.create_checkpoint(tombstone)
        except AlreadyExists:
            return self._read_back(checkpoint)
        except NotApplied as error:
            raise self._undecided(checkpoint) from error
        return tombstone

    def _read_back(self, checkpoint: CheckpointMetadata) -> CheckpointMetadata | None:
        try:
            found = self._storage.read_checkpoint(checkpoint.checkpoint_id)
        except NotApplied as error:
            raise self._undecided(checkpoint) from error
        return checkpoint if found is not None and found.nonce == checkpoint.nonce else None

    def _predecessor_stands(self, checkpoint: CheckpointMetadata) -> bool:
        try:
            if checkpoint.predecessor is None:
                return self._storage.list_completed_ids() == [checkpoint.checkpoint_id]
            return self._stands(checkpoint.predecessor)
        except NotApplied as error:
            # What was not applied is this look, not the checkpoint.
            raise self._undecided(checkpoint) from error

    def _is_alone(self, checkpoint: CheckpointMetadata) -> bool:
        """Whether this would be the first checkpoint, and there is none yet."""
        try:
            return checkpoint.predecessor is None and not self._storage.list_completed_ids()
        except NotApplied as error:
            raise self._undecided(checkpoint) from error

    def _is_last(self, checkpoint: CheckpointMetadata) -> bool:
        """Whether no checkpoint is above a start's.

        A slow listing may have taken a stray checkpoint of a fenced coordinator for the newest, and so for the
        predecessor: then the checkpoint log has gone on above both.
        """
        try:
            return self._storage.newest_completed_id() == checkpoint.checkpoint_id
        except NotApplied as error:
            raise self._undecided(checkpoint) from error

    def _stands(self, ref: CheckpointRef) -> bool:
        """Whether a checkpoint is still there as it was known, by its nonce or by the digest of its damaged bytes.

        Raises:
            SnapshotCorrupt: It could be read, and cannot be any more.
        """
        if is_of_damage(ref):
            return self._mark(ref.checkpoint_id) == ref.nonce
        found = self._storage.read_checkpoint(ref.checkpoint_id)
        return found is not None and found.nonce == ref.nonce

    def _mark(self, checkpoint_id: int) -> str:
        """What a damaged checkpoint is known by; empty if it is gone."""
        path = self._storage.path(documents.metadata_path(checkpoint_id))
        try:
            data = self._storage.store.read_file(path, MAX_DOCUMENT_BYTES)
        except NotFound:
            return ""
        except FileTooLarge:
            return _OVERSIZED
        return f"{_DAMAGED}{hashlib.sha256(data).hexdigest()}"

    def _fenced(self, checkpoint: CheckpointMetadata) -> Fenced:
        """The error for a checkpoint that does not count.

        Another coordinator has gone on, or the end of the log was deleted.
        """
        job = self._storage.job
        with suppress(StoreError, SnapshotError):
            before = checkpoint.predecessor
            if before is not None and not self._is_succeeded(checkpoint) and not self._stands(before):
                lost = before.checkpoint_id
                return Fenced(
                    f"checkpoint {lost} of job {job!r} was deleted, and no other coordinator has gone on",
                    hint=(
                        "Entries after it do not count. Before the next start put the file back, or go back to a "
                        f"savepoint: {self._command('recover', job, '--restore-from', 'SAVEPOINT')}"
                    ),
                    path=self._shown(lost),
                    checkpoint_id=checkpoint.checkpoint_id,
                )
        return Fenced(
            f"another coordinator has taken over job {job!r}",
            hint=(
                "Only one query or process may write with a uid at a time; stop this one. See who runs: "
                f"{self._command('status', job)}"
            ),
            checkpoint_id=checkpoint.checkpoint_id,
        )

    def _is_succeeded(self, checkpoint: CheckpointMetadata) -> bool:
        """Whether another coordinator has the id of a checkpoint, or a higher one."""
        found = self._storage.read_checkpoint(checkpoint.checkpoint_id)
        is_taken = found is not None and found.nonce != checkpoint.nonce
        return is_taken or self._storage.newest_completed_id() > checkpoint.checkpoint_id

    def _undecided(self, checkpoint: CheckpointMetadata) -> OutcomeUnknown:
        """The error for a checkpoint that may count: the store does not answer."""
        path = self._shown(checkpoint.checkpoint_id)
        return OutcomeUnknown(
            f"the store does not say whether the checkpoint at {path!r} counts",
            hint=(
                "A new start finds out, when the store answers again. See which checkpoint counts: "
                f"{self._command('checkpoints', self._storage.job)}"
            ),
            path=path,
            checkpoint_id=checkpoint.checkpoint_id,
        )

    def _shown(self, checkpoint_id: int) -> str:
        return f"{self._storage.store.base}/{self._storage.path(documents.metadata_path(checkpoint_id))}"
