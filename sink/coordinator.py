"""The coordinator of a sink: restores, hands out parts, completes checkpoints, publishes. Needs no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from partfile.filesystems.errors import NotReady
from partfile.sink import planning
from partfile.sink.beginning import Beginning, StartTerms
from partfile.sink.checkpoints import SinkCheckpoints
from partfile.sink.clock import stopwatch_ms
from partfile.sink.commits import CommitReport
from partfile.sink.staged_parts import StagedParts
from partfile.sink.states import SubtaskSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.filesystems.port import PartStore
    from partfile.sink.commits import CommitSettings
    from partfile.sink.encoding import StageEncoder
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restore_on_demand import RestoreOnDemand
    from partfile.sink.staged_parts import Encoding
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.model import OperatorState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.storage import CheckpointStorage

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
