"""``recover``: take a sink over as its next start would, and finish and publish its parts now.

First the plan, pure, as it is printed; then its execution, which refuses where the sink has moved on since.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from partfile.errors import ConfigError, NotApplied, PartfileError, PartMissing, RecoveryRefused, SnapshotCorrupt
from partfile.recovery.documents import Json, Plan, check_same
from partfile.recovery.inspect.checkpoints import as_damage
from partfile.recovery.inspect.status import Problem
from partfile.recovery.ownership import FailedJob, Stores, settings_of, taken_over
from partfile.sink.concurrency import for_each
from partfile.sink.restore import Restore, RestoreTerms
from partfile.sink.restore_rules import shown
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.base import Cut
from partfile.stores.parts import is_staged_file, staged_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from partfile.recovery.inspect.places import Job, Place
    from partfile.sink.coordinator import CommitReport, Runtime
    from partfile.sink.plan import SinkSnapshot
    from partfile.sink.restore import RestorePlan
    from partfile.sink.settings import RestoreSettings, StoreOpener
    from partfile.sink.states import ClosedStagingFile, PendingPart
    from partfile.stores.base import PartHandle, Store


Found = Literal["staged", "blocked", "short", "finished", "missing", "taken"]


class RecoveryOptions(Json):
    """Options of a recovery."""

    cut: Cut = "auto"
    """The way in which a part that is longer than its valid length is cut."""
    accept_missing: bool = False
    """Give parts up that a checkpoint vouches for and that are gone."""
    restore_from: str | None = None
    """An older checkpoint, or a savepoint, to go back to."""
    accept_newer: bool = False
    """Go back although later parts stay, so that their rows come twice."""
    moved_from: str | None = None
    """The base that the checkpoints are of, if it has been moved."""
    set_aside: tuple[str, ...] = ()
    """Final paths, or staged ones, of parts that no file can be made of: their rows are kept as Arrow files."""


class PlannedPart(Json):
    """One part that becomes a finished file."""

    path: str
    """Its final path, relative to the base; of a staging file that buckets share, the name of its file in each of
    them."""
    is_staged: bool = False
    """Its rows are in a staging file, which is encoded into it first."""
    valid_length: int
    """Bytes that a checkpoint vouches for; what is longer is cut, or not read if it is a staging file."""
    rows: int
    """Rows in its valid bytes."""
    buckets: int | None = None
    """So many buckets at least share its staging file, which becomes a file in each; null of any other part."""
    finished_buckets: int | None = None
    """So many of them have their file already: their rows are no part of this any more; null of any other part."""
    was_open: bool
    """It was still open, or left alone by a task; else it was closed and only waits for its name."""
    found: Found
    """staged; blocked: staged, and another file has its final name, so it cannot be published; short: staged, and
    shorter than its valid length as far as can be seen; finished: has its final name already, which a staging file
    never has; missing: under none of its names; taken: likewise, of a sink that was told that consumers take files."""
    is_set_aside: bool = False
    """Whether its rows are kept as Arrow files beside the checkpoints, and no finished file is made of them."""
    problem: str = ""
    """Why a staging file cannot be encoded by this command, but only by its sink; empty if it can. The other parts are
    published all the same."""


class PlannedPosition(Json):
    """The position of a stream."""

    query_id: str | None
    """Id of Spark's query; null of a sink in plain Python."""
    batch_id: int | None
    """The last batch that counts."""


class PlannedJob(Json):
    """The plan for one job."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The newest checkpoint, which it goes on from."""
    nonce: str
    """The nonce of that checkpoint, which no other of its id has."""
    parts: tuple[PlannedPart, ...]
    """The parts that become finished files."""
    position: PlannedPosition
    """The position of the stream afterwards."""
    goes_back_from: PlannedPosition | None = None
    """The position before, if an older checkpoint or a savepoint is restored and that is known."""
    doubled: tuple[str, ...] = ()
    """Files whose rows come twice, if it goes back."""
    changes_state: bool
    """Whether more than the parts changes: an older state is restored."""
    moves_from: str | None = None
    """The base that its checkpoints were of until now; null if that stays as it is."""
    keys_problem: Problem | None = None
    """Why the sink cannot start afterwards: a file with keys of its rows is missing, has another length, or may not be
    looked at. Null if that was not seen; no file was read."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.parts) or self.changes_state or self.moves_from is not None

    @property
    def to_encode(self) -> int:
        """The number of parts that are encoded first."""
        return sum(part.is_staged and not part.is_set_aside for part in self.parts)

    @property
    def lost(self) -> tuple[PlannedPart, ...]:
        """The parts that cannot be published as they were found."""
        return tuple(part for part in self.parts if part.found in {"short", "missing"})

    @property
    def finished_of_lost(self) -> int:
        """The number of buckets that have their rows although the staging files that hold them are lost."""
        return sum(part.finished_buckets or 0 for part in self.lost)


class RecoveryPlan(Plan):
    """The plan of ``recover``."""

    base: str = ""
    """The base that was meant, with links resolved: a copy of it has plans of its own."""
    options: RecoveryOptions
    """The options that were given."""
    jobs: tuple[PlannedJob, ...]
    """Only those with something to do."""
    failed: tuple[FailedJob, ...] = ()
    """Those that cannot be recovered as they are, or that do not start although nothing waits; nothing is done."""

    def decisions(self) -> dict[str, Any]:
        """Without what was found of files, which may be on their way; but with the parts that are given up."""
        found_of_parts = {"parts": {"__all__": {"found", "buckets", "finished_buckets"}}}
        found: dict[str, Any] = {**found_of_parts, "keys_problem": True}
        decided = self.model_dump(mode="json", exclude={"failed": True, "jobs": {"__all__": found}})
        return decided | {"given_up": {job.job: sorted(self.given_up(job)) for job in self.jobs}}

    def given_up(self, job: PlannedJob) -> frozenset[str]:
        """The final paths of the parts of a job that are given up if they are still gone."""
        return frozenset(part.path for part in job.lost) if self.options.accept_missing else frozenset()


class RecoveredJob(Json):
    """The result for one job."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The checkpoint that its next start goes on from."""
    published: int
    """Parts that have their final names by now."""
    owed: int
    """Parts that could not be published now; recover again."""
    closed_staging_files: int = 0
    """Staging files that could not be encoded now; recover again."""
    given_up: int
    """Parts that were gone, whose rows are lost."""
    set_aside: tuple[str, ...] = ()
    """Directories with the rows of parts that were set aside, relative to the directory of checkpoints."""


_LOOKS = 5
_LOOKS_AT_A_PART = 2
"""A part that moves between two looks is under a later name at the second."""


def plan_recovery(place: Place, jobs: Sequence[Job], options: RecoveryOptions, stores: Stores) -> RecoveryPlan:
    """Plan the recovery of some jobs. Changes nothing.

    Of several jobs one that cannot be recovered does not end the plan of the others; it is told in it.

    Args:
        place: Where they are.
        jobs: Whose checkpoint logs.
        options: What was told.
        stores: Their stores.

    Raises:
        ConfigError: More than one job is to go back to one place.
        SnapshotCorrupt: The newest checkpoint of the only job cannot be read, and no older one was chosen.
        RecoveryRefused: What was chosen for it cannot be restored, or would make rows come twice; or no staging file
            waits for a part that is to be set aside.
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
    failed += [
        FailedJob(job=one.job, problem=one.keys_problem)
        for one in planned
        if one is not None and one.keys_problem and not one.is_needed
    ]
    _check_set_aside(needed, options)
    return RecoveryPlan(base=stores.base.base, options=options, jobs=needed, failed=tuple(failed))


def _check_set_aside(jobs: Sequence[PlannedJob], options: RecoveryOptions) -> None:
    """Refuse to set aside what is no staging file that waits to be encoded; raises RecoveryRefused."""
    parts = [part for job in jobs for part in job.parts]
    chosen = sum(part.is_set_aside for part in parts)
    if chosen == len(options.set_aside):
        return
    waiting = [part.path for part in parts if part.is_staged]
    raise RecoveryRefused(
        f"{len(options.set_aside)} parts are named to be set aside, of which {chosen} wait to be encoded",
        hint="Nothing was changed. Only what waits to be encoded can be set aside, named once and as status prints it: "
        f"{shown(waiting) if waiting else 'there is nothing of the kind'}. A part that waits to be published stands "
        "behind another file of its name: move that one away. See them: partfile status PATH",
    )


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
        now_ms: This host's time, in milliseconds since 1970.
        opener: Opens the stores; None is the usual one.
        step: Told how many staging files or parts more were encoded or published, or could not be; from any thread.

    Raises:
        RecoveryRefused: The job has moved on since the plan was made; nothing was changed.
        PartMissing, PartDamaged, CommitConflict: A part cannot be encoded or published; the others have been.
    """
    settings = recovery_settings(place, job, plan.options, opener)
    with (
        settings.open_store(settings.base, settings.storage_options) as base,
        planned_takeover(plan, job, base, settings, now_ms, step=step) as (runtime, done),
    ):
        return RecoveredJob(
            job=job.name,
            checkpoint_id=done.checkpoint_id,
            published=done.published,
            owed=done.owed,
            given_up=done.given_up,
            closed_staging_files=len(runtime.coordinator.state.closed),
            set_aside=done.set_aside,
        )


def planned_takeover(
    plan: RecoveryPlan,
    job: Job,
    base: Store,
    settings: RestoreSettings,
    now_ms: int,
    *,
    step: Callable[[int], None],
    reads_keys: bool = False,
) -> AbstractContextManager[tuple[Runtime, CommitReport]]:
    """Own a job by a start that does what the plan says of it, and nothing else.

    Args:
        plan: The plan.
        job: The job.
        base: Where its parts are, to look at them again.
        settings: The options of its restore.
        now_ms: This host's time, in milliseconds since 1970.
        step: Told how many staging files or parts more were encoded or published, or could not be; from any thread.
        reads_keys: Whether the verb needs the keys of the sink; then a damaged run is told before the takeover.

    Raises:
        RecoveryRefused: The start would do something else; nothing was changed.
        SnapshotCorrupt: A run of keys that is needed is missing or damaged; nothing was changed.
        PartMissing: A part is gone whose rows are not given up; nothing was changed.
    """
    planned = plan.model_copy(update={"jobs": tuple(one for one in plan.jobs if one.job == job.name)})

    def approve(seen: RestorePlan) -> None:
        with settings.open_store(settings.checkpoint_url, settings.checkpoint_options) as checkpoints:
            doubled = _doubled(_restore(settings, planned.options, job, Stores(base, checkpoints)), seen)
        found = _job(job, seen, _looked_for(seen, base, settings.storage_options), doubled, planned.options)
        now = planned.model_copy(update={"jobs": () if found is None else (found,)})
        check_same(planned.digest, now.digest)
        if found is not None and not planned.options.accept_missing:
            _check_there(found, base)

    gives_up = planned.given_up(planned.jobs[0]) if planned.jobs else frozenset[str]()
    sets_aside = frozenset(part.path for one in planned.jobs for part in one.parts if part.is_set_aside)
    terms = replace(_terms(plan.options), gives_up=gives_up, sets_aside=sets_aside)
    return taken_over(settings, job, terms, now_ms, approve=approve, tried=step, reads_keys=reads_keys)


def _check_there(found: PlannedJob, base: Store) -> None:
    """Refuse to take a sink over only to find out that rows are gone; raises PartMissing."""
    if found.lost:
        raise PartMissing(
            f"{len(found.lost)} of {len(found.parts)} parts that sink {found.job!r} owes are under none of their "
            f"names, or too short, at {base.base!r}: {shown([part.path for part in found.lost])}",
            hint="Nothing was changed. Check that this is the sink's base and that all of it is mounted; put the files "
            "back; or, if consumers take files, start the sink with its option consumers_take_files; or give them and "
            "their rows up with --accept-missing.",
        )


def recovery_settings(
    place: Place, job: Job, options: RecoveryOptions, opener: StoreOpener | None = None
) -> RestoreSettings:
    """The options of a job's restore."""
    return settings_of(place, job, opener, cut=options.cut)


def _terms(options: RecoveryOptions) -> RestoreTerms:
    """The terms of a start that follow from the options."""
    return RestoreTerms(
        restore_from=options.restore_from,
        rolls_back=True,
        accept_newer=options.accept_newer,
        accept_missing=options.accept_missing,
        moved_from=options.moved_from,
        keeps=False,
    )


def plan_job(place: Place, job: Job, options: RecoveryOptions, stores: Stores) -> PlannedJob | None:
    """Plan the recovery of one job, if only to take it over; None if it has no checkpoint."""
    restore = _restore(recovery_settings(place, job, options), options, job, stores)
    seen = _preview(restore, CheckpointStorage(stores.checkpoints, job.name))
    damage = restore.damage_of_keys(seen, stores.checkpoints)
    planned = _job(job, seen, _looked_for(seen, stores.base, place.storage_options), _doubled(restore, seen), options)
    if planned is None or damage is None:
        return planned
    return planned.model_copy(update={"keys_problem": Problem.of(damage)})


def _restore(settings: RestoreSettings, options: RecoveryOptions, job: Job, stores: Stores) -> Restore:
    """The restore of a job, by the options."""
    return Restore(settings, stores.base, CheckpointStorage(stores.checkpoints, job.name), _terms(options))


def _doubled(restore: Restore, seen: RestorePlan) -> tuple[str, ...]:
    """The files whose rows come twice if the sink goes back, by their final paths."""
    return tuple(restore.doubled(seen.before)) if seen.goes_back else ()


def _preview(restore: Restore, storage: CheckpointStorage) -> RestorePlan:
    """The plan of a start. Reads again while the job goes on and deletes what is being read."""
    look = 1
    while True:
        newest = storage.newest_completed_id()
        try:
            return restore.preview()
        except SnapshotCorrupt:
            if look == _LOOKS or storage.newest_completed_id() == newest:
                raise
        except NotApplied as error:
            raise as_damage(storage, error) from error
        look += 1


def _job(
    job: Job, seen: RestorePlan, found: dict[str, Found], doubled: tuple[str, ...], options: RecoveryOptions
) -> PlannedJob | None:
    """The plan of a takeover of a job; None if it has no checkpoint at all."""
    if seen.checkpoint is None:
        return None
    # The sink was told that consumers take files, and looked at each part before a checkpoint first promised it.
    promised_until = seen.checkpoint.checkpoint_id if seen.after.position.consumers_take_files else 0
    parts = [_part(pending, found, promised_until) for pending in seen.after.pending]
    waited = (
        {staging_file.part.in_progress for staging_file in seen.before.closed}
        if seen.before is not None
        else set[str]()
    )
    parts += [
        _staged(staging_file, found, options, was_open=staging_file.part.in_progress not in waited)
        for staging_file in seen.after.closed
    ]
    return PlannedJob(
        job=job.name,
        checkpoint_id=seen.checkpoint.checkpoint_id,
        nonce=seen.checkpoint.nonce,
        # A state has no order that stays, and a plan has one digest.
        parts=tuple(sorted(parts, key=lambda part: part.path)),
        position=_position(seen.after),
        goes_back_from=_position(seen.before) if seen.goes_back and seen.before is not None else None,
        doubled=doubled,
        changes_state=seen.goes_back,
        moves_from=_moves_from(seen, options),
    )


def _moves_from(seen: RestorePlan, options: RecoveryOptions) -> str | None:
    """The base that the checkpoints were of, if that is about to change by the user's word."""
    after = seen.after.position.base
    if options.moved_from is None or seen.before is None or seen.before.position.base == after:
        return None
    # Checkpoints that were moved away from their base say nothing of it.
    return seen.before.position.base or options.moved_from


def _part(pending: PendingPart, found: Mapping[str, Found], promised_until: int) -> PlannedPart:
    part, seen = pending.part, found[pending.part.in_progress]
    return PlannedPart(
        path=part.path_of(part.name),
        valid_length=part.valid_length,
        rows=pending.rows,
        was_open=pending.abandoned,
        found="taken" if seen == "missing" and pending.since <= promised_until else seen,
    )


def _staged(
    staging_file: ClosedStagingFile, found: Mapping[str, Found], options: RecoveryOptions, *, was_open: bool
) -> PlannedPart:
    from partfile.sink.encode import why_not_here  # noqa: PLC0415 - it loads pyarrow, which a plan without staging files does not need.

    part = staging_file.part
    is_set_aside = not {part.path_of(part.name), part.path_of(part.in_progress)}.isdisjoint(options.set_aside)
    return PlannedPart(
        path=part.path_of(part.name),
        is_staged=True,
        valid_length=part.valid_length,
        rows=staging_file.rows,
        buckets=staging_file.staging_file.least_buckets if staging_file.staging_file.shared else None,
        finished_buckets=len(staging_file.staging_file.finished_buckets) if staging_file.staging_file.shared else None,
        was_open=was_open,
        found=found[part.in_progress],
        is_set_aside=is_set_aside,
        problem="" if is_set_aside else why_not_here(staging_file.staging_file),
    )


def _looked_for(seen: RestorePlan, base: Store, storage_options: Mapping[str, object] | None) -> dict[str, Found]:
    """The state on the store of each part that a takeover would publish or encode, by its in-progress name."""
    parts = [pending.part for pending in seen.after.pending] + [staging_file.part for staging_file in seen.after.closed]

    def look(part: PartHandle) -> Found:
        found = _found(base, part)
        return "blocked" if found == "staged" and _is_blocked(base, storage_options, part) else found

    looks = for_each(look, parts, base.persist_threads, "partfile-look")
    return {part.in_progress: look for part, look in zip(parts, looks, strict=True)}


def _found(base: Store, part: PartHandle) -> Found:
    # A part moves from staged to finished, so this order misses none that is moving.
    for _ in range(_LOOKS_AT_A_PART):
        if base.is_staged(part):
            return "short" if _is_short(base, part) else "staged"
        if not part.is_staging_file and base.file_exists(part.path_of(part.name)):
            return "finished"
    return "missing"


def _is_short(base: Store, part: PartHandle) -> bool:
    if not is_staged_file(part):
        return False
    seen = [base.look_at(part.path_of(name)) for name in staged_names(part)]
    sizes = [file.size for file in seen if file is not None]
    return bool(sizes) and max(sizes) < part.valid_length


def _is_blocked(base: Store, storage_options: Mapping[str, object] | None, part: PartHandle) -> bool:
    """Whether a file that is not this part has its final name (R5); a half-done publish leaves the part under both."""
    final = None if part.is_staging_file else base.look_at(part.path_of(part.name))
    if final is None:
        return False
    if not is_staged_file(part):
        # The bytes of an upload cannot be read before it is completed.
        return final.size != part.valid_length
    from partfile.recovery.inspect.content import begin_alike  # noqa: PLC0415 - reading files waits for pyarrow.

    paths = [part.path_of(name) for name in staged_names(part)]
    return final.size < part.valid_length or not all(
        begin_alike(base.base, storage_options, (part.path_of(part.name), path), part.valid_length) for path in paths
    )


def _position(state: SinkSnapshot) -> PlannedPosition:
    query = state.position.query
    return PlannedPosition(query_id=query.query_id if query else None, batch_id=query.batch_id if query else None)
