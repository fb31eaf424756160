"""The log of each sink as it stands: entries, holes, damage, strays. The sink may be running."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.errors import NotApplied, SnapshotCorrupt, SnapshotError, StoreError
from partfile.recovery.documents import Json
from partfile.recovery.inspect.savepoints import SavepointEntry
from partfile.sink.newest_state import newest_state, state_of
from partfile.snapshot import documents
from partfile.snapshot.checkpoint_log import is_of_damage
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from partfile.errors import PartfileError
    from partfile.recovery.inspect.places import Job
    from partfile.sink.newest_state import NewestState
    from partfile.sink.plan import SinkSnapshot
    from partfile.snapshot.documents import CheckpointMetadata
    from partfile.stores.base import MetadataStore


_MAX_LOOKS = 3


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
    """One checkpoint of a log, or what is in its place."""

    checkpoint_id: int
    checkpoint: CheckpointMetadata | None
    """None if it cannot be read."""
    is_published: bool
    problem: PartfileError | None = None
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The log of one job, as it was read."""

    job: Job
    storage: CheckpointStorage
    checkpoints: tuple[SeenCheckpoint, ...]
    """By their ids, ascending."""
    lost_ids: tuple[int, ...]
    """Ids whose metadata is gone although their parts have been published; the directory is left."""
    newest: NewestState | None
    """The state in force; None if there has never been any, or it cannot be read."""
    problem: PartfileError | None
    """Why what is in force cannot be read."""

    def time_ms_of(self, checkpoint_id: int) -> int | None:
        """When a retained checkpoint was completed; None if it is not retained any more, or cannot be read."""
        found = (one.checkpoint for one in self.checkpoints if one.checkpoint_id == checkpoint_id)
        return next((checkpoint.time_ms for checkpoint in found if checkpoint is not None), None)


def read_checkpoint_log(store: MetadataStore, job: Job) -> SeenLog:
    """Read every checkpoint of a job and the state of the newest one.

    Checkpoints that are deleted meanwhile, because the job goes on, are left out.

    Args:
        store: The store of the checkpoints.
        job: Whose.

    Raises:
        StoreError: The store cannot be read.
    """
    storage = CheckpointStorage(store, job.name)
    for _ in range(_MAX_LOOKS):
        newest, problem = _newest(storage)
        ids = storage.list_ids()
        checkpoints = tuple(
            checkpoint for number in ids.completed if (checkpoint := _seen(storage, number)) is not None
        )
        if newest is None or (checkpoints and checkpoints[-1].checkpoint_id == newest.newest.checkpoint_id):
            break
    if newest is not None and not checkpoints:
        # A sink that moves on faster than it is looked at: each checkpoint that was listed had been deleted when read.
        checkpoints = (SeenCheckpoint(newest.newest.checkpoint_id, newest.newest, newest.is_published),)
    return SeenLog(job, storage, checkpoints, tuple(ids.published_without_metadata), newest, problem)


def states_of(log: SeenLog) -> dict[int, SinkSnapshot]:
    """The states of the retained checkpoints that can be read, by their ids."""
    states = {}
    for seen in log.checkpoints:
        if seen.checkpoint is None or not seen.checkpoint.holds_state:
            continue
        if log.newest is not None and seen.checkpoint_id == log.newest.checkpoint.checkpoint_id:
            states[seen.checkpoint_id] = log.newest.state
            continue
        try:
            state = state_of(log.storage, seen.checkpoint)
        except SnapshotError:
            continue  # The scan for damage reports it.
        if state is not None:
            states[seen.checkpoint_id] = state
    return states


def is_marker_held(storage: CheckpointStorage) -> bool | None:
    """Whether a driver holds the job's marker; None where that cannot be known.

    A sink in plain Python holds none, and some stores have no locks. On HDFS the marker of a driver that died counts
    as held for a minute, and a user without write permission cannot know.
    """
    store = storage.store
    if not store.markers_are_locks:
        return None
    try:
        return store.marker_is_held(storage.path(documents.MARKER))
    except StoreError:
        return None


def _newest(storage: CheckpointStorage) -> tuple[NewestState | None, PartfileError | None]:
    try:
        return newest_state(storage), None
    except SnapshotError as error:
        return None, error
    except NotApplied as error:
        return None, as_damage(storage, error)


def as_damage(storage: CheckpointStorage, error: NotApplied) -> SnapshotCorrupt:
    """The damage of a log that has a directory, a pipe or a symbolic link in the place of a ``_metadata``.

    A store that cannot be read proves nothing about the log, so its error is raised again.

    Args:
        storage: The checkpoint log.
        error: What reading it raised.

    Raises:
        NotApplied: That error, if every ``_metadata`` is a file.
    """
    for number in storage.list_completed_ids():
        path = storage.path(documents.metadata_path(number))
        if not storage.store.file_exists(path):
            return SnapshotCorrupt(
                f"checkpoint {number} of job {storage.job!r} has something else than a file in the place of its "
                "checkpoint",
                hint=(
                    "Nothing was changed. Find out what it is and which program put it there, and move it away. "
                    "Then type: partfile verify PATH"
                ),
                path=path,
                checkpoint_id=number,
            )
    raise error


def _seen(storage: CheckpointStorage, checkpoint_id: int) -> SeenCheckpoint | None:
    try:
        checkpoint, problem = storage.read_checkpoint(checkpoint_id), None
    except SnapshotError as error:
        checkpoint, problem = None, error
    except NotApplied as error:
        checkpoint, problem = None, as_damage(storage, error)
    if checkpoint is None and problem is None:
        return None
    return SeenCheckpoint(checkpoint_id, checkpoint, storage.is_published(checkpoint_id), problem)


def stray_ids(log: SeenLog) -> set[int]:
    """The ids of checkpoints that never counted: the one after names another predecessor."""
    return {
        before.checkpoint_id
        for before, after in pairwise(log.checkpoints)
        if before.checkpoint is not None
        and after.checkpoint is not None
        and after.checkpoint_id == before.checkpoint_id + 1
        and after.checkpoint.predecessor != before.checkpoint.ref
        # Damaged when that one was created over it, and put back since: it did count.
        and not (after.checkpoint.predecessor is not None and is_of_damage(after.checkpoint.predecessor))
    }


def doubtful_ids(log: SeenLog) -> set[int]:
    """The ids of checkpoints that have probably never counted: those, and the ones below a hole that a stray makes.

    Retention deletes the oldest first and leaves no hole. A coordinator that was asleep then takes a freed name, and
    is fenced: its checkpoint stands alone below the others, until the next start deletes it.
    """
    beyond = (before.checkpoint_id for before, after in holes(log) if not is_deletion(before, after))
    highest = max(beyond, default=0)
    return stray_ids(log) | {seen.checkpoint_id for seen in log.checkpoints if seen.checkpoint_id <= highest}


def holes(log: SeenLog) -> list[tuple[SeenCheckpoint, SeenCheckpoint]]:
    """The checkpoints on both sides of each hole, the older one first."""
    return [
        (before, after) for before, after in pairwise(log.checkpoints) if after.checkpoint_id > before.checkpoint_id + 1
    ]


def is_deletion(before: SeenCheckpoint, after: SeenCheckpoint) -> bool:
    """Whether another program must have deleted what was in a hole.

    A checkpoint that has a later one of its own epoch did count. A takeover tells nothing: of two starts that race
    both make one of the same epoch.
    """
    if before.checkpoint is None or after.checkpoint is None:
        return False
    is_one_history = (before.checkpoint.log_id, before.checkpoint.epoch) == (
        after.checkpoint.log_id,
        after.checkpoint.epoch,
    )
    return is_one_history and before.checkpoint.kind == "checkpoint"


Publication = Literal["published", "owed", "nothing to publish", "unknown"]


class CheckpointReport(Json):
    """One retained checkpoint."""

    checkpoint_id: int
    """Its id; no two checkpoints of a checkpoint log have the same."""
    kind: Literal["checkpoint", "takeover", "tombstone", "damaged", "deleted"]
    """takeover: a start's. tombstone: closes an id that did not complete. deleted: only what it published is known."""
    epoch: int | None
    """Raised by every start."""
    time_ms: int | None
    """The coordinator's time, in milliseconds since 1970."""
    age_s: float | None
    """Since then."""
    writer: str | None
    """Version of partfile that wrote it."""
    predecessor_id: int | None
    """Id of the checkpoint before it; null for the first."""
    ids_ahead: int | None
    """So many ids after its own its coordinator might trigger before its next checkpoint."""
    publication: Publication
    """Whether all its pending parts are known to have their final names."""
    open_parts: int | None
    """Parts that it holds open, staged ones among them; null where it holds no state."""
    pending_parts: int | None
    """Parts that it promises to publish."""
    closed_staging_files: int | None
    """Staging files that it promises to encode."""
    encoded_staging_files: int | None
    """Staging files that have been encoded, and that older checkpoints may need."""
    query_id: str | None
    """Spark's."""
    batch_id: int | None
    """The last batch of that query that it holds."""
    state_bytes: int | None
    """Of its state, in the checkpoint and in files."""
    is_in_force: bool
    """Whether a start goes on from its state."""
    is_stray: bool
    """It never counted: the checkpoint after it names another predecessor. It does no harm."""
    problem: str
    """Why it cannot be read; empty if it can."""


class LogReport(Json):
    """The checkpoints of one sink or writer."""

    uid: str
    """The sink."""
    writer: int
    """0 for the sink itself."""
    job: str
    """The directory of the checkpoint log: ``uid``, or ``uid~writer``."""
    problem: str
    """Why a start would be refused; empty if it would not."""
    hint: str
    """Advice for the operator."""
    checkpoints: tuple[CheckpointReport, ...]
    """By id."""


class CheckpointsReport(Json):
    """The output of ``checkpoints --json``."""

    schema_name: Literal["partfile.checkpoints"] = Field("partfile.checkpoints", alias="schema")
    schema_version: Literal[1] = 1
    checkpoints_at: str
    """The directory of its checkpoints."""
    logs: tuple[LogReport, ...]
    """Each sink and writer, by name."""
    savepoints: tuple[SavepointEntry, ...] = ()
    """With ``--savepoint-dir``."""


def log_report(log: SeenLog, now_ms: int) -> LogReport:
    """Report on a log, its entries in their order."""
    states, strays = states_of(log), stray_ids(log)
    checkpoints = [_checkpoint_report(seen, log, states, strays, now_ms) for seen in log.checkpoints]
    checkpoints += [_deleted(number) for number in log.lost_ids if log.problem is not None]
    return LogReport(
        uid=log.job.uid,
        writer=log.job.writer,
        job=log.job.name,
        problem=log.problem.message if log.problem else "",
        hint=log.problem.hint if log.problem else "",
        checkpoints=tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.checkpoint_id)),
    )


def _checkpoint_report(
    seen: SeenCheckpoint, log: SeenLog, states: dict[int, SinkSnapshot], strays: set[int], now_ms: int
) -> CheckpointReport:
    checkpoint, state = seen.checkpoint, states.get(seen.checkpoint_id)
    query = None if state is None else state.position.query
    newest = log.newest
    return CheckpointReport(
        checkpoint_id=seen.checkpoint_id,
        kind="damaged" if checkpoint is None else checkpoint.kind,
        epoch=None if checkpoint is None else checkpoint.epoch,
        time_ms=None if checkpoint is None else checkpoint.time_ms,
        age_s=None if checkpoint is None else max(0.0, (now_ms - checkpoint.time_ms) / 1000),
        writer=None if checkpoint is None else checkpoint.writer,
        predecessor_id=None
        if checkpoint is None or checkpoint.predecessor is None
        else checkpoint.predecessor.checkpoint_id,
        ids_ahead=None if checkpoint is None else checkpoint.ids_ahead,
        publication=_publication(seen, state),
        open_parts=None if state is None else sum(map(len, state.open.values())),
        pending_parts=None if state is None else len(state.pending),
        closed_staging_files=None if state is None else len(state.closed),
        encoded_staging_files=None if state is None else len(state.encoded),
        query_id=None if query is None else query.query_id,
        batch_id=None if query is None else query.batch_id,
        state_bytes=None if checkpoint is None else sum(handle.size_bytes for handle in checkpoint.handles()),
        is_in_force=newest is not None and newest.checkpoint.checkpoint_id == seen.checkpoint_id,
        is_stray=seen.checkpoint_id in strays,
        problem="" if seen.problem is None else seen.problem.message,
    )


def _publication(seen: SeenCheckpoint, state: SinkSnapshot | None) -> Publication:
    if seen.is_published:
        return "published"
    if seen.checkpoint is not None and not seen.checkpoint.holds_state:
        return "nothing to publish"
    if state is None:
        return "unknown"
    return "owed" if state.pending else "nothing to publish"


def _deleted(checkpoint_id: int) -> CheckpointReport:
    return CheckpointReport(
        checkpoint_id=checkpoint_id,
        kind="deleted",
        epoch=None,
        time_ms=None,
        age_s=None,
        writer=None,
        predecessor_id=None,
        ids_ahead=None,
        publication="published",
        open_parts=None,
        pending_parts=None,
        closed_staging_files=None,
        encoded_staging_files=None,
        query_id=None,
        batch_id=None,
        state_bytes=None,
        is_in_force=False,
        is_stray=False,
        problem="its _metadata is gone",
    )
