"""Decisions of the coordinator: what a start does with restored parts, and what each checkpoint holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partfile.filesystems.errors import SnapshotCorrupt
from partfile.sink import lifecycle, stage_planning
from partfile.sink.states import OPERATOR, AssignedPart, CoordinatorSnapshot, StreamPosition
from partfile.snapshot.model import OperatorState
from partfile.snapshot.redistribution import deal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from partfile.sink.rolling import RollingPolicy
    from partfile.sink.states import OpenPart, PendingPart, RolledStage, SpentStage, SubtaskSnapshot
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.operator_state import OperatorStateStore
    from partfile.snapshot.state_info import States

OpenParts = dict[int, tuple["OpenPart", ...]]
"""Open parts by the subtask they are assigned to."""


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """The whole state of a sink as of one checkpoint."""

    position: StreamPosition
    open: OpenParts
    pending: tuple[PendingPart, ...]
    """Parts to be settled and published because this checkpoint is complete, or owed from earlier ones."""
    max_count: int
    """Union maximum of the part counters; -1 before the first part."""
    rolled: tuple[RolledStage, ...] = ()
    """Stages to be encoded because this checkpoint is complete, or still to be from earlier ones."""
    spent: tuple[SpentStage, ...] = ()
    """Encoded stages that an older retained checkpoint may still name as data."""

    @classmethod
    def fresh(cls, chain: str) -> SinkSnapshot:
        """The state of a sink that has never written."""
        return cls(StreamPosition(chain=chain), {}, (), -1)


def restored_state(
    operators: Mapping[str, OperatorState], read: Callable[[StateHandle | None], States]
) -> SinkSnapshot:
    """Assemble the state that a link or a savepoint holds.

    Args:
        operators: The states of its operators.
        read: Resolves a state handle.

    Raises:
        SnapshotCorrupt: There is no file sink's state in it.
    """
    if OPERATOR not in operators:
        raise SnapshotCorrupt(f"there is no state of a {OPERATOR} in it, but of {sorted(operators)}")
    held = CoordinatorSnapshot.from_states(read(operators[OPERATOR].coordinator))
    opened: dict[int, list[OpenPart]] = {}
    for assigned in held.open:
        opened.setdefault(assigned.subtask, []).append(assigned.open)
    return SinkSnapshot(
        position=held.position,
        open={subtask: tuple(parts) for subtask, parts in opened.items()},
        pending=held.pending,
        max_count=held.max_count,
        rolled=held.rolled,
        spent=held.spent,
    )


def begin_generation(
    restored: SinkSnapshot, *, published: bool, generation: int, checkpoint_id: int, may_keep: bool
) -> SinkSnapshot:
    """What a fence link holds: the restored state, with every part that must not be appended to closed.

    It is marked for publication, or a stage for its encoding. A restored part is never appended to again, because a
    zombie of the old run may still hold it (S2); the exception are the parts that a clean stop kept, which are handed
    to the new generation.

    Args:
        restored: The state of the newest link.
        published: Whether all pending parts of that link have their final names already: then nobody looks for them
            again, since consumers may have moved them (S5).
        generation: The new generation.
        checkpoint_id: Id of the fence link.
        may_keep: Whether the store can append at all.
    """
    keep = restored.position.kept and may_keep
    opened = [part for parts in restored.open.values() for part in parts]
    begun = replace(
        restored,
        position=restored.position.model_copy(update={"kept": False}),
        open=_handed_over(restored.open, generation) if keep else {},
        pending=() if published else restored.pending,
    )
    return stage_planning.with_closed(begun, () if keep else opened, checkpoint_id, abandoned=True)


def after_batch(
    before: SinkSnapshot,
    acknowledged: Iterable[SubtaskSnapshot],
    *,
    position: StreamPosition,
    policy: RollingPolicy,
    now_ms: int,
    checkpoint_id: int,
    completed_id: int,
) -> SinkSnapshot:
    """The state after a batch: what subtasks acknowledged, and what is carried for those that did not run.

    Args:
        before: The state the batch began with; its ``pending`` are the parts whose publication is still owed.
        acknowledged: The snapshots of the subtasks that ran.
        position: Where the stream stands after the batch.
        policy: Rolls carried parts whose time has come.
        now_ms: The batch time.
        checkpoint_id: The checkpoint that will hold the result.
        completed_id: The newest completed checkpoint: pending parts an operator repeats from it are accounted for.
    """
    ran = {snapshot.subtask: snapshot for snapshot in acknowledged}
    carried: OpenParts = {}
    over: list[OpenPart] = []
    for subtask, parts in before.open.items():
        if subtask not in ran:
            stay, gone = lifecycle.due(parts, policy, now_ms)
            carried[subtask] = tuple(stay)
            over += gone
    opened = _dealt(carried, {subtask: snapshot.open for subtask, snapshot in ran.items()})
    fresh = [part for snapshot in ran.values() for part in snapshot.pending if part.since > completed_id]
    rolled = [stage for snapshot in ran.values() for stage in snapshot.rolled if stage.since > completed_id]
    spent = [stage for snapshot in ran.values() for stage in snapshot.spent if stage.since > completed_id]
    learnt = {
        "parallelism": len(ran) or before.position.parallelism,
        "encoded_ratio": stage_planning.learnt_ratio(before.position.encoded_ratio, fresh, spent),
        "shared_from": stage_planning.shared_from(before.position.shared_from, position.chain, ran.values()),
    }
    after = SinkSnapshot(
        position=position.model_copy(update=learnt),
        open=_without_empty(opened),
        pending=(*before.pending, *fresh),
        max_count=max((before.max_count, *(snapshot.max_count for snapshot in ran.values()))),
        rolled=(*before.rolled, *rolled),
        spent=(*before.spent, *spent),
    )
    return stage_planning.with_closed(after, over, checkpoint_id)


def roll_due(before: SinkSnapshot, policy: RollingPolicy, now_ms: int, checkpoint_id: int) -> SinkSnapshot:
    """The state after the timer has closed every part that is idle or aged; the same object if there is none."""
    opened: OpenParts = {}
    over: list[OpenPart] = []
    for subtask, parts in before.open.items():
        stay, gone = lifecycle.due(parts, policy, now_ms)
        opened[subtask] = tuple(stay)
        over += gone
    if not over:
        return before
    return stage_planning.with_closed(replace(before, open=_without_empty(opened)), over, checkpoint_id)


def at_clean_end(before: SinkSnapshot, *, keep: bool, checkpoint_id: int) -> SinkSnapshot:
    """The state a clean end leaves: every open part rolled, or all of them kept for the next run."""
    if keep:
        return replace(before, position=before.position.model_copy(update={"kept": True}))
    opened = [part for parts in before.open.values() for part in parts]
    return stage_planning.with_closed(replace(before, open={}), opened, checkpoint_id)


def _handed_over(opened: OpenParts, generation: int) -> OpenParts:
    return {
        subtask: tuple(part.model_copy(update={"generation": generation}) for part in parts)
        for subtask, parts in opened.items()
    }


def _without_empty(opened: Mapping[int, tuple[OpenPart, ...]]) -> OpenParts:
    return {subtask: parts for subtask, parts in opened.items() if parts}


def _dealt(carried: OpenParts, ran: OpenParts) -> OpenParts:
    """Who has which part in the next batch.

    A subtask that ran keeps its parts. Those of subtasks that did not are dealt out over the ones that did, as split
    list state is; if none ran, as in an empty batch, everything stays as it is assigned. Shared stages stay so in any
    case: who has one has no use for another, and each that is rolled becomes a file a bucket.
    """
    if not ran or not any(carried.values()):
        return {**carried, **ran}
    orphans = [part for subtask in sorted(carried) for part in carried[subtask] if not _is_shared(part)]
    shares, _ = deal(orphans, len(ran))
    dealt = {subtask: (*ran[subtask], *share) for subtask, share in zip(sorted(ran), shares, strict=True)}
    return {subtask: tuple(filter(_is_shared, parts)) for subtask, parts in carried.items()} | dealt


def _is_shared(part: OpenPart) -> bool:
    return part.stage is not None and part.stage.shared


def operator_state(snapshot: SinkSnapshot, write: Callable[[OperatorStateStore], StateHandle | None]) -> OperatorState:
    """A sink's state as a link holds it.

    Args:
        snapshot: The state.
        write: Snapshots states and returns their handle.
    """
    held = CoordinatorSnapshot(
        position=snapshot.position,
        open=tuple(
            AssignedPart(subtask=subtask, open=part)
            for subtask in sorted(snapshot.open)
            for part in snapshot.open[subtask]
        ),
        pending=snapshot.pending,
        max_count=snapshot.max_count,
        rolled=snapshot.rolled,
        spent=snapshot.spent,
    )
    return OperatorState(parallelism=snapshot.position.parallelism, coordinator=write(held.to_states()))
