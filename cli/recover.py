"""The verb ``recover``: settle and publish what a completed checkpoint vouches for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli import consent
from partfile.cli.adopt import AdoptLayout, Affix, PublishPending, QuarantineInProgress, adopt_tree, adoption_options
from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.recovery import plan_recovery, recover
from partfile.cli.changing.recovery_plan import RecoveredJob, RecoveryOptions, RecoveryPlan
from partfile.cli.changing.stores import Stores, open_stores
from partfile.cli.consent import IDLE_FOR, Apply, Fence, IdleFor, PlanDigest
from partfile.cli.failures import tell_failed
from partfile.cli.inspection.chains import read_chain
from partfile.cli.inspection.places import Job, jobs_in
from partfile.cli.recover_output import report_recovery, show_jobs, show_recovered
from partfile.cli.recovery_options import AcceptMissing, CutWord, cut_of
from partfile.cli.verb import Call, verb
from partfile.filesystems.errors import ConfigError, PartfileError, RecoveryRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.cli.consent import Consent


@verb()
def recover_(  # noqa: PLR0913 - the options of a command
    call: Call,
    *,
    apply: Apply = False,
    plan: PlanDigest = None,
    fence: Fence = False,
    idle_for: IdleFor = IDLE_FOR,
    cut: CutWord = "auto",
    accept_missing: AcceptMissing = False,
    restore_from: Annotated[
        str | None,
        typer.Option(
            "--restore-from", metavar="WHERE", help="Go back to this older checkpoint of the sink, or to a savepoint."
        ),
    ] = None,
    accept_newer: Annotated[
        bool, typer.Option("--accept-newer", help="Go back although later parts stay, so that their rows come twice.")
    ] = False,
    moved_from: Annotated[
        str | None,
        typer.Option(
            "--moved-from", metavar="OLD", help="The base in --checkpoint-dir D was OLD, and has been moved to PATH."
        ),
    ] = None,
    adopt_layout: AdoptLayout = None,
    publish_pending: PublishPending = False,
    quarantine_in_progress: QuarantineInProgress = False,
    affix: Affix = None,
) -> int:
    """Publish what a stopped sink has left: each part that a completed checkpoint vouches for, at its valid length.

    Stages of columnar parts are encoded first, in this process, a few at a time. The same as the sink's own next start
    does, without its rows. Prints a plan; --apply does it.
    """
    given = consent.consent(apply, plan, fence, idle_for)
    foreign = adoption_options(
        adopt_layout, affix, publish_pending=publish_pending, quarantine_in_progress=quarantine_in_progress
    )
    options = RecoveryOptions(
        cut=cut_of(cut),
        accept_missing=accept_missing,
        restore_from=restore_from,
        accept_newer=accept_newer,
        moved_from=moved_from,
    )
    _check_options(options)
    if foreign is not None:
        if call.uid is not None or call.place.checkpoint_dir is not None or options != RecoveryOptions():
            raise ConfigError(
                "--adopt-layout is about files of no sink of partfile's",
                hint="Leave out what is about sinks: --uid, --checkpoint-dir, --cut, --restore-from and the like.",
            )
        return adopt_tree(call, given, foreign)
    return _recover_sinks(call, given, options)


def _recover_sinks(call: Call, given: Consent, options: RecoveryOptions) -> int:
    with open_stores(call.place) as stores:
        jobs = jobs_in(stores.checkpoints, call.uid) if stores is not None else []
        if stores is None or not jobs:
            _check_nothing_to_restore(call, options)
            consent.check_nothing_meant(given, RecoveryPlan(options=options, jobs=()))
            call.tell(f"nothing to recover: no sink has checkpoints at {call.place.checkpoint_url}")
            return report_recovery(call, given, RecoveryPlan(options=options, jobs=()))
        _check_moved(call, options, stores, jobs)
        planned = plan_recovery(call.place, jobs, options, stores)
        touched = [job for job in jobs if job.name in {one.job for one in planned.jobs}]
        if not call.out.as_json:
            _show_plan(planned, call)
            if touched:
                consent.show_end_of_plan(given, planned, stores.checkpoints, touched, call)
        if not touched:
            consent.check_nothing_meant(given, planned)
        if given.is_applied and touched:
            now_ms = consent.now_of(given, stores.checkpoints, touched, call.now_ms)
            consent.check(given, planned, stores, touched, now_ms)
    return _recover_all(planned, call, given, touched if given.is_applied else [])


def _show_plan(planned: RecoveryPlan, call: Call) -> None:
    tell_failed(planned.failed, call.out)
    if planned.jobs or not planned.failed:
        show_jobs(planned.jobs, planned.options, call.out)


def _check_options(options: RecoveryOptions) -> None:
    """Refuse options that name nothing, or do nothing; raises ConfigError."""
    for name, value in (("--restore-from", options.restore_from), ("--moved-from", options.moved_from)):
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is empty", hint="Leave it out, or write a path or a URL.")
    if options.accept_newer and options.restore_from is None:
        raise ConfigError(
            "--accept-newer has no effect without --restore-from",
            hint="Name the checkpoint or the savepoint to go back to with --restore-from.",
        )


def _check_moved(call: Call, options: RecoveryOptions, stores: Stores, jobs: Sequence[Job]) -> None:
    """Refuse to leave --moved-from out of account where no checkpoint says of which base it is; raises ConfigError."""
    if options.moved_from is None or call.place.checkpoint_dir is not None:
        return
    states = [read_chain(stores.checkpoints, job).newest for job in jobs]
    if all(one is None or one.state.position.base is None for one in states):
        raise ConfigError(
            "--moved-from has no effect without --checkpoint-dir: checkpoints below PATH have moved with it",
            hint="Leave it out; or name the directory of checkpoints that stayed where it was.",
        )


def _check_nothing_to_restore(call: Call, options: RecoveryOptions) -> None:
    """Refuse to leave out what was to be restored; raises RecoveryRefused."""
    if options.restore_from is not None:
        raise RecoveryRefused(
            f"no sink has checkpoints at {call.place.checkpoint_url!r} that could go back to {options.restore_from!r}",
            hint="Check PATH and --checkpoint-dir. A sink that has none yet begins with a savepoint by itself, if its "
            "own options name it.",
        )


def _recover_all(planned: RecoveryPlan, call: Call, given: Consent, jobs: Sequence[Job]) -> int:
    """Recover some jobs, and report what was done however that ends."""
    outcomes: list[RecoveredJob | FailedJob] = []
    try:
        for job in jobs:
            outcome = _recover(planned, call, job)
            outcomes.append(outcome)
    finally:
        unfinished = tuple(job.name for job in jobs[len(outcomes) :])
        code = report_recovery(call, given, planned, outcomes, unfinished)
    return code


def _recover(planned: RecoveryPlan, call: Call, job: Job) -> RecoveredJob | FailedJob:
    """Recover one job; what goes wrong with it is no reason to leave the others."""
    # A stage is encoded, and then its file is published.
    steps = sum(len(one.parts) + one.to_encode for one in planned.jobs if one.job == job.name)
    try:
        with call.out.progress(f"publishing parts of sink {job.name}", steps) as step:
            done = recover(planned, call.place, job, call.now_ms, step=step)
    except PartfileError as error:
        failed = FailedJob.of(job, error)
        if not call.out.as_json:
            tell_failed([failed], call.out)
        return failed
    show_recovered(planned, done, call.out)
    return done
