"""The coordinator of a sink: restores, hands out parts, completes checkpoints, publishes. Needs no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.sink import planning
from partfile.sink.beginning import Beginning, StartTerms
from partfile.sink.clock import stopwatch_ms
from partfile.sink.commit_hooks import CommitHooks
from partfile.sink.commits import CommitReport
from partfile.sink.publishing import Publication, Publisher, mark_published
from partfile.sink.states import OPERATOR, SubtaskSnapshot
from partfile.snapshot.coordinator import CheckpointCoordinator
from partfile.snapshot.operator_snapshot import write_operator_state
from partfile.snapshot.requests import RequestKind
from partfile.snapshot.settings import CoordinatorSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.filesystems.port import PartStore
    from partfile.sink.commits import CommitSettings
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restore_on_demand import RestoreOnDemand
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.model import LinkRef, OperatorState, SubtaskState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.storage import CheckpointStorage


class SinkCoordinator:
    """Owns the state of one sink between a start and its end, one checkpoint at a time.

    Args:
        store: Where the parts are.
        storage: Where the checkpoints are.
        settings: What to do at a checkpoint.
        on_demand: What a start begins with instead of the newest checkpoint.
    """

    def __init__(
        self, store: PartStore, storage: CheckpointStorage, settings: CommitSettings, on_demand: RestoreOnDemand
    ) -> None:
        self._on_demand = on_demand
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

    def start(
        self, admit: Callable[[StreamPosition], None], now_ms: int, terms: StartTerms | None = None
    ) -> CommitReport:
        """Begin a generation: check, create the fence link, then settle and publish what the last one left.

        Args:
            admit: Raises if this run must not go on from that position; then nothing has been changed.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            terms: How it is to be done; None goes on as any run of the sink does.

        Raises:
            Fenced: Another generation came after the one to succeed; nothing was changed.
            SnapshotCorrupt: The newest checkpoint cannot be read, and its user has not chosen an older one; nothing was
                changed (S12).
            PartMissing: A part that a checkpoint vouches for is gone.
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
        return self._outcome()

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

        Args:
            pending: The checkpoint as it was triggered.
            acknowledged: One snapshot for each of the subtasks 0 to n-1; this acknowledges those that have not yet.
            position: Where the stream stands after it.
            now_ms: The time, from which the next periodic checkpoint is counted; None is that of the trigger.

        Raises:
            Fenced: Another coordinator has taken over; nothing of this checkpoint counts.
            OutcomeUnknown: The link may be there; a new start finds out.
            PartMissing, CommitConflict: The checkpoint is complete, but a part of it cannot be published.
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
        return self._complete(after)

    def close_due(self, now_ms: int) -> CommitReport | None:
        """Close idle and aged parts, and try publications again that are owed, by a checkpoint of its own.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        due = planning.roll_due(before, self._settings.rolling, now_ms, self._checkpoints.state.next_id)
        if due is not before:
            return self._checkpoint_of_its_own(due, now_ms)
        return self.publish_owed()

    def close_all(self, now_ms: int, *, keep: bool = False) -> CommitReport | None:
        """Publish every open part, so that nothing is staged any more, or keep them all for the next run.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        if not before.open and not before.pending:
            return None
        after = planning.at_clean_end(before, keep=keep, checkpoint_id=self._checkpoints.state.next_id)
        return self._checkpoint_of_its_own(after, now_ms)

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
