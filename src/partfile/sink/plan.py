"""Decisions about open parts: (state, event) to action, without I/O. The operator and the coordinator execute them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from partfile.errors import OutcomeUnknown, SnapshotCorrupt, StoreError
from partfile.sink.policies import number_in
from partfile.sink.states import (
    OPERATOR,
    AssignedPart,
    ClosedStagingFile,
    CoordinatorSnapshot,
    EncodedStagingFile,
    PendingPart,
    RunFile,
    StreamPosition,
)
from partfile.snapshot.operator_state import assign
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from partfile.sink.encode import EncodeResult
    from partfile.sink.encoded_files import EncodedFile
    from partfile.sink.policies import PartProgress, RollingPolicy
    from partfile.sink.states import OpenPart, SeenKeys, StagingFile, SubtaskSnapshot, UnneededRun
    from partfile.snapshot.documents import OperatorState, StateHandle
    from partfile.snapshot.operator_state import OperatorStateStore
    from partfile.snapshot.state_file import States
    from partfile.snapshot.streams import CheckpointStreamFactory


class Action(Enum):
    """The ways to treat an open part."""

    KEEP = "keep"
    ROLL = "roll"
    ABANDON = "abandon"


def before_rows(part: PartProgress, policy: RollingPolicy) -> Action:
    """Whether an open part takes the next rows, or is rolled first."""
    return Action.ROLL if policy.should_roll_on_event(part) else Action.KEEP


def before_resuming(
    part: OpenPart,
    policy: RollingPolicy,
    *,
    epoch: int,
    attempt: int,
    may_keep: bool,
    is_own: bool = False,
) -> Action:
    """Whether a task appends to a part that it was handed, or has suspended itself (``is_own``) (R2).

    No other process has ever written a part that the task has suspended itself. Another part is appended to only if it
    is of this epoch, and only by a first attempt: an earlier one may still be writing it. Both are hints on top of the
    lease and the length, which the store checks. Where leases are not proven (``may_keep`` is False) nothing would stop
    a zombie, so the part is left alone (R13).
    """
    if not is_own and (part.epoch != epoch or attempt > 0 or not may_keep):
        return Action.ABANDON
    return before_rows(part.progress, policy)


def at_checkpoint(part: PartProgress, policy: RollingPolicy, *, now_ms: int, may_keep: bool) -> Action:
    """Whether a part that was written to stays open over a checkpoint.

    Args:
        part: The part as just persisted.
        policy: When to roll.
        now_ms: The coordinator's batch time.
        may_keep: False where nothing can be appended to later: a bulk format, a store without append or leases.
    """
    if not may_keep or policy.should_roll_on_checkpoint(part) or policy.should_roll_on_time(part, now_ms):
        return Action.ROLL
    return Action.KEEP


def due(parts: Iterable[OpenPart], policy: RollingPolicy, now_ms: int) -> tuple[list[OpenPart], list[OpenPart]]:
    """Part the open parts that no task is writing into those that stay open and those whose time has come."""
    stay: list[OpenPart] = []
    over: list[OpenPart] = []
    for part in parts:
        (over if policy.should_roll_on_time(part.progress, now_ms) else stay).append(part)
    return stay, over


def due_at_checkpoint(
    parts: Iterable[OpenPart], own: Container[str], policy: RollingPolicy, *, now_ms: int, may_keep: bool
) -> tuple[list[OpenPart], list[OpenPart]]:
    """The same at a checkpoint, for parts of which some were written to since the last one.

    Args:
        parts: Open parts that no task is writing.
        own: In-progress names of those that this operator has written to and suspended.
        policy: When to roll.
        now_ms: The coordinator's batch time.
        may_keep: As in ``at_checkpoint``.
    """
    stay, over = due(parts, policy, now_ms)
    ended = [
        part
        for part in stay
        if part.part.in_progress in own
        and at_checkpoint(part.progress, policy, now_ms=now_ms, may_keep=may_keep) is Action.ROLL
    ]
    return [part for part in stay if part not in ended], over + ended


def one_per_key(parts: Iterable[OpenPart]) -> tuple[dict[tuple[str, str], OpenPart], list[OpenPart]]:
    """Keep the first open part of each bucket and fingerprint; the others, which rescaling brought, are rolled."""
    kept: dict[tuple[str, str], OpenPart] = {}
    surplus: list[OpenPart] = []
    for part in parts:
        if part.key in kept:
            surplus.append(part)
        else:
            kept[part.key] = part
    return kept, surplus


def beyond_cap(keys: Sequence[tuple[str, str]], cap: int) -> Sequence[tuple[str, str]]:
    """The least recently used parts beyond the cap on open parts.

    Args:
        keys: Open parts, least recently used first.
        cap: How many may be open.
    """
    return keys[: max(0, len(keys) - cap)]


_TELLING_BYTES = 1 << 20
"""Fewer bytes of staging files than these say nothing of the ratio: a file's footer would weigh as much as its rows."""
_LEAST_RATIO, _MOST_RATIO = 0.01, 4.0


def with_closed(
    snapshot: SinkSnapshot, parts: Iterable[OpenPart], checkpoint_id: int, *, abandoned: bool = False
) -> SinkSnapshot:
    """The state with more parts closed: a staging file is to be encoded, every other part to be published.

    Args:
        snapshot: The state, in which these parts are open no more.
        parts: They are not closed on the store; neither a staging file nor its encoder needs that.
        checkpoint_id: The first checkpoint that will hold them so.
        abandoned: A zombie may still be writing them. A staging file's valid length is all that is ever read of it.
    """
    pending, closed = list(snapshot.pending), list(snapshot.closed)
    for part in parts:
        if part.staging_file is None:
            pending.append(PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned))
        else:
            closed.append(closed_staging_file(part, part.staging_file, checkpoint_id, abandoned=abandoned))
    return replace(snapshot, pending=tuple(pending), closed=tuple(closed))


def closed_staging_file(
    part: OpenPart, becomes: StagingFile, checkpoint_id: int, *, abandoned: bool
) -> ClosedStagingFile:
    """The closed form of an open staging file, which takes no more rows.

    Args:
        part: The staging file.
        becomes: What it is encoded into.
        checkpoint_id: The first checkpoint that will hold it so.
        abandoned: A zombie may still be writing it.
    """
    return ClosedStagingFile(
        part=part.part, staging_file=becomes, rows=part.rows, since=checkpoint_id, abandoned=abandoned
    )


def after_encoding(before: SinkSnapshot, results: Sequence[EncodeResult], checkpoint_id: int) -> SinkSnapshot:
    """The state once staging files are encoded: their files are pending, and what could not be encoded stays closed.

    A multi-bucket staging file stays closed until every bucket has its file, and says which of them have.

    Args:
        before: The state whose closed staging files were given to an encoder.
        results: What became of them.
        checkpoint_id: The checkpoint that will hold the result; only then may the files be published.
    """
    gone = {one.staging_file.part.in_progress for one in results if one.is_done or one.is_given_up}
    made = {one.staging_file.part.in_progress: one.files or () for one in results}
    files = [promised(file, checkpoint_id) for some in made.values() for file in some]
    done = [encoded_staging_file(one.staging_file, checkpoint_id) for one in results if one.is_done]
    ratio = learnt_ratio(before.position.encoded_ratio, files, done)
    return replace(
        before,
        position=before.position.model_copy(update={"encoded_ratio": ratio}),
        pending=(*before.pending, *files),
        closed=tuple(
            staging_file.model_copy(
                update={"staging_file": less(staging_file.staging_file, made.get(staging_file.part.in_progress, ()))}
            )
            for staging_file in before.closed
            if staging_file.part.in_progress not in gone
        ),
        encoded=(*before.encoded, *done),
    )


def promised(file: EncodedFile, checkpoint_id: int) -> PendingPart:
    """A file that a staging file was encoded into, as a checkpoint promises it.

    Args:
        file: The file.
        checkpoint_id: The first checkpoint that will hold it.
    """
    return PendingPart(part=file.part, rows=file.rows, since=checkpoint_id, crc32=file.crc32)


def less(staging_file: StagingFile, files: Iterable[EncodedFile]) -> StagingFile:
    """A multi-bucket staging file less the buckets that have their files: the rest is still to be encoded."""
    finished = dict.fromkeys((*staging_file.finished_buckets, *(file.part.bucket for file in files)))
    return staging_file.model_copy(update={"finished_buckets": tuple(finished)}) if finished else staging_file


def encoded_staging_file(staging_file: OpenPart | ClosedStagingFile, checkpoint_id: int) -> EncodedStagingFile:
    """The encoded form of a staging file: its files are in a checkpoint, and it only waits to be deleted.

    Args:
        staging_file: Open or closed.
        checkpoint_id: The first checkpoint that will hold its files.
    """
    is_shared = staging_file.staging_file is not None and staging_file.staging_file.shared
    return EncodedStagingFile(part=staging_file.part, since=checkpoint_id, shared=is_shared)


def learnt_ratio(
    known: float | None, files: Iterable[PendingPart], staging_files: Iterable[EncodedStagingFile]
) -> float | None:
    """Bytes of an encoded file for each byte of its staging file, by these and by what was known before.

    Args:
        known: The ratio so far; None before the first.
        files: Pending parts, those that were encoded now among them.
        staging_files: What these were encoded from.
    """
    # Many small files say nothing of a large one.
    length_of = {
        staging_file.part.path_of(staging_file.part.name): staging_file.part.valid_length
        for staging_file in staging_files
        if not staging_file.shared
    }
    staged_bytes = encoded_bytes = 0
    for file in files:
        length = length_of.get(file.part.path_of(file.part.name))
        if length is not None:
            staged_bytes += length
            encoded_bytes += file.part.valid_length
    if staged_bytes < _TELLING_BYTES:
        return known
    seen = min(_MOST_RATIO, max(_LEAST_RATIO, encoded_bytes / staged_bytes))
    return seen if known is None else (known + seen) / 2


def beside_consumers(state: SinkSnapshot, takes_files: bool) -> SinkSnapshot:
    """A state that says whether consumers take files; the same object if it says so already."""
    if state.position.consumers_take_files == takes_files:
        return state
    return replace(state, position=state.position.model_copy(update={"consumers_take_files": takes_files}))


def shared_from(known: int | None, chain: str, ran: Iterable[SubtaskSnapshot]) -> int | None:
    """The lowest part counter of a multi-bucket staging file: from it on, two directories may hold one file name.

    Args:
        known: The lowest so far; None if no staging file was shared.
        chain: The chain in the names of parts.
        ran: What subtasks acknowledged.
    """
    shared: list[str] = []
    for one in ran:
        shared += [part.part.name for part in one.open if part.staging_file is not None and part.staging_file.shared]
        shared += [staging_file.part.name for staging_file in one.closed if staging_file.staging_file.shared]
        shared += [staging_file.part.name for staging_file in one.encoded if staging_file.shared]
    numbers = [number_in(name, {chain}) for name in shared]
    counts = [number.count for number in numbers if number is not None]
    return min(counts if known is None else [known, *counts], default=None)


def disposable(encoded: Iterable[EncodedStagingFile], oldest_retained_id: int) -> list[EncodedStagingFile]:
    """The encoded staging files that no retained checkpoint names as data any more (R6).

    Args:
        encoded: Staging files whose files a completed checkpoint holds.
        oldest_retained_id: Id of the oldest checkpoint that is still there.
    """
    return [staging_file for staging_file in encoded if staging_file.since <= oldest_retained_id]


def is_expired(time_ms: int, ttl_ms: int | None, now_ms: int) -> bool:
    """Whether a key that was entered at a time is forgotten.

    Args:
        time_ms: That time, in milliseconds since 1970.
        ttl_ms: How long a key is remembered; None is for ever.
        now_ms: The sink's time.
    """
    return ttl_ms is not None and time_ms + ttl_ms <= now_ms


def needed_runs(seen: SeenKeys | None, ttl_ms: int | None, now_ms: int) -> tuple[RunFile, ...]:
    """The runs with a key that is not forgotten yet: damage to another one is of no consequence.

    Args:
        seen: The keys so far; None if there are none.
        ttl_ms: How long a key is remembered; None is for ever.
        now_ms: What the clock says, in milliseconds since 1970; the sink's time never goes back (R8).
    """
    if seen is None:
        return ()
    time_ms = max(seen.time_ms, now_ms)
    return tuple(run for run in seen.runs if not is_expired(run.last_ms, ttl_ms, time_ms))


def with_copied_runs(
    state: SinkSnapshot, read: Callable[[StateHandle], bytes], streams: CheckpointStreamFactory, now_ms: int
) -> SinkSnapshot:
    """A state with the run files of its keys copied elsewhere, but for those whose keys are all forgotten.

    Nothing names the copies yet. Where one cannot be made, none is left.

    Args:
        state: The state.
        read: Reads a run file.
        streams: Take the copies.
        now_ms: What the clock says, in milliseconds since 1970.

    Raises:
        SnapshotCorrupt: A run is missing or damaged.
    """
    seen = state.position.seen_keys
    if seen is None:
        return state
    runs = list[RunFile]()
    try:
        for run in needed_runs(seen, seen.ttl_ms, now_ms):
            is_file = run.handle.kind == "file"
            handle = streams.keep(read(run.handle), Scope.SHARED) if is_file else run.handle
            runs.append(run.model_copy(update={"handle": handle}))
    except BaseException:
        for run in runs:
            with suppress(StoreError):
                streams.discard(run.handle)
        raise
    # What other checkpoints still need is not the copy's to delete.
    copied = seen.model_copy(update={"runs": tuple(runs), "unneeded": ()})
    return replace(state, position=state.position.model_copy(update={"seen_keys": copied}))


def disposable_runs(seen: SeenKeys | None, oldest_retained_id: int) -> list[UnneededRun]:
    """The files of runs that no retained checkpoint names any more (R6).

    Args:
        seen: The keys of a state that a completed checkpoint holds; None if there are none.
        oldest_retained_id: Id of the oldest checkpoint that is still there.
    """
    return [run for run in (seen.unneeded if seen is not None else ()) if run.since <= oldest_retained_id]


OpenParts = dict[int, tuple["OpenPart", ...]]
"""Open parts by the subtask they are assigned to."""


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """The whole state of a sink as of one checkpoint."""

    position: StreamPosition
    open: OpenParts
    pending: tuple[PendingPart, ...]
    """Parts to be finalized and published because this checkpoint is complete, or owed from earlier ones."""
    max_count: int
    """Union maximum of the part counters; -1 before the first part."""
    closed: tuple[ClosedStagingFile, ...] = ()
    """Staging files to be encoded because this checkpoint is complete, or still to be from earlier ones."""
    encoded: tuple[EncodedStagingFile, ...] = ()
    """Encoded staging files that an older retained checkpoint may still name as data."""

    @classmethod
    def fresh(cls, chain: str) -> SinkSnapshot:
        """The state of a sink that has never written."""
        return cls(StreamPosition(chain=chain), {}, (), -1)

    def to_states(self) -> OperatorStateStore:
        """The states by which a checkpoint or a savepoint holds it; ``restored_state`` reads them."""
        held = CoordinatorSnapshot(
            position=self.position,
            open=tuple(
                AssignedPart(subtask=subtask, open=part) for subtask in sorted(self.open) for part in self.open[subtask]
            ),
            pending=self.pending,
            max_count=self.max_count,
            closed=self.closed,
            encoded=self.encoded,
        )
        return held.to_states()


def restored_state(
    operators: Mapping[str, OperatorState], read: Callable[[StateHandle | None], States]
) -> SinkSnapshot:
    """Assemble the state that a checkpoint or a savepoint holds.

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
        closed=held.closed,
        encoded=held.encoded,
    )


def begin_epoch(
    restored: SinkSnapshot, *, published: bool, epoch: int, checkpoint_id: int, may_keep: bool
) -> SinkSnapshot:
    """The state that a takeover holds: the restored one, with every part closed that must not be appended to.

    A closed part is pending, a closed staging file is to be encoded. A restored part is never appended to again,
    because a zombie of the old run may still hold it (R2). The exception are the parts that a clean stop kept, which
    are handed to the new epoch.

    Args:
        restored: The state of the newest checkpoint.
        published: Whether all pending parts of that checkpoint have their final names already: then no start looks for
            them again, since consumers may have moved them (R5).
        epoch: The new epoch.
        checkpoint_id: Id of the takeover.
        may_keep: Whether the store can append at all.
    """
    keep = restored.position.kept and may_keep
    opened = [part for parts in restored.open.values() for part in parts]
    begun = replace(
        restored,
        position=restored.position.model_copy(update={"kept": False}),
        open=_handed_over(restored.open, epoch) if keep else {},
        pending=() if published else restored.pending,
    )
    return with_closed(begun, () if keep else opened, checkpoint_id, abandoned=True)


def check_all_answered(acknowledged: Iterable[SubtaskSnapshot], checkpoint_id: int) -> None:
    """See that every subtask of a checkpoint has answered exactly once.

    Raises:
        OutcomeUnknown: The subtasks are not 0 to n-1: rows of one are missing, or came twice.
    """
    subtasks = sorted(snapshot.subtask for snapshot in acknowledged)
    if subtasks != list(range(len(subtasks))):
        raise OutcomeUnknown(
            f"subtasks {subtasks} acknowledged; expected 0 to n-1 without a gap", checkpoint_id=checkpoint_id
        )


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
            stay, gone = due(parts, policy, now_ms)
            carried[subtask] = tuple(stay)
            over += gone
    opened = _redistributed(carried, {subtask: snapshot.open for subtask, snapshot in ran.items()})
    fresh = [part for snapshot in ran.values() for part in snapshot.pending if part.since > completed_id]
    closed = [
        staging_file
        for snapshot in ran.values()
        for staging_file in snapshot.closed
        if staging_file.since > completed_id
    ]
    encoded = [
        staging_file
        for snapshot in ran.values()
        for staging_file in snapshot.encoded
        if staging_file.since > completed_id
    ]
    learnt = {
        "parallelism": len(ran) or before.position.parallelism,
        "encoded_ratio": learnt_ratio(before.position.encoded_ratio, fresh, encoded),
        "shared_from": shared_from(before.position.shared_from, position.chain, ran.values()),
    }
    after = SinkSnapshot(
        position=position.model_copy(update=learnt),
        open=_without_empty(opened),
        pending=(*before.pending, *fresh),
        max_count=max((before.max_count, *(snapshot.max_count for snapshot in ran.values()))),
        closed=(*before.closed, *closed),
        encoded=(*before.encoded, *encoded),
    )
    return with_closed(after, over, checkpoint_id)


def roll_due(before: SinkSnapshot, policy: RollingPolicy, now_ms: int, checkpoint_id: int) -> SinkSnapshot:
    """The state after the timer has closed every part that is idle or aged; the same object if there is none."""
    opened: OpenParts = {}
    over: list[OpenPart] = []
    for subtask, parts in before.open.items():
        stay, gone = due(parts, policy, now_ms)
        opened[subtask] = tuple(stay)
        over += gone
    if not over:
        return before
    return with_closed(replace(before, open=_without_empty(opened)), over, checkpoint_id)


def at_clean_end(before: SinkSnapshot, *, keep: bool, checkpoint_id: int) -> SinkSnapshot:
    """The state a clean end leaves: every open part rolled, or all of them kept for the next run."""
    if keep:
        return replace(before, position=before.position.model_copy(update={"kept": True}))
    opened = [part for parts in before.open.values() for part in parts]
    return with_closed(replace(before, open={}), opened, checkpoint_id)


def _handed_over(opened: OpenParts, epoch: int) -> OpenParts:
    return {
        subtask: tuple(part.model_copy(update={"epoch": epoch}) for part in parts) for subtask, parts in opened.items()
    }


def _without_empty(opened: Mapping[int, tuple[OpenPart, ...]]) -> OpenParts:
    return {subtask: parts for subtask, parts in opened.items() if parts}


def _redistributed(carried: OpenParts, ran: OpenParts) -> OpenParts:
    """Assign each open part to a subtask of the next batch.

    A subtask that ran keeps its parts. Those of subtasks that did not are distributed over the ones that did, as split
    list state is; if none ran, as in an empty batch, everything stays as it is assigned. Multi-bucket staging files
    stay so in any case: a subtask that has one has no use for another, and each that is rolled becomes a file a bucket.
    """
    if not ran or not any(carried.values()):
        return {**carried, **ran}
    orphans = [part for subtask in sorted(carried) for part in carried[subtask] if not _is_shared(part)]
    shares, _ = assign(orphans, len(ran))
    distributed = {subtask: (*ran[subtask], *share) for subtask, share in zip(sorted(ran), shares, strict=True)}
    return {subtask: tuple(filter(_is_shared, parts)) for subtask, parts in carried.items()} | distributed


def _is_shared(part: OpenPart) -> bool:
    return part.staging_file is not None and part.staging_file.shared
