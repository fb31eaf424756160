"""The checkpoints of a sink: the state in force, the link that replaces it, and the publication after that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.sink import planning
from partfile.sink.beginning import StartTerms
from partfile.sink.clock import stopwatch_ms
from partfile.sink.commit_hooks import CommitHooks
from partfile.sink.commits import CommitReport
from partfile.sink.publishing import Publication, Publisher, mark_published
from partfile.sink.states import OPERATOR
from partfile.snapshot.coordinator import CheckpointCoordinator
from partfile.snapshot.operator_snapshot import write_operator_state
from partfile.snapshot.requests import RequestKind
from partfile.snapshot.settings import CoordinatorSettings

if TYPE_CHECKING:
    from partfile.filesystems.port import PartStore
    from partfile.sink.commits import CommitSettings
    from partfile.sink.planning import SinkSnapshot
    from partfile.snapshot.model import LinkRef, OperatorState, SubtaskState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.storage import CheckpointStorage


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
