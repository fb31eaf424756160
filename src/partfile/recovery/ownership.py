"""Take a sink over for as long as a verb needs it, and tell before whether it still runs.

Liveness comes from the marker's lock, the age of the newest checkpoint and the leases of open parts, in this order.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Self

from partfile.errors import Fenced, PartfileError, StoreError
from partfile.recovery.documents import Json
from partfile.recovery.inspect.checkpoints import is_marker_held
from partfile.recovery.inspect.places import no_sink_at
from partfile.recovery.inspect.status import Problem
from partfile.sink.newest_state import newest_state
from partfile.sink.settings import RestoreSettings
from partfile.snapshot import documents
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.parts import is_staged_file
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.recovery.inspect.places import Job, Place
    from partfile.sink.coordinator import CommitReport, Runtime
    from partfile.sink.restore import RestorePlan, RestoreTerms
    from partfile.sink.settings import StoreOpener
    from partfile.sink.states import SeenKeys
    from partfile.stores.base import Store


def settings_of(place: Place, job: Job, opener: StoreOpener | None = None, **options: object) -> RestoreSettings:
    """The options by which a job is restored; nothing about rows is among them.

    Retention is the sink's own affair: its next start deletes the checkpoints that it does not keep.

    Args:
        place: Where it is.
        job: Whose checkpoint log.
        opener: Opens the stores that are written to; None is the usual one.
        **options: Further fields of RestoreSettings.

    Raises:
        ConfigError: One cannot be used.
    """
    if opener is not None:
        options["open_store"] = opener
    return RestoreSettings(
        base=place.base,
        uid=job.uid,
        checkpoint_dir=place.checkpoint_dir,
        storage_options=place.storage_options,
        retained_checkpoints=documents.MAX_CHECKPOINT_ID,
        **options,
    )


@contextmanager
def taken_over(
    settings: RestoreSettings,
    job: Job,
    terms: RestoreTerms,
    now_ms: int,
    *,
    approve: Callable[[RestorePlan], None] = lambda _planned: None,
    tried: Callable[[int], None] = lambda _parts: None,
    reads_keys: bool = False,
) -> Iterator[tuple[Runtime, CommitReport]]:
    """Own a job: fence it, finalize, encode and publish unless the terms hold it, and let go of it at the end.

    Args:
        settings: Its options.
        job: The job.
        terms: How to start.
        now_ms: This host's time, in milliseconds since 1970.
        approve: Raises if this is not the start that was meant; then nothing has been changed.
        tried: Told how many staging files or parts more were encoded or published, or could not be; from any thread.
        reads_keys: Whether the verb needs the keys of the sink; then a damaged run is told before the takeover.

    Raises:
        Fenced: Another process took the sink over first.
        SnapshotCorrupt: Its state, or a run of keys that it needs, is missing or damaged; nothing was changed.
        PartMissing, PartDamaged, CommitConflict: It is taken over, and a part cannot be encoded or published; the
            others have been.
    """
    from partfile.sink.coordinator import Runtime  # noqa: PLC0415 - the largest import; --help and TAB need no driver.

    def open_keys(seen: SeenKeys | None) -> None:
        if seen is None or not reads_keys:
            return
        from partfile.sink.deduplicate import check_runs  # noqa: PLC0415 - few sinks have keys, and numpy takes long.

        check_runs(settings, seen.ttl_ms, runtime.storage, seen)

    runtime = Runtime(settings, job.name, tried=tried)
    coordinator = runtime.coordinator
    try:
        yield runtime, coordinator.start(lambda _position: None, now_ms, terms, approve, open_keys)
    finally:
        if coordinator.held_epoch is not None:
            # Without it the sink only counts as busy for a while.
            with suppress(StoreError):
                runtime.storage.mark_released(coordinator.newest_checkpoint_id)
        runtime.close()


@dataclass(frozen=True, slots=True)
class Liveness:
    """The facts known about the owner of a checkpoint log."""

    job: Job
    is_marker_held: bool | None
    """Whether a driver holds the marker; if none does, it is gone. None where that is unknown, as in plain Python."""
    moved_at_ms: int | None
    """When its newest checkpoint was created, by the store's clock; None if there is none."""
    is_released: bool
    """Whether the creator of that checkpoint has said that it has let go of the checkpoint log, as this command does at
    its end."""

    def why_live(self, now_ms: int, idle_for_s: float) -> str:
        """Why the sink probably runs; empty if it does not.

        Args:
            now_ms: Now, by the store's clock, in milliseconds since 1970.
            idle_for_s: A sink without a new checkpoint for this long counts as stopped, in seconds.
        """
        if self.is_marker_held:
            return "a driver holds its marker, so it is running"
        if self.is_marker_held is False or self.is_released or self.moved_at_ms is None:
            return ""
        quiet_s = (now_ms - self.moved_at_ms) / 1000
        if quiet_s >= idle_for_s:
            return ""
        return f"its newest checkpoint is {max(0, round(quiet_s))} s old, less than {idle_for_s:g} s"


def liveness_of(checkpoints: Store, job: Job) -> Liveness:
    """Look at a job. Changes nothing."""
    storage = CheckpointStorage(checkpoints, job.name)
    newest = storage.newest_completed_id()
    seen = checkpoints.look_at(storage.path(documents.metadata_path(newest))) if newest else None
    return Liveness(
        job=job,
        is_marker_held=is_marker_held(storage),
        moved_at_ms=seen.modified_at_ms if seen else None,
        is_released=bool(newest) and storage.is_released(newest),
    )


def check_idle(stores: Stores, job: Job, now_ms: int, idle_for_s: float) -> None:
    """Refuse to fence a sink that runs.

    Args:
        stores: The sink's.
        job: Whose checkpoint log.
        now_ms: Now, by the store's clock, in milliseconds since 1970.
        idle_for_s: A sink without a new checkpoint for this long counts as stopped, in seconds, unless it is seen to
            run.

    Raises:
        Fenced: It probably runs.
    """
    life = liveness_of(stores.checkpoints, job)
    why = life.why_live(now_ms, idle_for_s)
    if not why and not life.is_released and life.is_marker_held is None:
        # Asked last, of a sink that seems to be gone: trying the lease disturbs a task that is to reopen its part.
        path = _part_being_written(stores, job)
        why = f"a task is writing its part {path!r}, so it is running" if path else ""
    if why:
        # A lock that is held is proof, which no option of time outweighs.
        is_only_young = not life.is_marker_held and bool(life.why_live(now_ms, idle_for_s))
        raise Fenced(
            f"sink {job.name!r} is not taken over: {why}",
            hint=f"{_STOP_IT}; or wait. If it has been killed, pass --idle-for 0s." if is_only_young else _STOP_IT,
        )


_STOP_IT = "Nothing was changed. Stop it first; or pass --fence, which stops it for good at its next checkpoint"


def _part_being_written(stores: Stores, job: Job) -> str:
    """The path of an open part of the newest checkpoint that a task has open now; empty if none is seen."""
    try:
        newest = newest_state(CheckpointStorage(stores.checkpoints, job.name))
        opened = chain.from_iterable(newest.state.open.values()) if newest is not None else ()
        paths = (part.part.path_of(part.part.in_progress) for part in opened if is_staged_file(part.part))
        return next((path for path in paths if stores.base.is_being_written(path)), "")
    except PartfileError:
        return ""  # Unknown here; the takeover reports what is wrong there.


def store_now_ms(store: Store, directory: str) -> int:
    """The store's clock, in milliseconds since 1970: the time of a file that is created for it and deleted.

    Args:
        store: Whose clock.
        directory: Where the file is made; empty is the base itself. A kill leaves it there, where ``clean`` finds it.

    Raises:
        StoreError: The directory cannot be written.
    """
    path = documents.below(directory, f"_tmp.{new_token()}")
    store.create_file(path, b"")
    try:
        seen = store.look_at(path)
    finally:
        store.delete_file(path)
    if seen is None:
        raise Fenced(
            f"{path!r} was deleted by another process at the same time",
            hint=(
                "Nothing was changed. Run the command again when no other one cleans this base. See who runs: "
                "partfile status PATH"
            ),
            path=path,
        )
    return seen.modified_at_ms


@dataclass(frozen=True, slots=True)
class Stores:
    """Both, open."""

    base: Store
    checkpoints: Store


@contextmanager
def open_stores(place: Place) -> Iterator[Stores]:
    """Open them.

    Raises:
        NotFound: The base is not there, or no sink has checkpoints in it.
        ConfigError: It cannot be used as it is.
        StoreError: A store cannot be reached.
    """
    checkpoints = place.open_checkpoints()
    if checkpoints is None:
        raise no_sink_at(place)
    with checkpoints, place.open_base() as base:
        yield Stores(base, checkpoints)


class FailedJob(Json):
    """A sink that was skipped, or only partly done."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    problem: Problem
    """Why."""

    @classmethod
    def of(cls, job: Job, error: PartfileError) -> Self:
        """Describe the error that ended a job."""
        return cls(job=job.name, problem=Problem.of(error))
