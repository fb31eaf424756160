"""The coordinator of a sink: restores, hands out parts, completes checkpoints, publishes. Needs no Spark."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import Fenced, PartfileError, StoreError
from partfile.filesystems.tokens import new_chain_id
from partfile.sink import planning
from partfile.sink.clock import stopwatch_ms
from partfile.sink.planning import SinkSnapshot
from partfile.sink.publishing import Publisher
from partfile.sink.states import OPERATOR, SubtaskSnapshot
from partfile.snapshot.coordinator import CheckpointCoordinator
from partfile.snapshot.operator_snapshot import write_operator_state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.filesystems.port import Cut, PartStore
    from partfile.sink.restore_on_demand import RestoreOnDemand
    from partfile.sink.rolling import RollingPolicy
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.model import CheckpointMetadata, LinkRef, OperatorState
    from partfile.snapshot.pending import PendingCheckpoint
    from partfile.snapshot.storage import CheckpointStorage

logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """What the coordinator does at a checkpoint."""

    rolling: RollingPolicy
    cut: Cut
    publish_threads: int
    accept_missing: bool
    retained_checkpoints: int
    writer: str
    """Version of partfile, written into every checkpoint."""


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What completing a checkpoint did."""

    checkpoint_id: int
    published: int
    owed: int
    """Parts whose publication failed and is tried again."""
    commit_ms: float
    publish_ms: float


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
        self._checkpoints = CheckpointCoordinator(
            storage, writer=settings.writer, retained=settings.retained_checkpoints
        )
        self._publisher = Publisher(
            store, settings.cut, settings.publish_threads, accept_missing=settings.accept_missing
        )
        self._state: SinkSnapshot | None = None

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
        """Id of the newest link; the next checkpoint takes the one after it."""
        return self._checkpoints.newest.checkpoint_id

    def look(self) -> SinkSnapshot | None:
        """The state by the newest checkpoint, None if there is none; changes nothing, fences nobody."""
        link = self._checkpoints.look()
        return planning.restored_state(link.operators, self._storage.read_state) if link else None

    def start(
        self, admit: Callable[[StreamPosition], None], now_ms: int, *, succeeding: int | None = None
    ) -> CommitReport:
        """Begin a generation: check, create the fence link, then settle and publish what the last one left.

        Args:
            admit: Raises if this run must not go on from that position; then nothing has been changed.
            now_ms: The coordinator's time, in milliseconds since the epoch.
            succeeding: Begin only right after this generation, if given.

        Raises:
            Fenced: Another generation came after the one to succeed; nothing was changed.
            SnapshotCorrupt: The newest checkpoint cannot be read; nothing was changed (S12).
            PartMissing: A part that a checkpoint vouches for is gone.
        """
        began = stopwatch_ms()
        prepared: list[SinkSnapshot] = []

        def restore(link: CheckpointMetadata | None, checkpoint_id: int) -> dict[str, OperatorState]:
            if succeeding is not None and (link is None or link.generation != succeeding):
                raise Fenced(
                    f"generation {succeeding} of {self._storage.job!r} is not the newest any more",
                    hint="Nothing was changed. Another process has taken the sink over; stop this one for good.",
                )
            prepared.append(self._begin(link, checkpoint_id, admit))
            return {OPERATOR: self._operator_state(prepared[-1], checkpoint_id, now_ms)}

        self._checkpoints.start(restore, now_ms)
        self._state = prepared[-1]
        return self._settle(stopwatch_ms() - began)

    def trigger(self, now_ms: int) -> PendingCheckpoint:
        """Begin the next checkpoint."""
        return self._checkpoints.trigger(now_ms)

    def assignment(self) -> tuple[SubtaskSnapshot, ...]:
        """The share of each subtask that has one: its open parts and the part counter to go on from."""
        state = self.state
        return tuple(
            SubtaskSnapshot(subtask=subtask, open=parts, max_count=state.max_count)
            for subtask, parts in sorted(state.open.items())
        )

    def complete(
        self, pending: PendingCheckpoint, acknowledged: Sequence[SubtaskSnapshot], position: StreamPosition
    ) -> CommitReport:
        """Complete a checkpoint: make its link durable, then publish its parts and subsume older checkpoints.

        Raises:
            Fenced: Another coordinator has taken over; nothing of this checkpoint counts.
            OutcomeUnknown: The link may be there; a new start finds out.
            PartMissing, CommitConflict: The checkpoint is complete, but a part of it cannot be published.
        """
        began = stopwatch_ms()
        after = planning.after_batch(
            self.state,
            acknowledged,
            position=position,
            policy=self._settings.rolling,
            now_ms=pending.time_ms,
            checkpoint_id=pending.checkpoint_id,
            completed_id=self._checkpoints.completed_id,
        )
        self._link(after, pending.time_ms)
        return self._settle(stopwatch_ms() - began)

    def close_due(self, now_ms: int) -> CommitReport | None:
        """Close idle and aged parts, and try publications again that are owed, by a checkpoint of its own.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        due = planning.roll_due(before, self._settings.rolling, now_ms, self.newest_checkpoint_id + 1)
        if due is not before:
            return self._checkpoint_of_its_own(due, now_ms)
        return self.publish_owed()

    def finish(self, now_ms: int, *, keep: bool) -> CommitReport | None:
        """End cleanly: publish every open part, or keep them all for the next run.

        Returns:
            None if there was nothing to do.
        """
        before = self.state
        if not before.open and not before.pending:
            return None
        after = planning.at_clean_end(before, keep=keep, checkpoint_id=self.newest_checkpoint_id + 1)
        return self._checkpoint_of_its_own(after, now_ms)

    def roll_everything(self, now_ms: int) -> CommitReport:
        """Roll and publish every open part by a checkpoint of its own, so that nothing is staged any more.

        Raises:
            PartfileError: A part could not be published; it is tried again at the next checkpoint.
        """
        after = planning.at_clean_end(self.state, keep=False, checkpoint_id=self.newest_checkpoint_id + 1)
        report = self._checkpoint_of_its_own(after, now_ms)
        if report.owed:
            raise PartfileError(
                f"{report.owed} parts could not be published, so there can be no savepoint",
                hint="The log says why; they are tried again at the next checkpoint. Ask for a savepoint after that.",
                checkpoint_id=report.checkpoint_id,
            )
        return report

    def publish_owed(self) -> CommitReport | None:
        """Try again to publish what the newest checkpoint still owes; None if it owes nothing."""
        return self._settle(0.0) if self.state.pending else None

    def abort(self) -> None:
        """Give the triggered checkpoint up and close its id."""
        self._checkpoints.abort()

    def _begin(
        self, link: CheckpointMetadata | None, checkpoint_id: int, admit: Callable[[StreamPosition], None]
    ) -> SinkSnapshot:
        current = None if link is None else planning.restored_state(link.operators, self._storage.read_state)
        demanded = self._on_demand.begin(current)
        if link is None or current is None:
            fresh = demanded or SinkSnapshot.fresh(new_chain_id())
            admit(fresh.position)
            return fresh
        restored = demanded or current
        admit(restored.position)
        return planning.begin_generation(
            restored,
            published=self._storage.is_published(link.checkpoint_id),
            generation=link.generation + 1,
            checkpoint_id=checkpoint_id,
            may_keep=self._store.capabilities.append,
        )

    def _checkpoint_of_its_own(self, after: SinkSnapshot, now_ms: int) -> CommitReport:
        began = stopwatch_ms()
        self._checkpoints.trigger(now_ms)
        self._link(after, now_ms)
        return self._settle(stopwatch_ms() - began)

    def _operator_state(self, snapshot: SinkSnapshot, checkpoint_id: int, time_ms: int) -> OperatorState:
        streams = self._storage.stream_factory(checkpoint_id)
        return planning.operator_state(
            snapshot, lambda states: write_operator_state(states, streams, checkpoint_id, time_ms)
        )

    def _tidy(self, *, is_published: bool) -> None:
        try:
            if is_published:
                self._storage.mark_published(self._checkpoints.completed_id)
            self._checkpoints.subsume()
        except StoreError as error:
            completed = self._checkpoints.completed_id
            logger.warning("checkpoint %d is complete, tidying up after it failed: %s", completed, error)

    def _link(self, after: SinkSnapshot, time_ms: int) -> None:
        checkpoint_id = self.newest_checkpoint_id + 1
        self._checkpoints.complete({OPERATOR: self._operator_state(after, checkpoint_id, time_ms)})
        self._state = after

    def _settle(self, commit_ms: float) -> CommitReport:
        """After the link: publish, mark, subsume."""
        began = stopwatch_ms()
        parts = self.state.pending
        try:
            owed = self._publisher.publish(parts)
        except PartfileError:
            # A supervisor may start a sink that cannot publish again and again, and each start adds a link.
            self._tidy(is_published=False)
            raise
        self._state = replace(self.state, pending=owed)
        checkpoint_id = self._checkpoints.completed_id
        self._tidy(is_published=bool(parts and not owed))
        done = [part for part in parts if part not in owed]
        return CommitReport(
            checkpoint_id=checkpoint_id,
            published=len(done),
            owed=len(owed),
            commit_ms=commit_ms,
            publish_ms=stopwatch_ms() - began,
        )
