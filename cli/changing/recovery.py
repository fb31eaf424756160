"""Recovering a sink: what its next start would settle and publish is settled and published now."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.ownership import foresee, settings_of, taken_over
from partfile.cli.changing.plans import check_same
from partfile.cli.changing.recovery_plan import (
    PlannedJob,
    PlannedPart,
    PlannedPosition,
    RecoveredJob,
    RecoveryPlan,
)
from partfile.cli.changing.stores import Stores
from partfile.cli.inspection.chains import as_damage
from partfile.filesystems.errors import ConfigError, NotApplied, PartfileError, PartMissing, SnapshotCorrupt
from partfile.filesystems.staged_names import is_staged_file, staged_names
from partfile.sink.beginning import StartTerms
from partfile.sink.concurrently import for_each
from partfile.sink.encoding import why_not_here
from partfile.sink.restore_on_demand import RestoreOnDemand
from partfile.sink.restoring import shown
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partfile.cli.changing.recovery_plan import Found, RecoveryOptions
    from partfile.cli.inspection.places import Job, Place
    from partfile.filesystems.port import PartHandle, Store
    from partfile.sink.beginning import Takeover
    from partfile.sink.planning import SinkSnapshot
    from partfile.sink.restore_settings import RestoreSettings, StoreOpener
    from partfile.sink.states import PendingPart, RolledStage

_LOOKS = 5
_LOOKS_AT_A_PART = 2
"""A part that moves between two looks is under a later name at the second."""


def plan_recovery(place: Place, jobs: Sequence[Job], options: RecoveryOptions, stores: Stores) -> RecoveryPlan:
    """What recovering some jobs would do now. Changes nothing.

    Of several jobs one that cannot be recovered does not end the plan of the others; it is told in it.

    Args:
        place: Where they are.
        jobs: Whose chains.
        options: What was told.
        stores: Their stores.

    Raises:
        ConfigError: More than one job is to go back to one place.
        SnapshotCorrupt: The newest checkpoint of the only job cannot be read, and no older one was chosen.
        RecoveryRefused: What was chosen for it cannot be restored, or would make rows come twice.
    """
    if options.restore_from is not None and len(jobs) > 1:
        names = ", ".join(job.name for job in jobs)
        raise ConfigError(
            "more than one sink is here, and one alone can go back", hint=f"Pass --uid; there are {names}."
        )
    planned, failed = [], []
    for job in jobs:
        try:
            planned.append(plan_job(place, job, options, stores))
        except PartfileError as error:
            if len(jobs) == 1:
                raise
            failed.append(FailedJob.of(job, error))
    needed = tuple(one for one in planned if one is not None and one.is_needed)
    return RecoveryPlan(base=stores.base.base, options=options, jobs=needed, failed=tuple(failed))


def recover(
    plan: RecoveryPlan,
    place: Place,
    job: Job,
    now_ms: int,
    opener: StoreOpener | None = None,
    *,
    step: Callable[[int], None] = lambda _parts: None,
) -> RecoveredJob:
    """Do what a plan says of one job, or nothing.

    Args:
        plan: The plan.
        place: Where it is.
        job: The job.
        now_ms: This host's time, in milliseconds since the epoch.
        opener: Opens the stores; None is the usual one.
        step: Told how many stages or parts more were encoded or published, or could not be; from any thread.

    Raises:
        RecoveryRefused: The job has moved on since the plan was made; nothing was changed.
        PartMissing, PartDamaged, CommitConflict: A part cannot be encoded or published; the others have been.
    """
    settings = recovery_settings(place, job, plan.options, opener)
    with (
        settings.open_store(settings.base, settings.storage_options) as base,
        taken_over(settings, job, planned_terms(plan, job, base, settings, step), now_ms) as (runtime, done),
    ):
        return RecoveredJob(
            job=job.name,
            checkpoint_id=done.checkpoint_id,
            published=done.published,
            owed=done.owed,
            given_up=done.given_up,
            rolled=len(runtime.coordinator.state.rolled),
        )


def planned_terms(
    plan: RecoveryPlan, job: Job, base: Store, settings: RestoreSettings, step: Callable[[int], None]
) -> StartTerms:
    """The terms of a start that does what the plan says of a job, and nothing else.

    Args:
        plan: The plan.
        job: The job.
        base: Where its parts are, to look at them again.
        settings: The options of its restore.
        step: Told how many stages or parts more were encoded or published, or could not be; from any thread.
    """
    planned = plan.model_copy(update={"jobs": tuple(one for one in plan.jobs if one.job == job.name)})

    def approve(takeover: Takeover) -> None:
        with settings.open_store(settings.checkpoint_url, settings.checkpoint_options) as checkpoints:
            doubled = _doubled(settings, job, Stores(base, checkpoints), takeover)
        found = _job(job, takeover, _looked_for(takeover, base), doubled, planned.options)
        now = planned.model_copy(update={"jobs": () if found is None else (found,)})
        check_same(planned.digest, now.digest)
        if found is not None and not planned.options.accept_missing:
            _check_there(found, base)

    gives_up = planned.given_up(planned.jobs[0]) if planned.jobs else frozenset[str]()
    return StartTerms(keeps=False, approve=approve, gives_up=gives_up, tried=step)


def _check_there(found: PlannedJob, base: Store) -> None:
    """Refuse to take a sink over only to find out that rows are gone; raises PartMissing."""
    if found.lost:
        raise PartMissing(
            f"{len(found.lost)} of {len(found.parts)} parts that sink {found.job!r} owes are under none of their "
            f"names, or too short, at {base.base!r}: {shown([part.path for part in found.lost])}",
            hint="Nothing was changed. Check that this is the sink's base and that all of it is mounted; put the files "
            "back; or give them and their rows up with --accept-missing.",
        )


def recovery_settings(
    place: Place, job: Job, options: RecoveryOptions, opener: StoreOpener | None = None
) -> RestoreSettings:
    """The options of a job's restore."""
    return settings_of(
        place,
        job,
        opener,
        cut=options.cut,
        accept_missing=options.accept_missing,
        restore_from=options.restore_from,
        accept_newer=options.accept_newer,
        moved_from=options.moved_from,
    )


def plan_job(place: Place, job: Job, options: RecoveryOptions, stores: Stores) -> PlannedJob | None:
    """What recovering one job would do now, if only to take it over; None if it has no checkpoint."""
    settings = recovery_settings(place, job, options)
    seen = _foreseen(settings, job, stores)
    return _job(job, seen, _looked_for(seen, stores.base), _doubled(settings, job, stores, seen), options)


def _doubled(settings: RestoreSettings, job: Job, stores: Stores, seen: Takeover) -> tuple[str, ...]:
    """The files whose rows come twice if the sink goes back, by their final paths."""
    if not seen.goes_back:
        return ()
    storage = CheckpointStorage(stores.checkpoints, job.name)
    return tuple(RestoreOnDemand(settings, stores.base, storage).doubled(seen.before))


def _foreseen(settings: RestoreSettings, job: Job, stores: Stores) -> Takeover:
    """What a start would do, looked at again while the job goes on and deletes what was being read."""
    storage = CheckpointStorage(stores.checkpoints, job.name)
    seen: list[Takeover] = []
    for look in range(_LOOKS):
        newest = storage.newest_linked_id()
        try:
            foresee(settings, job, stores, StartTerms(keeps=False, approve=seen.append))
        except SnapshotCorrupt:
            if look == _LOOKS - 1 or storage.newest_linked_id() == newest:
                raise
        except NotApplied as error:
            raise as_damage(storage, error) from error
        else:
            break
    return seen[-1]


def _job(
    job: Job, seen: Takeover, found: dict[str, Found], doubled: tuple[str, ...], options: RecoveryOptions
) -> PlannedJob | None:
    """What a takeover does to a job; None if it has no checkpoint at all."""
    if seen.link is None:
        return None
    parts = [_part(pending, found) for pending in seen.after.pending]
    waited = {stage.part.in_progress for stage in seen.before.rolled} if seen.before is not None else set[str]()
    parts += [_staged(stage, found, was_open=stage.part.in_progress not in waited) for stage in seen.after.rolled]
    return PlannedJob(
        job=job.name,
        checkpoint_id=seen.link.checkpoint_id,
        nonce=seen.link.nonce,
        # A state has no order that stays, and a plan has one digest.
        parts=tuple(sorted(parts, key=lambda part: part.path)),
        position=_position(seen.after),
        goes_back_from=_position(seen.before) if seen.goes_back and seen.before is not None else None,
        doubled=doubled,
        changes_state=seen.goes_back,
        moves_from=_moves_from(seen, options),
    )


def _moves_from(seen: Takeover, options: RecoveryOptions) -> str | None:
    """The base that the checkpoints were of, if that is about to change by the user's word."""
    after = seen.after.position.base
    if options.moved_from is None or seen.before is None or seen.before.position.base == after:
        return None
    # Checkpoints that were taken away from their base say nothing of it.
    return seen.before.position.base or options.moved_from


def _part(pending: PendingPart, found: Mapping[str, Found]) -> PlannedPart:
    part = pending.part
    return PlannedPart(
        path=part.path_of(part.name),
        valid_length=part.valid_length,
        rows=pending.rows,
        was_open=pending.abandoned,
        found=found[part.in_progress],
    )


def _staged(stage: RolledStage, found: Mapping[str, Found], *, was_open: bool) -> PlannedPart:
    part = stage.part
    return PlannedPart(
        path=part.path_of(part.name),
        is_staged=True,
        valid_length=part.valid_length,
        rows=stage.rows,
        buckets=stage.stage.least_buckets if stage.stage.shared else None,
        finished_buckets=len(stage.stage.finished_buckets) if stage.stage.shared else None,
        was_open=was_open,
        found=found[part.in_progress],
        problem=why_not_here(stage.stage),
    )


def _looked_for(seen: Takeover, base: Store) -> dict[str, Found]:
    """What is found of each part that a takeover would publish or encode, by its in-progress name."""
    parts = [pending.part for pending in seen.after.pending] + [stage.part for stage in seen.after.rolled]
    looks = for_each(partial(_found, base), parts, base.persist_threads, "partfile-look")
    return {part.in_progress: look for part, look in zip(parts, looks, strict=True)}


def _found(base: Store, part: PartHandle) -> Found:
    # A part moves from staged to finished, so this order misses none that is moving.
    for _ in range(_LOOKS_AT_A_PART):
        if base.is_staged(part):
            return "short" if _is_short(base, part) else "staged"
        if not part.is_stage and base.file_exists(part.path_of(part.name)):
            return "finished"
    return "missing"


def _is_short(base: Store, part: PartHandle) -> bool:
    if not is_staged_file(part):
        return False
    seen = [base.look_at(part.path_of(name)) for name in staged_names(part)]
    sizes = [file.size for file in seen if file is not None]
    return bool(sizes) and max(sizes) < part.valid_length


def _position(state: SinkSnapshot) -> PlannedPosition:
    query = state.position.query
    return PlannedPosition(query_id=query.query_id if query else None, batch_id=query.batch_id if query else None)
