"""The coordinator of a sink: restores, hands out parts, completes checkpoints, publishes. Needs no Spark."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from partfile.errors import CommitError, NotReady, PartfileError, PartMissing, StoreError
from partfile.sink import plan as planning
from partfile.sink import plan as stage_planning
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrency import Patience, for_each
from partfile.sink.encode import EncodeRetries, StagesInProcess
from partfile.sink.restore import Beginning, RestoreOnDemand, StartTerms
from partfile.sink.states import OPERATOR, SubtaskSnapshot
from partfile.snapshot.coordinator import CheckpointCoordinator, CoordinatorSettings
from partfile.snapshot.events import CoordinatorRules, Refusal, RequestKind, RequestLimits
from partfile.snapshot.storage import open_storage
from partfile.snapshot.strategy import write_operator_state
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from partfile.sink.encode import EncodedStage, StageEncoder
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.policies import RollingPolicy
    from partfile.sink.settings import RestoreSettings
    from partfile.sink.states import PendingPart, RolledStage, SpentStage, StreamPosition
    from partfile.snapshot.documents import LinkRef, OperatorState, SubtaskState
    from partfile.snapshot.events import CheckpointRequest, FailureReason, PendingCheckpoint
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.stores.base import Cut, PartStore


class CommitHooks:
    """The hooks of a sink that takes one checkpoint at a time and waits for it.

    Args:
        finalise: Makes the operator states of a checkpoint.
        publish: Publishes the parts of a completed checkpoint.
    """

    def __init__(
        self,
        finalise: Callable[[PendingCheckpoint], Mapping[str, OperatorState]],
        publish: Callable[[], None],
    ) -> None:
        self._finalise = finalise
        self._publish = publish
        self._failure: Exception | None = None

    def raise_failure(self) -> None:
        """Raise what has gone wrong since the last call, if anything has."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def forget_failure(self) -> None:
        """Whoever gave a checkpoint up need not be told."""
        self._failure = None

    def trigger_tasks(self, pending: PendingCheckpoint) -> None:
        """The caller of ``trigger`` runs the tasks."""

    def finalise(self, pending: PendingCheckpoint) -> Mapping[str, OperatorState]:
        """Write the state."""
        return self._finalise(pending)

    def notify_complete(self, checkpoint_id: int) -> None:  # noqa: ARG002 - the sink has the state of the newest one
        """Publish; an error waits for the thread that asked for the checkpoint, which is complete all the same."""
        try:
            self._publish()
        except Exception as error:  # noqa: BLE001 - raised again by raise_failure
            self._failure = error

    def notify_aborted(self, checkpoint_id: int, reason: FailureReason, completed_id: int) -> None:
        """The tasks have ended by then."""

    def fulfilled(self, pending: PendingCheckpoint) -> None:
        """The caller of ``complete`` sees it."""

    def refused(
        self,
        request: CheckpointRequest,  # noqa: ARG002 - there is only one at a time
        reason: Refusal | FailureReason,
        checkpoint_id: int | None,
        cause: Exception | None,
    ) -> None:
        """Keep the error for the thread that asked. Nobody asked for a periodic checkpoint that comes too soon."""
        if reason is Refusal.MINIMUM_PAUSE:
            return
        self._failure = cause or PartfileError(f"no checkpoint: {reason.value}", checkpoint_id=checkpoint_id)

    def fail_job(self, checkpoint_id: int, reason: FailureReason) -> None:
        """The thread that asked fails by the error."""


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """What the coordinator does at a checkpoint."""

    rolling: RollingPolicy
    cut: Cut
    publish_threads: int | None
    """None takes what suits the store."""
    accept_missing: bool
    retained_checkpoints: int
    writer: str
    """Version of partfile, written into every checkpoint."""
    interval_ms: int | None = None
    """From the end of a checkpoint to the periodic one after it; None takes none."""

    @property
    def rules(self) -> CoordinatorRules:
        """Of these only the interval means something: whoever asks for a checkpoint waits for it, and fails with it."""
        # One checkpoint at a time: a start has one id to close.
        if self.interval_ms is None:
            return CoordinatorRules(spare_ids=0)
        # A pause as long as the interval makes it count from the end of a checkpoint, also of one that was asked for.
        limits = RequestLimits(min_pause_ms=self.interval_ms)
        return CoordinatorRules(limits=limits, interval_ms=self.interval_ms, spare_ids=0)


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
    """Parts and stages that were gone, and that nobody looks for again because ``accept_missing`` is set."""
    encoded: int = 0
    """Stages that were encoded for it, or for the checkpoint that came before it and rolled them."""
    encode_ms: float = 0.0

    def followed_by(self, later: CommitReport) -> CommitReport:
        """What this checkpoint and the one after it did together."""
        return CommitReport(
            checkpoint_id=later.checkpoint_id,
            published=self.published + later.published,
            owed=later.owed,
            commit_ms=self.commit_ms + later.commit_ms,
            publish_ms=self.publish_ms + later.publish_ms,
            given_up=self.given_up + later.given_up,
        )

    def giving_up(self, stages: int) -> CommitReport:
        """The same, with so many stages given up as well."""
        return replace(self, given_up=self.given_up + stages)


logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of the parts that did not become finished files."""

    owed: tuple[PendingPart, ...]
    """Could not be published now; tried again."""
    given_up: tuple[PendingPart, ...]
    """Gone, and nobody looks for them again."""


class Publisher:
    """Settles and publishes parts through the store.

    Args:
        store: Where the parts are.
        cut: How a part that is longer than its valid length is cut.
        threads: Parts published at the same time, at least 1; None takes what suits the store.
        job: Whose parts they are, for messages.
        accept_missing: Give a part up that is gone, with a line in the log, instead of stopping.
    """

    def __init__(
        self, store: PartStore, cut: Cut, threads: int | None, *, job: str, accept_missing: bool = False
    ) -> None:
        self._store = store
        self._job = job
        self._cut = cut
        self._threads = threads or store.capabilities.publish_threads
        self._accept_missing = accept_missing

    def publish(
        self,
        parts: Sequence[PendingPart],
        gives_up: Collection[str] | None = None,
        tried: Callable[[int], None] = lambda _parts: None,
    ) -> Publication:
        """Publish each part.

        Idempotent. A storage failure leaves the part owed: it stays in the snapshot and is tried again with the next
        checkpoint and at restore. Where storage does not answer, parts that have not begun are owed untried.

        Args:
            parts: To be published.
            gives_up: Final paths of the only parts that ``accept_missing`` is meant for; None is all.
            tried: Told how many parts more were published, or could not be; from any thread.

        Returns:
            Those that were not published.

        Raises:
            PartMissing: A part that the checkpoint vouches for is gone; the others have been published.
            PartDamaged: One is not what was written, as its store can tell; the others have been published.
            CommitConflict: Foreign bytes stand in the place of one; the others have been published.
        """
        patience = Patience(self._threads)

        def attempt(part: PendingPart) -> Exception | None:
            failure = self._attempt(patience, part)
            tried(1)
            return failure

        failures = for_each(attempt, parts, self._threads, "partfile-publish")
        owed, given_up = [], []
        for part, failure in zip(parts, failures, strict=True):
            if isinstance(failure, PartMissing) and self._may_give_up(part, gives_up):
                given_up.append(part)
                logger.error("given up, because accept_missing is set: %s", failure)
            elif isinstance(failure, CommitError):
                where = f"sink {self._job!r} at {self._store.base!r}"
                raise type(failure)(f"{where}: {failure.message}", hint=failure.hint, path=failure.path) from failure
            elif failure is not None and not isinstance(failure, StoreError):
                raise failure
            elif failure is not None:
                owed.append(part)
        return Publication(tuple(owed), tuple(given_up))

    def _may_give_up(self, part: PendingPart, gives_up: Collection[str] | None) -> bool:
        return self._accept_missing and (gives_up is None or part.part.path_of(part.part.name) in gives_up)

    def _attempt(self, patience: Patience, part: PendingPart) -> Exception | None:
        if patience.is_over:
            return NotReady("not tried, since storage does not answer", path=part.part.path_of(part.part.name))
        try:
            self._store.publish(part.part, self._cut)
        except StoreError as error:
            patience.note(error)
            logger.warning("part %s is not published yet: %s", part.part.path_of(part.part.name), error)
            return error
        except Exception as error:  # noqa: BLE001 - raised by the caller once the other parts are published
            return error
        return None


def mark_published(storage: CheckpointStorage, checkpoint_id: int) -> None:
    """Note that all parts of a checkpoint have their final names, so that no start looks for them again.

    Without the mark the next start publishes them once more, which changes nothing.
    """
    try:
        storage.mark_published(checkpoint_id)
    except StoreError as error:
        logger.warning("checkpoint %d is complete and published, but not marked so: %s", checkpoint_id, error)


class SinkCheckpoints:
    """Completes the checkpoints of one sink, one at a time: what to complete them with its subclass decides.

    Args:
        store: Where the parts are.
        storage: Where the checkpoints are.
        settings: What to do at a checkpoint.
    """

    def __init__(self, store: PartStore, storage: CheckpointStorage, settings: CommitSettings) -> None:
        self._store = store
        self._storage = storage
        self._settings = settings
        self._hooks = CommitHooks(self._finalise, self._publish)
        self._checkpoints = CheckpointCoordinator(
            storage,
            self._hooks,
            lambda: self._now_ms,
            CoordinatorSettings(settings.writer, settings.retained_checkpoints, settings.rules),
        )
        self._publisher = Publisher(
            store, settings.cut, settings.publish_threads, job=storage.job, accept_missing=settings.accept_missing
        )
        self._state: SinkSnapshot | None = None
        self._next: SinkSnapshot | None = None
        """The state that is in force once the link that holds it is there."""
        self._terms = StartTerms()
        """How this generation was begun."""
        self._now_ms = 0
        """The batch time, as the callers tell it."""
        self._began_ms = 0.0
        self._report: CommitReport | None = None

    @property
    def state(self) -> SinkSnapshot:
        """The state as of the newest checkpoint; its pending parts are those whose publication is still owed."""
        if self._state is None:
            raise PartfileError("the coordinator has not been started")
        return self._state

    @property
    def held_generation(self) -> int | None:
        """The generation this coordinator began, or None if it has not been started."""
        return None if self._state is None else self.generation

    @property
    def attempted_fences(self) -> frozenset[str]:
        """Nonces of the fences that this coordinator has tried to create, whether one was made or not."""
        return self._checkpoints.attempted_fences

    @property
    def generation(self) -> int:
        """The generation this coordinator began."""
        return self._checkpoints.newest.generation

    @property
    def job(self) -> str:
        """The name of the chain of checkpoints."""
        return self._storage.job

    @property
    def newest_link(self) -> LinkRef:
        """The newest link."""
        return self._checkpoints.newest.ref

    @property
    def newest_checkpoint_id(self) -> int:
        """Id of the newest link."""
        return self._checkpoints.newest.checkpoint_id

    @property
    def pending(self) -> PendingCheckpoint:
        """The triggered checkpoint, with the acknowledgements that have come in."""
        if not self._checkpoints.state.pending:
            raise PartfileError("no checkpoint is pending; trigger one first")
        return self._checkpoints.state.pending[-1]

    def look(self) -> SinkSnapshot | None:
        """The state by the newest checkpoint, None if there is none; changes nothing, fences nobody."""
        link = self._checkpoints.look()
        return planning.restored_state(link.operators, self._storage.read_state) if link else None

    def trigger(self, now_ms: int) -> PendingCheckpoint:
        """Begin the next checkpoint. An older one that is still pending is given up."""
        self.abort()
        self._now_ms = now_ms
        self._checkpoints.request(RequestKind.USER)
        self._hooks.raise_failure()
        return self.pending

    def trigger_if_due(self, now_ms: int) -> PendingCheckpoint | None:
        """Begin the periodic checkpoint if it is time for it; None if it is not."""
        self._now_ms = now_ms
        self._checkpoints.tick()
        self._hooks.raise_failure()
        pending = self._checkpoints.state.pending
        return pending[-1] if pending else None

    def acknowledge(self, state: SubtaskState, submission: str) -> None:
        """Take one subtask's state for the pending checkpoint; one of another submission or a second one is none."""
        self._checkpoints.acknowledge(self.pending.checkpoint_id, state.subtask, submission, state.handle)

    def publish_owed(self) -> CommitReport | None:
        """Try again to publish what the newest checkpoint still owes; None if it owes nothing."""
        return self._settle(0.0) if self.state.pending else None

    def abort(self) -> None:
        """Give the triggered checkpoint up, if there is one, and close its id."""
        for pending in self._checkpoints.state.pending:
            self._checkpoints.abort(pending.checkpoint_id)
        self._hooks.forget_failure()

    def _checkpoint_of_its_own(self, after: SinkSnapshot, now_ms: int) -> CommitReport:
        self._began_ms = stopwatch_ms()
        self.trigger(now_ms)
        return self._complete(after)

    def _complete(self, after: SinkSnapshot) -> CommitReport:
        """Complete the pending checkpoint, whose subtasks have all acknowledged."""
        pending = self.pending
        self._next = after
        self._checkpoints.know_subtasks(pending.checkpoint_id, len(pending.subtasks()))
        return self._outcome()

    def _outcome(self) -> CommitReport:
        report, self._report = self._report, None
        self._hooks.raise_failure()
        if report is None:
            raise PartfileError("the checkpoint was not completed", hint="Restore; the one before it is in force.")
        return report

    def _finalise(self, pending: PendingCheckpoint) -> dict[str, OperatorState]:
        if self._next is None:
            raise PartfileError("there is no state to complete a checkpoint with", checkpoint_id=pending.checkpoint_id)
        return self._operators(self._next, pending.checkpoint_id)

    def _operators(self, snapshot: SinkSnapshot, checkpoint_id: int) -> dict[str, OperatorState]:
        streams, now_ms = self._storage.stream_factory(checkpoint_id), self._now_ms
        states = planning.operator_state(
            snapshot, lambda states: write_operator_state(states, streams, checkpoint_id, now_ms)
        )
        return {OPERATOR: states}

    def _publish(self) -> None:
        """The link is there: its state is in force."""
        commit_ms = stopwatch_ms() - self._began_ms
        self._state, self._next = self._next, None
        self._report = self._settle(commit_ms)

    def _settle(self, commit_ms: float) -> CommitReport:
        """Publish what the newest checkpoint owes, and mark it when that is all done."""
        began = stopwatch_ms()
        parts, terms = self.state.pending, self._terms
        done = Publication(parts, ()) if terms.holds else self._publisher.publish(parts, terms.gives_up, terms.tried)
        self._state = replace(self.state, pending=done.owed)
        checkpoint_id = self._checkpoints.completed_id
        if parts and not done.owed:
            mark_published(self._storage, checkpoint_id)
        return CommitReport(
            checkpoint_id=checkpoint_id,
            published=len(parts) - len(done.owed) - len(done.given_up),
            owed=len(done.owed),
            given_up=len(done.given_up),
            commit_ms=commit_ms,
            publish_ms=stopwatch_ms() - began,
        )


class Encoding(NamedTuple):
    """What a state has become by encoding its rolled stages."""

    after: SinkSnapshot
    """The state, for the checkpoint that is to hold it; the very same object if nothing has come of it."""
    failure: Exception | None
    """To be raised once that checkpoint is complete: a stage that no further try will encode."""
    given_up: int = 0
    """Stages that were gone, and that nobody looks for again because ``accept_missing`` is set."""
    encoded: int = 0
    """Stages that have become files."""
    encode_ms: float = 0.0


class StagedParts:
    """Encodes and deletes the stages of one sink.

    Args:
        store: Where they are.
        encoder: Has the hands for it.
        job: Whose they are, for messages.
        accept_missing: Give a stage up that is gone, with a line in the log, instead of stopping.
    """

    def __init__(self, store: PartStore, encoder: StageEncoder, *, job: str, accept_missing: bool = False) -> None:
        self._store = store
        self._encoder = encoder
        self._job = job
        self._accept_missing = accept_missing
        self._retries = EncodeRetries()

    def encode(
        self,
        before: SinkSnapshot,
        checkpoint_id: int,
        now_ms: int,
        *,
        gives_up: Collection[str] | None = None,
        at_once: bool = False,
    ) -> Encoding:
        """Encode the rolled stages of a state.

        A storage failure leaves a stage rolled, to be tried again with the next checkpoint, then less and less often.

        Args:
            before: The state.
            checkpoint_id: The checkpoint that is to hold the result; it must be complete before a file is published.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            gives_up: Final paths of the only parts that ``accept_missing`` is meant for; None is all.
            at_once: Try also those that have failed and are left alone for a while, since this is the end or the state
                is for a savepoint. It makes no wait longer.
        """
        stages = before.rolled if at_once else self._retries.due(before.rolled, now_ms)
        if not stages:
            return Encoding(before, None)
        began = stopwatch_ms()
        encoded = [self._judged(self._looked_at(one), gives_up) for one in self._encoder.encode(stages)]
        self._retries.note(encoded, now_ms, at_once=at_once)
        took_ms, done = stopwatch_ms() - began, sum(one.is_done for one in encoded)
        failures = [one.problem for one in encoded if one.problem is not None and not one.is_given_up]
        for one in encoded:
            if isinstance(one.problem, StoreError):
                what = "is left for later" if at_once else f"is tried again {self._when(one.stage, now_ms)}"
                logger.warning("stage %s is not wholly encoded yet, and %s: %s", _path(one), what, one.problem)
        fatal = next((error for error in failures if not isinstance(error, StoreError)), None)
        if not any(one.files is not None or one.is_given_up for one in encoded):
            return Encoding(before, self._explained(fatal), encode_ms=took_ms)
        after = stage_planning.after_encoding(before, encoded, checkpoint_id)
        given_up = sum(one.is_given_up for one in encoded)
        return Encoding(after, self._explained(fatal), given_up, done, took_ms)

    def discard(self, snapshot: SinkSnapshot, oldest_retained_id: int) -> SinkSnapshot:
        """Delete the spent stages that no retained checkpoint names as data any more, and take them out of the state.

        One that cannot be deleted is left to the cleaner, so that the state stays bounded.

        Args:
            snapshot: A state that a completed checkpoint holds.
            oldest_retained_id: Id of the oldest link that is still there.
        """
        gone = stage_planning.disposable(snapshot.spent, oldest_retained_id)
        if not gone:
            return snapshot
        self._delete(gone)
        names = {stage.part.in_progress for stage in gone}
        return replace(snapshot, spent=tuple(stage for stage in snapshot.spent if stage.part.in_progress not in names))

    def _delete(self, stages: Sequence[SpentStage]) -> None:
        threads = self._store.persist_threads
        patience = Patience(threads)

        def attempt(stage: SpentStage) -> None:
            try:
                if not patience.is_over:
                    self._store.discard(stage.part)
            except StoreError as error:
                patience.note(error)
                path = stage.part.path_of(stage.part.in_progress)
                logger.warning("stage %s is not needed any more, but cannot be deleted: %s", path, error)

        for_each(attempt, stages, threads, "partfile-discard")

    def _when(self, stage: RolledStage, now_ms: int) -> str:
        left_ms = self._retries.left_ms(stage, now_ms)
        return f"in {left_ms / 1000:.0f} s at the earliest" if left_ms else "with the next checkpoint"

    def _looked_at(self, one: EncodedStage) -> EncodedStage:
        """What became of a stage; that it is gone is believed only once it is missed from here as well."""
        if not (isinstance(one.problem, PartMissing) and self._encoder.is_elsewhere):
            return one
        try:
            # Where a stage is many objects, the last of them says nothing of the others.
            if not self._store.is_staged(one.stage.part):
                return one
            with closing(self._store.open_stage(one.stage.part, fences=True)) as file:
                # On some stores only reading shows that a file is too short.
                file.seek(max(0, one.stage.part.valid_length - 1))
                file.read(1)
        except PartfileError as error:
            return replace(one, problem=error)
        there = NotReady(
            f"stage {_path(one)!r} was missed by who was to encode it, and is there: {one.problem.message}",
            hint="It is tried again later. All executors must see the base path as the driver does.",
            path=_path(one),
        )
        return replace(one, problem=there)

    def _judged(self, one: EncodedStage, gives_up: Collection[str] | None) -> EncodedStage:
        if not (isinstance(one.problem, PartMissing) and self._accept_missing):
            return one
        if gives_up is not None and _path(one) not in gives_up:
            return one
        logger.error("given up, because accept_missing is set: %s", one.problem)
        return replace(one, is_given_up=True)

    def _explained(self, error: Exception | None) -> Exception | None:
        if error is None:
            return None
        where = f"sink {self._job!r} at {self._store.base!r}"
        if not isinstance(error, PartfileError):
            error = PartfileError(f"{type(error).__name__}: {error}")
        explained = type(error)(f"{where}: {error.message}", hint=error.hint, path=error.path)
        explained.__cause__ = error
        return explained


def _path(one: EncodedStage) -> str:
    return one.stage.part.path_of(one.stage.part.name)


Report = TypeVar("Report", CommitReport, CommitReport | None)


class SinkCoordinator(SinkCheckpoints):
    """Owns the state of one sink between a start and its end, one checkpoint at a time.

    Args:
        store: Where the parts are.
        storage: Where the checkpoints are.
        settings: What to do at a checkpoint.
        on_demand: What a start begins with instead of the newest checkpoint.
        encoder: Encodes rolled stages.
    """

    def __init__(
        self,
        store: PartStore,
        storage: CheckpointStorage,
        settings: CommitSettings,
        on_demand: RestoreOnDemand,
        encoder: StageEncoder,
    ) -> None:
        super().__init__(store, storage, settings)
        self._on_demand = on_demand
        self._stages = StagedParts(store, encoder, job=storage.job, accept_missing=settings.accept_missing)

    def start(
        self, admit: Callable[[StreamPosition], None], now_ms: int, terms: StartTerms | None = None
    ) -> CommitReport:
        """Begin a generation: check, create the fence link, then settle, encode and publish what the last one left.

        Args:
            admit: Raises if this run must not go on from that position; then nothing has been changed.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            terms: How it is to be done; None goes on as any run of the sink does.

        Raises:
            Fenced: Another generation came after the one to succeed; nothing was changed.
            SnapshotCorrupt: The newest checkpoint cannot be read, and its user has not chosen an older one; nothing was
                changed (S12).
            PartMissing, PartDamaged: A part or stage that a checkpoint vouches for is gone, or holds something else.
        """
        self._now_ms, self._began_ms = now_ms, stopwatch_ms()
        self._terms = terms = terms or StartTerms()
        begin = Beginning(self._storage, self._on_demand, admit, terms, self._store.capabilities.append)

        def states(snapshot: SinkSnapshot, checkpoint_id: int) -> dict[str, OperatorState]:
            self._next = snapshot
            return self._operators(snapshot, checkpoint_id)

        self._checkpoints.start(
            lambda link, checkpoint_id: states(begin.after(link, checkpoint_id), checkpoint_id),
            lambda end, checkpoint_id: states(begin.over(end, checkpoint_id), checkpoint_id),
        )
        if self._settings.interval_ms is not None:
            self._checkpoints.start_periodic()
        return self._encode_rolled(self._outcome())

    def assignment(self) -> tuple[SubtaskSnapshot, ...]:
        """The share of each subtask that has one: its open parts and the part counter to go on from."""
        state = self.state
        return tuple(
            SubtaskSnapshot(subtask=subtask, open=parts, max_count=state.max_count)
            for subtask, parts in sorted(state.open.items())
        )

    def complete(
        self,
        pending: PendingCheckpoint,
        acknowledged: Sequence[SubtaskSnapshot],
        position: StreamPosition,
        now_ms: int | None = None,
    ) -> CommitReport:
        """Complete a checkpoint: make its link durable, then publish its parts and subsume older checkpoints.

        Stages that it holds as rolled are encoded then, and a checkpoint of their own publishes the files.

        Args:
            pending: The checkpoint as it was triggered.
            acknowledged: One snapshot for each of the subtasks 0 to n-1; this acknowledges those that have not yet.
            position: Where the stream stands after it.
            now_ms: The time, from which the next periodic checkpoint is counted; None is that of the trigger.

        Raises:
            Fenced: Another coordinator has taken over; nothing of this checkpoint counts.
            OutcomeUnknown: The link may be there; a new start finds out.
            PartMissing, PartDamaged, CommitConflict: The checkpoint is complete, but a part of it cannot be published.
        """
        self._began_ms = stopwatch_ms()
        self._now_ms = pending.time_ms if now_ms is None else now_ms
        after = planning.after_batch(
            self.state,
            acknowledged,
            position=position,
            policy=self._settings.rolling,
            now_ms=pending.time_ms,
            checkpoint_id=pending.checkpoint_id,
            completed_id=self._checkpoints.completed_id,
        )
        for snapshot in acknowledged:
            if snapshot.subtask not in self.pending.acknowledged:
                # Its state is in hand already, and what is linked is written from that.
                self._checkpoints.acknowledge(pending.checkpoint_id, snapshot.subtask, pending.submission, None)
        return self._encode_rolled(self._complete(after))

    def close_due(self, now_ms: int) -> CommitReport | None:
        """Close idle and aged parts, and try again what is owed or rolled and due, by a checkpoint of its own.

        Stages are encoded before it, so that it is the only one.

        Returns:
            None if there was nothing to do.
        """
        before, checkpoint_id = self.state, self._checkpoints.state.next_id
        due = planning.roll_due(before, self._settings.rolling, now_ms, checkpoint_id)
        encoding = self._stages.encode(due, checkpoint_id, now_ms, gives_up=self._terms.gives_up)
        if encoding.after is not before:
            done = self._checkpoint_of_its_own(encoding.after, now_ms).giving_up(encoding.given_up)
            return self._finished(done, encoding)
        return self._finished(self.publish_owed(), encoding)

    def close_all(self, now_ms: int, *, keep: bool = False) -> CommitReport | None:
        """Publish every open part, so that nothing is staged any more, or keep them all for the next run.

        Returns:
            None if there was nothing to do.
        """
        before, checkpoint_id = self.state, self._checkpoints.state.next_id
        if not before.open and not before.pending and not before.rolled:
            return None
        after = planning.at_clean_end(before, keep=keep, checkpoint_id=checkpoint_id)
        encoding = self._stages.encode(after, checkpoint_id, now_ms, gives_up=self._terms.gives_up, at_once=True)
        done = self._checkpoint_of_its_own(encoding.after, now_ms).giving_up(encoding.given_up)
        return self._finished(done, encoding)

    def check_all_is_visible(self) -> None:
        """See that a clean end has left no rows that readers do not see.

        Raises:
            NotReady: Some stages could not be encoded, or parts not be published. Their rows are safe, and the sink can
                be let go of.
        """
        rolled, owed = self.state.rolled, self.state.pending
        if not rolled and not owed:
            return
        left = [stage.part.path_of(stage.part.in_progress) for stage in rolled]
        left += [part.part.path_of(part.part.name) for part in owed]
        raise NotReady(
            f"the sink has ended, and {len(rolled)} of its stages could not be encoded, {len(owed)} of its parts "
            f"not be published, {left[0]!r} first: their rows are safe, and not visible yet",
            hint="The log says what stood in the way. Mend it, then start the sink again or run partfile recover.",
            path=left[0],
        )

    def _encode_rolled(self, report: CommitReport) -> CommitReport:
        """Encode what the completed checkpoint holds as rolled, and publish the files by a checkpoint of their own."""
        if self._terms.holds:
            return report
        next_id, gives_up = self._checkpoints.state.next_id, self._terms.gives_up
        encoding = self._stages.encode(self.state, next_id, self._now_ms, gives_up=gives_up)
        if encoding.after is not self.state:
            later = self._checkpoint_of_its_own(encoding.after, self._now_ms)
            report = report.followed_by(later).giving_up(encoding.given_up)
        return self._finished(report, encoding)

    def _finished(self, report: Report, encoding: Encoding) -> Report:
        """Delete the stages that nobody needs now that older checkpoints are gone; then raise what an encode met.

        Raises:
            PartMissing, PartDamaged: A stage can never be encoded.
        """
        self._state = self._stages.discard(self.state, self._checkpoints.oldest_id)
        if encoding.failure is not None:
            raise encoding.failure
        if report is None:
            return report
        return replace(report, encoded=encoding.encoded, encode_ms=encoding.encode_ms)


MARKER = "_marker"
_MOST_ENCODE_THREADS = 4
"""Each holds a row group in memory."""


class Runtime:
    """The stores and the coordinator of one run of a sink.

    Args:
        settings: The sink's options.
        job: The name of the chain of checkpoints: the uid, or a name made from it.
        interval_ms: Between periodic checkpoints; None takes none.
        encoder: Makes what encodes rolled stages, given the storage of the checkpoints; None does it in this process.
        encoded: Told how many stages more were encoded in this process, or could not be; from any thread.
    """

    def __init__(
        self,
        settings: RestoreSettings,
        job: str,
        *,
        interval_ms: int | None = None,
        encoder: Callable[[CheckpointStorage], StageEncoder] | None = None,
        encoded: Callable[[int], None] = lambda _stages: None,
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
        self.coordinator = SinkCoordinator(
            self.store,
            self.storage,
            CommitSettings(
                rolling=settings.rolling,
                cut=settings.cut,
                publish_threads=settings.publish_threads,
                accept_missing=settings.accept_missing,
                retained_checkpoints=settings.retained_checkpoints,
                writer=__version__,
                interval_ms=interval_ms,
            ),
            RestoreOnDemand(settings, self.store, self.storage),
            StagesInProcess(
                self.store, _encode_threads(settings.publish_threads), encoded, sink_format=settings.sink_format
            )
            if encoder is None
            else encoder(self.storage),
        )

    @property
    def may_append(self) -> bool:
        """Whether a later process can append to a part that this one leaves open."""
        return self.store.capabilities.append

    @property
    def may_stage(self) -> bool:
        """Whether parts can be staged: appended to by a later process, and read back by whoever encodes them."""
        return self.may_append and self.store.capabilities.stages

    @property
    def tasks_may_keep(self) -> bool:
        """Whether tasks may leave parts open if they find the marker held: where parts are leased it must be a lock."""
        return self.may_append and (self.storage.store.markers_are_locks or not self.store.capabilities.lease)

    @property
    def marker_path(self) -> str:
        """The file whose lock proves a shared file system with real locks (S13)."""
        return marker_path_of(self.job)

    def close(self) -> None:
        """Release the stores; may be called twice."""
        self.store.close()
        self.storage.store.close()

    def _warn(self, settings: RestoreSettings) -> None:
        """Say what about the places can hurt; that asking fails is for the restore to tell."""
        now_ms, longest_open_s = settings.clock(), settings.rolling.rollover_interval_s
        try:
            found = {*self.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            found |= {*self.storage.store.hazards(now_ms=now_ms, longest_open_s=longest_open_s)}
            is_staged = settings.stage_recipe is None or self.may_stage
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


def marker_path_of(job: str) -> str:
    """The marker of a chain of checkpoints, in the store that these are in."""
    return f"{job}/{MARKER}"


def _encode_threads(publish_threads: int | None) -> int:
    """Stages encoded at the same time: no more than parts are published, nor than there are processors."""
    return min(publish_threads or _MOST_ENCODE_THREADS, _MOST_ENCODE_THREADS, os.cpu_count() or 1)
