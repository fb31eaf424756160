"""The coordinator of a sink: restores, distributes parts, completes checkpoints, publishes. Needs no Spark.

``SinkCoordinator`` takes one checkpoint at a time, in one thread; ``complete`` shows the order that safety rests on.
``Runtime`` opens the stores of one run of a sink and makes its coordinator.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import (
    NotApplied,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
    SnapshotError,
    StoreError,
    UnencodableState,
)
from partfile.sink import plan
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrency import discard_each
from partfile.sink.encode import LocalEncoder
from partfile.sink.publish import Publisher, StagedParts, mark_published
from partfile.sink.restore import Restore, RestoreTerms
from partfile.sink.states import OPERATOR, SubtaskSnapshot
from partfile.snapshot.checkpoint_log import MAX_START_ATTEMPTS, CheckpointLog
from partfile.snapshot.documents import MARKER, OperatorState, unreadable
from partfile.snapshot.operator_state import write_operator_state
from partfile.snapshot.storage import open_storage
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from partfile.sink.encode import StagingEncoder
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.publish import Encoding
    from partfile.sink.restore import RestorePlan
    from partfile.sink.settings import RestoreSettings
    from partfile.sink.states import SeenKeys, StreamPosition
    from partfile.snapshot.checkpoint_log import DamagedEnd, LogEnd
    from partfile.snapshot.documents import CheckpointMetadata, CheckpointRef
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.stores.base import Store


_MOST_ENCODE_THREADS = 4
"""Each holds a row group in memory."""
_FEWEST_TO_GO_BACK = 2
"""Retained checkpoints with which a damaged newest one can be gone over, and no more."""
_MAY_BE_FENCED = (StoreError, PartMissing, SnapshotCorrupt, UnencodableState)
"""How a coordinator may meet what another one, which has gone on, has published or deleted meanwhile."""

logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What completing a checkpoint did."""

    checkpoint_id: int
    published: int
    """Parts that have their final names by now."""
    owed: int
    """Parts whose publication failed and is tried again."""
    commit_ms: float
    publish_ms: float
    given_up: int = 0
    """Parts and staging files that were gone, and are looked for no more because their rows were given up."""
    encoded: int = 0
    """Staging files that were encoded for it, or for the checkpoint that came before it and closed them."""
    encode_ms: float = 0.0
    set_aside: tuple[str, ...] = ()
    """Directories of the rows that were set aside, relative to the directory of checkpoints."""
    failure: Exception | None = None
    """Why a part can never be published, or a staging file never be encoded; the first of them."""

    def check(self) -> None:
        """Raise the failure, now that everything else of the checkpoint is done.

        Raises:
            PartMissing, PartDamaged, CommitConflict: A part can never be published, or a staging file never be encoded.
            PartfileError: No file can be made of a staging file.
        """
        if self.failure is not None:
            raise self.failure

    def followed_by(self, later: CommitReport) -> CommitReport:
        """What this checkpoint and the one after it did together."""
        return CommitReport(
            checkpoint_id=later.checkpoint_id,
            published=self.published + later.published,
            owed=later.owed,
            commit_ms=self.commit_ms + later.commit_ms,
            publish_ms=self.publish_ms + later.publish_ms,
            given_up=self.given_up + later.given_up,
            failure=self.failure or later.failure,
        )

    def with_encoding(self, encoding: Encoding) -> CommitReport:
        """The same, with what became of the staging files."""
        return replace(
            self,
            given_up=self.given_up + encoding.given_up,
            encoded=encoding.encoded,
            encode_ms=encoding.encode_ms,
            set_aside=encoding.set_aside,
            failure=self.failure or encoding.failure,
        )


class TriggeredCheckpoint(NamedTuple):
    """A checkpoint whose id is taken and whose state is still to come."""

    checkpoint_id: int
    submission: str
    """Nonce of this trigger; a task's answer that echoes another one belongs to another try."""
    time_ms: int
    """The coordinator's batch time at the trigger, in milliseconds since 1970."""


class SinkCoordinator:
    """Owns the state of one sink between a start and its end, one checkpoint at a time, in one thread.

    Once it is not certain any more whether a checkpoint counts, every further one is refused: a new start finds out.

    Args:
        store: Where the parts are.
        storage: Where the checkpoints are.
        settings: The sink's options.
        encoder: Encodes closed staging files.
        interval_ms: From the end of a checkpoint to the periodic one after it; None takes none.
        tried: Told how many parts more were published, or could not be; from any thread.
    """

    def __init__(
        self,
        store: Store,
        storage: CheckpointStorage,
        settings: RestoreSettings,
        encoder: StagingEncoder,
        *,
        interval_ms: int | None = None,
        tried: Callable[[int], None] = lambda _parts: None,
    ) -> None:
        self._store = store
        self._storage = storage
        self._settings = settings
        self._interval_ms = interval_ms
        self._log = CheckpointLog(storage, retained=settings.retained_checkpoints, command=settings.command)
        self._publisher = Publisher(
            store,
            settings.cut,
            settings.publish_threads,
            job=storage.job,
            recover_command=settings.recover_command,
            tried=tried,
        )
        self._staging_files = StagedParts(store, storage, encoder, recover_command=settings.recover_command)
        self._gives_up: Collection[str] = ()
        """Final paths of parts whose rows the start of this epoch was told to give up if they are gone."""
        self._consumers_take_files = False
        """Whether this run is told that they do, or was not told, and the run before was."""
        self._state: SinkSnapshot | None = None
        self._completed_id = 0
        self._triggered: TriggeredCheckpoint | None = None
        self._due_ms: int | None = None
        """When the next periodic checkpoint is due; None takes none."""
        self._lost: PartfileError | None = None
        """Why no further checkpoint may be completed."""
        self._owned_oldest_id: int | None = None
        """The oldest checkpoint that was retained when this coordinator last created one."""

    @property
    def state(self) -> SinkSnapshot:
        """The state as of the newest checkpoint; its pending parts are those whose publication is still owed."""
        if self._state is None:
            raise PartfileError("the coordinator has not been started")
        return self._state

    @property
    def held_epoch(self) -> int | None:
        """The epoch this coordinator began, or None if it has not been started."""
        return None if self._state is None else self.epoch

    @property
    def attempted_takeovers(self) -> frozenset[str]:
        """Nonces of the takeovers that this coordinator has tried to create, whether one was made or not."""
        return self._log.attempted_takeovers

    @property
    def epoch(self) -> int:
        """The epoch this coordinator began."""
        return self._log.newest.epoch

    @property
    def job(self) -> str:
        """The name of the checkpoint log."""
        return self._storage.job

    @property
    def storage(self) -> CheckpointStorage:
        """The checkpoint log's storage."""
        return self._storage

    @property
    def newest_checkpoint(self) -> CheckpointRef:
        """The newest entry of the checkpoint log."""
        return self._log.newest.ref

    @property
    def newest_checkpoint_id(self) -> int:
        """Id of the newest entry of the checkpoint log."""
        return self._log.newest.checkpoint_id

    def look(self) -> SinkSnapshot | None:
        """The state by the newest checkpoint, None if there is none; changes nothing, fences no other coordinator."""
        for _ in range(MAX_START_ATTEMPTS):
            end = self._log.look()
            if end.restored is None:
                return None
            try:
                return plan.restored_state(end.restored.operators, self._storage.read_state)
            except SnapshotCorrupt:
                # A coordinator that has gone on since deletes the files of older checkpoints.
                if not self._has_gone_on(end):
                    raise
        raise self._log.outrun()

    def start(
        self,
        check_replay: Callable[[StreamPosition], None],
        now_ms: int,
        terms: RestoreTerms | None = None,
        approve: Callable[[RestorePlan], None] = lambda _planned: None,
        open_keys: Callable[[SeenKeys | None], None] = lambda _seen: None,
    ) -> CommitReport:
        """Begin an epoch: check, create the takeover, then finalize, encode and publish what the last epoch left.

        Args:
            check_replay: Raises if this run must not go on from that position; then nothing has been changed.
            now_ms: The coordinator's time, in milliseconds since 1970.
            terms: How it is to be done; None goes on as any run of the sink does.
            approve: Raises if this is not the start that was meant; then nothing has been changed.
            open_keys: Raises if this run cannot go on with the keys of the rows so far; then no takeover is created.

        Raises:
            Fenced: Another epoch came after the one to succeed; nothing was changed.
            SnapshotCorrupt: The newest checkpoint cannot be read, and no older one was chosen; nothing was changed
                (R12).
            PartMissing, PartDamaged: A part or staging file that a checkpoint vouches for is gone, or holds something
                else.
        """
        began_ms = stopwatch_ms()
        terms = terms or RestoreTerms()
        restore = Restore(self._settings, self._store, self._storage, terms)
        may_append = self._store.capabilities.append
        overtaken: PartfileError | None = None
        for _ in range(MAX_START_ATTEMPTS):
            end = self._log.see()
            try:
                planned = restore.decide(end, check_replay, may_append=may_append)
                inherited, told = planned.after.position.consumers_take_files, self._settings.consumers_take_files
                self._consumers_take_files = inherited if told is None else told
                after = plan.beside_consumers(planned.after, inherited or self._consumers_take_files)
                approve(planned)
                after = self._prepared(after, end.next_id)
                after = restore.with_own_runs(after, end.next_id)
                open_keys(after.position.seen_keys)
                operators = self._write_state(end.next_id, after)
            except _MAY_BE_FENCED as error:
                # The sink has gone on since: another start has published the part, and a consumer has taken it; or a
                # coordinator that still runs has deleted a checkpoint, or a run of keys that it has merged.
                if not self._has_gone_on(end):
                    raise
                overtaken = error
                continue
            takeover = self._log.take_over(end, now_ms, operators)
            if takeover is not None:
                break
        else:
            raise self._log.outrun() from overtaken
        self._take_in(after, takeover.checkpoint_id, now_ms)
        self._gives_up = terms.gives_up
        if terms.holds:
            owed = len(self.state.pending)
            return CommitReport(takeover.checkpoint_id, 0, owed, commit_ms=stopwatch_ms() - began_ms, publish_ms=0.0)
        done = self._publish_and_subsume(began_ms, now_ms)
        encoding = self._encode(self.state, now_ms, sets_aside=terms.sets_aside)
        if encoding.after is not self.state:
            done = done.followed_by(self._checkpoint_of_its_own(encoding.after, now_ms))
        return self._ended(done, encoding)

    def _has_gone_on(self, end: LogEnd | DamagedEnd) -> bool:
        """Whether the log has another end by now; False where the store does not say."""
        with suppress(StoreError):
            return self._log.see().next_id != end.next_id
        return False

    def assignment(self) -> tuple[SubtaskSnapshot, ...]:
        """The share of each subtask that has one: its open parts and the part counter to go on from."""
        state = self.state
        return tuple(
            SubtaskSnapshot(subtask=subtask, open=parts, max_count=state.max_count)
            for subtask, parts in sorted(state.open.items())
        )

    def trigger(self, now_ms: int) -> TriggeredCheckpoint:
        """Begin the next checkpoint: take its id. An older one that was not completed is given up first."""
        self.abort()
        self._triggered = TriggeredCheckpoint(self._log.newest.checkpoint_id + 1, new_token(), now_ms)
        return self._triggered

    def trigger_if_due(self, now_ms: int) -> TriggeredCheckpoint | None:
        """Begin the periodic checkpoint if it is time for it; None if it is not."""
        if self._due_ms is None or self._interval_ms is None:
            return None
        next_ms = now_ms + self._interval_ms
        # A clock that was set back must not put the next checkpoint off by more than the interval (R8).
        self._due_ms = min(self._due_ms, next_ms)
        if now_ms < self._due_ms:
            return None
        self._due_ms = next_ms
        return self.trigger(now_ms)

    def abort(self) -> None:
        """Give the triggered checkpoint up, if there is one, and close its id with a tombstone."""
        if self._lost is not None:
            raise self._lost
        given_up = self._triggered
        # After an unknown outcome the id is closed already: the tombstone decided it (R7).
        if given_up is not None and given_up.checkpoint_id > self._log.newest.checkpoint_id:
            self._append(self._log.next_entry("tombstone", given_up.checkpoint_id, given_up.time_ms, {}))
        self._triggered = self._lost = None

    def complete(
        self,
        triggered: TriggeredCheckpoint,
        acknowledged: Sequence[SubtaskSnapshot],
        position: StreamPosition,
        now_ms: int | None = None,
    ) -> CommitReport:
        """Complete a checkpoint: make it durable, then publish its parts and subsume older checkpoints.

        Staging files that it holds as closed are encoded then, and a checkpoint of their own publishes the files.

        Args:
            triggered: The checkpoint as it was triggered.
            acknowledged: One snapshot for each of the subtasks 0 to n-1.
            position: Where the stream stands after it.
            now_ms: The time, from which the next periodic checkpoint is counted; None is that of the trigger.

        Raises:
            Fenced: Another coordinator has taken over; nothing of this checkpoint counts.
            UnencodableState: No start could read it again; nothing was created, the checkpoint before it is in force.
            OutcomeUnknown: The checkpoint may be there; a new start finds out.
            PartMissing, PartDamaged, CommitConflict: The checkpoint is complete, but a part of it cannot be published.
        """
        ended_ms = triggered.time_ms if now_ms is None else now_ms
        plan.check_all_answered(acknowledged, triggered.checkpoint_id)
        after = plan.after_batch(
            self.state,
            acknowledged,
            position=position,
            policy=self._settings.rolling,
            now_ms=triggered.time_ms,
            checkpoint_id=triggered.checkpoint_id,
            completed_id=self._completed_id,
        )
        done = self._commit(triggered, after, ended_ms)
        encoding = self._encode(self.state, ended_ms)
        if encoding.after is not self.state:
            # Their files are published because this second checkpoint holds them.
            done = done.followed_by(self._checkpoint_of_its_own(encoding.after, ended_ms))
        return self._ended(done, encoding)

    def _commit(self, triggered: TriggeredCheckpoint, after: SinkSnapshot, now_ms: int) -> CommitReport:
        """Complete the triggered checkpoint with a state. This order is what exactly-once rests on (R1)."""
        began_ms = stopwatch_ms()
        if triggered != self._triggered:
            raise PartfileError("this checkpoint is not under way", checkpoint_id=triggered.checkpoint_id)
        checkpoint_id = triggered.checkpoint_id
        # Parts that are owed since another run go by what that run was told.
        is_owed = self.state.position.consumers_take_files and bool(self.state.pending)
        after = plan.beside_consumers(after, self._consumers_take_files or is_owed)
        # A checkpoint that another coordinator deletes may have this id; then what was written here beside it goes too.
        with self.fence_told():
            after = self._prepared(after, checkpoint_id)
            operators = self._write_state(checkpoint_id, after)
        # The commit point: once this returns the rows count, whatever happens to this process.
        self._append(self._log.next_entry("checkpoint", checkpoint_id, triggered.time_ms, operators))
        self._take_in(after, checkpoint_id, now_ms)
        # Readers see no part before the checkpoint that holds it, and older checkpoints go last.
        return self._publish_and_subsume(began_ms, now_ms)

    def _prepared(self, state: SinkSnapshot, checkpoint_id: int) -> SinkSnapshot:
        """A state with its pending parts prepared, for this checkpoint to hold; the same object if nothing was to do.

        Raises:
            PartMissing: Consumers take files, and a part that the checkpoint is the first to hold as pending is gone.
        """
        if state.position.consumers_take_files:
            self._publisher.check_staged([part for part in state.pending if part.since == checkpoint_id])
        pending = self._publisher.prepare(state.pending)
        is_same = all(now is before for now, before in zip(pending, state.pending, strict=True))
        return state if is_same else replace(state, pending=pending)

    def _write_state(self, checkpoint_id: int, state: SinkSnapshot) -> dict[str, OperatorState]:
        """Write a state into the directory of a checkpoint, or inline; nothing refers to it yet.

        Raises:
            UnencodableState: A start would refuse it.
        """
        streams = self._storage.stream_factory(checkpoint_id)
        handle = write_operator_state(state.to_states(), streams)
        operators = {OPERATOR: OperatorState(parallelism=state.position.parallelism, coordinator=handle)}
        # What a start would refuse must be known before there is a checkpoint that it has to begin with.
        try:
            plan.restored_state(operators, self._storage.read_state)
        except SnapshotError as error:
            raise unreadable(f"checkpoint {checkpoint_id} of job {self.job!r}", error) from error
        return operators

    def _append(self, entry: CheckpointMetadata) -> None:
        """Create the next entry of the log. Until the caller has taken it in, every further one is refused."""
        if self._lost is not None:
            raise self._lost
        # An interrupt may come between any two steps; going on from the state before would then drop parts.
        self._lost = OutcomeUnknown(
            f"it is not known whether checkpoint {entry.checkpoint_id} of job {self.job!r} was created",
            hint="A new start finds out. See which checkpoint counts now: "
            f"{self._settings.command('checkpoints', self.job)}",
            checkpoint_id=entry.checkpoint_id,
        )
        oldest_id = self._log.oldest_id
        try:
            self._log.extend(entry)
        except (NotApplied, UnencodableState):
            self._lost = None
            raise
        except PartfileError as error:
            self._lost = error
            raise
        self._owned_oldest_id = oldest_id

    def _take_in(self, state: SinkSnapshot, checkpoint_id: int, now_ms: int) -> None:
        """Go on from a checkpoint that is complete."""
        self._state, self._completed_id = state, checkpoint_id
        if self._interval_ms is not None:
            self._due_ms = now_ms + self._interval_ms
        self._triggered = self._lost = None

    def _publish_and_subsume(self, began_ms: float, now_ms: int) -> CommitReport:
        """Publish what the checkpoint holds, then delete those that retention does not keep, whatever came of it."""
        try:
            return self._publish(stopwatch_ms() - began_ms, now_ms)
        finally:
            # A part that can never be published must not make every checkpoint stay for ever.
            self._subsume()

    def _ended(self, done: CommitReport, encoding: Encoding) -> CommitReport:
        """End a step by what failed in it: one part for which there is no further try keeps no other one waiting."""
        self._discard_unneeded()
        done = done.with_encoding(encoding)
        done.check()
        return done

    def publish_owed(self, now_ms: int) -> CommitReport | None:
        """Try again to publish what the newest checkpoint still owes; None if it owes nothing.

        What could not be prepared for that checkpoint is published by one of its own.

        Raises:
            PartMissing, PartDamaged, CommitConflict: A part can never be published.
        """
        done = self._publish_owed(now_ms)
        if done is not None:
            done.check()
        return done

    def _publish_owed(self, now_ms: int) -> CommitReport | None:
        prepared = self._prepared(self.state, self._next_id)
        if prepared is not self.state:
            return self._checkpoint_of_its_own(prepared, now_ms)
        return self._publish(0.0, now_ms) if self.state.pending else None

    def _publish(self, commit_ms: float, now_ms: int) -> CommitReport:
        """Publish what the newest checkpoint owes, and note in the log what no start has to look for again."""
        began_ms, checkpoint_id = stopwatch_ms(), self._completed_id
        parts = self.state.pending
        done = self._publisher.publish(parts, self._gives_up, may_be_taken=self.state.position.consumers_take_files)
        self._state = replace(self.state, pending=done.owed)
        if parts and not done.owed:
            mark_published(self._storage, checkpoint_id)
        elif len(done.owed) < len(parts):
            self._note_owed(now_ms)
        return CommitReport(
            checkpoint_id=checkpoint_id,
            published=len(parts) - len(done.owed) - len(done.given_up),
            owed=len(done.owed),
            given_up=len(done.given_up),
            commit_ms=commit_ms,
            publish_ms=stopwatch_ms() - began_ms,
            failure=done.failure,
        )

    def _note_owed(self, now_ms: int) -> None:
        """Take the finished parts out of the state by a checkpoint that holds the owed ones alone.

        Without it a start looks for all of them, and cannot tell one that a consumer has taken from one that is lost.
        """
        triggered = self.trigger(now_ms)
        try:
            operators = self._write_state(triggered.checkpoint_id, self.state)
            self._append(self._log.next_entry("checkpoint", triggered.checkpoint_id, now_ms, operators))
        except (NotApplied, UnencodableState) as error:
            self._triggered = None
            logger.warning("job %s: the next checkpoint will say which parts are finished: %s", self.job, error)
        else:
            self._take_in(self.state, triggered.checkpoint_id, now_ms)

    def _subsume(self) -> None:
        try:
            self._log.subsume()
        except PartfileError as error:
            # The next checkpoint tries again.
            logger.warning("job %s: older checkpoints could not be deleted: %s", self.job, error)

    def close_due(self, now_ms: int) -> CommitReport | None:
        """Close idle and aged parts, and try again what is owed, or closed and due, by a checkpoint of its own.

        Staging files are encoded before it, so that it is the only one.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        due = plan.roll_due(before, self._settings.rolling, now_ms, self._next_id)
        encoding = self._encode(due, now_ms)
        is_same = encoding.after is before
        done = self._publish_owed(now_ms) if is_same else self._checkpoint_of_its_own(encoding.after, now_ms)
        if done is not None:
            return self._ended(done, encoding)
        self._discard_unneeded()
        encoding.check()
        return None

    def close_all(self, now_ms: int, *, keep: bool = False) -> CommitReport | None:
        """Publish every open part, so that nothing is staged any more, or keep them all for the next run.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        if not before.open and not before.pending and not before.closed:
            return None
        ended = plan.at_clean_end(before, keep=keep, checkpoint_id=self._next_id)
        encoding = self._encode(ended, now_ms, at_once=True)
        return self._ended(self._checkpoint_of_its_own(encoding.after, now_ms), encoding)

    def discard_staging_files(self, now_ms: int) -> None:
        """Leave no staging file beside its finished file at a clean end, by a last checkpoint with the same state.

        Where two checkpoints are retained, it takes the place of the one that still names staging files as data. Where
        more are, their user wants to go back further, which takes these files. Nothing is lost where it fails.
        """
        state = self.state
        is_finished = not (state.open or state.pending or state.closed)
        if not state.encoded or not is_finished or self._settings.retained_checkpoints != _FEWEST_TO_GO_BACK:
            return
        try:
            self._checkpoint_of_its_own(state, now_ms)
            self._discard_unneeded()
        except StoreError as error:
            logger.warning("job %s: the next start deletes the staging files of this run: %s", self.job, error)

    def check_fence(self) -> None:
        """See that no other coordinator has taken the sink over.

        Raises:
            Fenced: One has.
            StoreError: The storage does not say.
        """
        self._log.check_is_newest()

    @contextmanager
    def fence_told(self) -> Iterator[None]:
        """Tell an error of the block by its cause, where another coordinator has taken the sink over.

        That one holds the open parts of this one or has published them, and a consumer may have taken them. It deletes
        checkpoints, and the runs of keys that it has merged.

        Raises:
            Fenced: In place of the error.
        """
        try:
            yield
        except _MAY_BE_FENCED:
            with suppress(StoreError):
                self.check_fence()
            raise

    def check_all_is_visible(self) -> None:
        """See that a clean end has left no rows that readers do not see.

        Raises:
            NotReady: Some staging files could not be encoded, or parts not be published. Their rows are safe, and the
                sink can be let go of.
        """
        closed, owed = self.state.closed, self.state.pending
        if not closed and not owed:
            return
        left = [staging_file.part.path_of(staging_file.part.in_progress) for staging_file in closed]
        left += [part.part.path_of(part.part.name) for part in owed]
        raise NotReady(
            f"the sink has ended with rows not visible yet: {len(closed)} staging files not encoded, {len(owed)} parts "
            f"not published; first {left[0]!r}. The rows are safe",
            hint=(
                "The log says what stood in the way. Mend it, then start the sink again or type: "
                f"{self._settings.recover_command()}"
            ),
            path=left[0],
        )

    @property
    def _next_id(self) -> int:
        """The id of the next trigger. An uncompleted checkpoint uses the id before, for its tombstone."""
        newest = self._log.newest.checkpoint_id
        return max(newest, self._triggered.checkpoint_id if self._triggered else 0) + 1

    def _checkpoint_of_its_own(self, after: SinkSnapshot, now_ms: int) -> CommitReport:
        return self._commit(self.trigger(now_ms), after, now_ms)

    def _encode(
        self, before: SinkSnapshot, now_ms: int, *, at_once: bool = False, sets_aside: Collection[str] = ()
    ) -> Encoding:
        """Encode the closed staging files of a state, for the next checkpoint to hold the files.

        Raises:
            Fenced: A staging file is gone, and another coordinator has taken the sink over.
        """
        encoding = self._staging_files.encode(
            before, self._next_id, now_ms, gives_up=self._gives_up, at_once=at_once, sets_aside=sets_aside
        )
        if isinstance(encoding.failure, PartMissing):
            # The coordinator that has taken the sink over has encoded it, and deleted it.
            self.check_fence()
        return encoding

    def _discard_unneeded(self) -> None:
        """Delete the staging files and the run files that no retained checkpoint names as data."""
        self._state = self._staging_files.discard(self.state, self._log.oldest_id)
        self._state = self._without_unneeded_runs(self._state)

    def _without_unneeded_runs(self, state: SinkSnapshot) -> SinkSnapshot:
        """The state without the run files that are deleted now; one that cannot be is left to the cleaner.

        By what was retained before the last checkpoint: that it could be created shows that no rival had begun with an
        older one by then, and a rival that begins later finds none that names these files (R7).
        """
        seen = state.position.seen_keys
        gone = plan.disposable_runs(seen, self._owned_oldest_id) if self._owned_oldest_id is not None else []
        if seen is None or not gone:
            return state
        discard_each(
            lambda run: self._storage.store.delete_file(self._storage.path(run.path)),
            gone,
            self._store.persist_threads,
            lambda run: f"run file {run.path}",
        )
        left = seen.model_copy(update={"unneeded": tuple(run for run in seen.unneeded if run not in gone)})
        return replace(state, position=state.position.model_copy(update={"seen_keys": left}))


class Runtime:
    """The stores and the coordinator of one run of a sink.

    Args:
        settings: The sink's options.
        job: The name of the checkpoint log: the uid, or a name made from it.
        interval_ms: Between periodic checkpoints; None takes none.
        encoder: Makes what encodes closed staging files, given the storage of the checkpoints and what encodes them in
            this process; None takes the latter.
        tried: Told how many parts more were published, and staging files encoded in this process, or could not be; from
            any thread.
    """

    def __init__(
        self,
        settings: RestoreSettings,
        job: str,
        *,
        interval_ms: int | None = None,
        encoder: Callable[[CheckpointStorage, StagingEncoder], StagingEncoder] | None = None,
        tried: Callable[[int], None] = lambda _parts: None,
    ) -> None:
        self.job = job
        self.store = settings.open_store(settings.base, settings.storage_options)
        try:
            self.storage = open_storage(
                settings.checkpoints, job, settings.checkpoint_options, opener=settings.open_store
            )
        except BaseException:
            self.store.close()
            raise
        self._warn(settings)
        threads = _encode_threads(settings.publish_threads)
        here = LocalEncoder(self.store, threads, tried, sink_format=settings.sink_format)
        self.coordinator = SinkCoordinator(
            self.store,
            self.storage,
            settings,
            here if encoder is None else encoder(self.storage, here),
            interval_ms=interval_ms,
            tried=tried,
        )

    @property
    def may_append(self) -> bool:
        """Whether a later process can append to a part that this one leaves open."""
        return self.store.capabilities.append

    @property
    def may_stage(self) -> bool:
        """Whether parts can be staged: appended to by a later process, and read back by the one that encodes them."""
        return self.may_append and self.store.capabilities.staging_files

    @property
    def tasks_may_keep(self) -> bool:
        """Whether tasks may leave parts open if they find the marker held: where parts are leased it must be a lock."""
        return self.may_append and (self.storage.store.markers_are_locks or not self.store.capabilities.lease)

    @property
    def marker_path(self) -> str:
        """The file whose lock proves a shared file system with real locks (R13)."""
        return self.storage.path(MARKER)

    def close(self) -> None:
        """Release the stores; may be called twice."""
        self.store.close()
        self.storage.store.close()

    def _warn(self, settings: RestoreSettings) -> None:
        """Log the hazards of base and checkpoint directory. A store that does not answer is the restore's to report."""
        now_ms, longest_open_s = settings.now_ms(), settings.rolling.rollover_interval_s
        try:
            found = {*self.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            found |= {*self.storage.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            is_staged = settings.encode_spec is None or self.may_stage
        except StoreError:
            return
        for hazard in sorted(found):
            logger.warning("%s: %s", settings.uid, hazard)
        if not is_staged:
            logger.warning(
                "%s: %s cannot append to a part and read it back, so columnar parts roll at every checkpoint",
                settings.uid,
                self.store.base,
            )


def _encode_threads(publish_threads: int | None) -> int:
    """Staging files encoded at the same time: no more than parts are published, nor than there are processors."""
    return min(publish_threads or _MOST_ENCODE_THREADS, _MOST_ENCODE_THREADS, os.cpu_count() or 1)
