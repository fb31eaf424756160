"""The verb ``recover``: finish and publish what a completed checkpoint holds; with ``--adopt-layout`` foreign trees."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from partfile.cli import confirmation
from partfile.cli.command import Call, verb
from partfile.cli.completion import complete_staged_part
from partfile.cli.confirmation import IDLE_FOR, AcceptMissing, Apply, CutWord, Fence, IdleFor, PlanDigest, cut_of
from partfile.cli.exit_codes import DONE, FINDINGS, code_of_problem
from partfile.cli.output import counted, shown_bytes, tell_failed
from partfile.errors import ConfigError, NotFound, PartfileError, joined_hints, page_url
from partfile.recovery.adopt.apply import AdoptedReport, adopt, check_idle, plan_adoption
from partfile.recovery.adopt.flink_names import FlinkNames
from partfile.recovery.adopt.plan import AdoptionOptions, AdoptionPlan, Layout
from partfile.recovery.documents import Json
from partfile.recovery.inspect.checkpoints import read_checkpoint_log
from partfile.recovery.inspect.places import sinks_in
from partfile.recovery.ownership import FailedJob, Stores, open_stores, store_now_ms
from partfile.recovery.recover import RecoveredJob, RecoveryOptions, RecoveryPlan, plan_recovery, recover

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.cli.confirmation import Confirmation
    from partfile.cli.output import Output
    from partfile.recovery.adopt.plan import AdoptedItem
    from partfile.recovery.inspect.places import Job, Place
    from partfile.recovery.recover import PlannedJob, PlannedPart, PlannedPosition


AdoptLayout = Annotated[
    str | None,
    typer.Option(
        "--adopt-layout",
        metavar="WHOSE",
        help="PATH is another sink's: flink is a tree of a BucketingSink, spark one with a _spark_metadata. Says "
        "which files are finished or committed, and publishes, cuts or quarantines what is not.",
    ),
]
PublishPending = Annotated[
    bool,
    typer.Option(
        "--publish-pending",
        help="With --adopt-layout flink: publish closed parts too, although only Flink's state knows whether their "
        "checkpoints were completed.",
    ),
]
QuarantineInProgress = Annotated[
    bool,
    typer.Option(
        "--quarantine-in-progress",
        help="With --adopt-layout flink: move parts that were being written to the quarantine, although only Flink's "
        "state knows whether a checkpoint vouches for the beginning of them.",
    ),
]
Affix = Annotated[
    list[str] | None,
    typer.Option(
        "--affix",
        metavar="KEY=VALUE",
        help="With --adopt-layout flink: part-prefix, or the prefix or suffix of in-progress, pending or valid-length "
        "files, as pending-suffix=.waiting, where that is not Flink's default; may be repeated.",
    ),
]

_SHOWN = 20
_DOES = {"publish": "publish", "cut": "cut", "quarantine": "quarantine", "leave": "LEAVE"}


class AdoptReport(Json):
    """The output of ``recover --adopt-layout --json``."""

    schema_name: Literal["partfile.adopt"] = Field("partfile.adopt", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: AdoptionPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    adopted: AdoptedReport | None
    """The result; null without ``--apply``, or if there was nothing to do."""


def adoption_options(
    layout: str | None, affixes: list[str] | None, *, publish_pending: bool, quarantine_in_progress: bool
) -> AdoptionOptions | None:
    """The options as one value; None if no layout was named.

    Raises:
        ConfigError: They do not go together, or one cannot be used.
    """
    layouts: dict[str, Layout] = {"flink": "flink", "spark": "spark"}
    if layout != "flink" and (affixes or publish_pending or quarantine_in_progress):
        raise ConfigError(
            "--affix, --publish-pending and --quarantine-in-progress have no effect without --adopt-layout flink",
            hint="Leave them out, or say with --adopt-layout flink that PATH is a tree of Flink's.",
        )
    if layout is None:
        return None
    if layout not in layouts:
        raise ConfigError(
            f"--adopt-layout {layout!r} is not a known layout",
            hint="Write --adopt-layout flink or --adopt-layout spark.",
        )
    return AdoptionOptions(
        layout=layouts[layout],
        publish_pending=publish_pending,
        quarantine_in_progress=quarantine_in_progress,
        names=_names_of(affixes or []),
    )


def _names_of(pairs: list[str]) -> FlinkNames:
    """The names that the values of ``--affix`` describe.

    Raises:
        ConfigError: A key is unknown, or files could not be told apart by such names.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        field = key.replace("-", "_")
        if not equals or field not in FlinkNames.model_fields:
            keys = ", ".join(name.replace("_", "-") for name in FlinkNames.model_fields)
            raise ConfigError(f"--affix {pair!r} names no affix of Flink's", hint=f"Write KEY=VALUE; keys are {keys}.")
        given[field] = value
    names = FlinkNames(**given)
    names.check()
    return names


def adopt_tree(call: Call, given: Confirmation, options: AdoptionOptions) -> int:
    """Show the plan for a tree of another sink, and do it if that was asked for."""
    base = call.place.base
    with call.place.open_base() as store:
        with call.out.progress("listing files") as step:
            planned = plan_adoption(store, base, options, step)
        if not call.out.as_json:
            _show(planned, given, call.out)
        done = None
        if given.is_applied and planned.to_do:
            confirmation.check_plan(given, planned)
            # In the base, so that a refusal leaves no directory in a foreign tree.
            now_ms = store_now_ms(store, "")
            if not given.may_fence:
                check_idle(planned, now_ms, given.idle_for_s(store))
            with call.out.progress("adopting files", len(planned.to_do)) as step:
                done = adopt(planned, store, base, now_ms, step)
    return _report(call, given, planned, done)


def _show(planned: AdoptionPlan, given: Confirmation, out: Output) -> None:
    word = "committed" if planned.options.layout == "spark" else "finished"
    out.line(f"{planned.finished.files} files are {word}, {shown_bytes(planned.finished.bytes)}: they stay", "green")
    if planned.ignored.files:
        out.line(f"{planned.ignored.files} other files are none of that sink's: they stay", "dim")
    for kind in dict.fromkeys(item.kind for item in planned.items):
        items = [item for item in planned.items if item.kind == kind]
        size = sum(item.size for item in items)
        out.line(f"{kind}: {len(items)}, {shown_bytes(size)}", "bold")
        for item in items[:_SHOWN]:
            _show_item(item, out)
        if len(items) > _SHOWN:
            out.line(f"  and {len(items) - _SHOWN} more; --json shows all")
    if planned.to_do:
        out.line(f"plan {planned.digest}", "bold")
    if planned.to_do and not given.is_applied:
        out.line("Nothing was changed. Stop that job for good, then add --apply to do this.", "dim")


def _show_item(item: AdoptedItem, out: Output) -> None:
    does = _DOES[item.action]
    if item.valid_length is not None and item.valid_length != item.size:
        does = f"cut to {shown_bytes(item.valid_length)}" + (" and publish" if item.action == "publish" else "")
    out.line(f"  {does}: {item.path}, {shown_bytes(item.size)}", "yellow" if item.action == "leave" else None)
    out.line(f"    {item.why}", "dim")


def _report(call: Call, given: Confirmation, planned: AdoptionPlan, done: AdoptedReport | None) -> int:
    if call.out.as_json:
        call.out.report(
            AdoptReport(
                base=call.place.base, plan=planned, digest=planned.digest, is_applied=given.is_applied, adopted=done
            )
        )
    elif done is not None:
        _show_done(done, call.out)
    is_left = len(planned.to_do) < len(planned.items)
    if given.is_applied:
        return FINDINGS if is_left or (done is not None and done.failed) else DONE
    return FINDINGS if planned.items else DONE


def _show_done(done: AdoptedReport, out: Output) -> None:
    out.line(f"{done.published} published, {done.cut} cut, {done.quarantined} moved to the quarantine", "green")
    if done.quarantine is not None:
        out.line(f"they are in _partfile/{done.quarantine}; delete that directory when they are not missed")
    for one in done.failed:
        out.line(f"not done: {one.error}", "red")


_FOUND = {
    "staged": "",
    "blocked": ", ANOTHER FILE HAS ITS NAME: move that one away first",
    "short": ", IS SHORTER THAN THAT",
    "finished": ", has its final name already",
    "missing": ", IS UNDER NONE OF ITS NAMES",
    "taken": ", a consumer has taken it",
}


class RecoverReport(Json):
    """The output of ``recover --json``."""

    schema_name: Literal["partfile.recover"] = Field("partfile.recover", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: RecoveryPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    recovered: tuple[RecoveredJob, ...]
    """The result for each job; empty without ``--apply``."""
    failed: tuple[FailedJob, ...] = ()
    """Jobs that failed; the other jobs were recovered all the same. Jobs that were left out are in the plan."""
    unfinished: tuple[str, ...] = ()
    """The jobs at the first of which an interruption or another error ended it; run it again."""


def show_jobs(jobs: Sequence[PlannedJob], options: RecoveryOptions, out: Output, *, is_applied: bool) -> None:
    """Print what becomes of each job."""
    if not jobs:
        out.line("nothing to recover: no completed checkpoint that can be read waits for a part")
    for job in jobs:
        out.line(f"sink {job.job}, from checkpoint {job.checkpoint_id}", "bold")
        if job.moves_from is not None:
            out.line(f"  its base was {job.moves_from}, and is this one from then on", "yellow")
        if job.changes_state:
            _show_way_back(job, options, out)
        _show_damage_of_keys(job, out)
        for part in job.parts[:_SHOWN]:
            _show_part(part, options, out)
        if len(job.parts) > _SHOWN:
            out.line(f"  and {len(job.parts) - _SHOWN} parts more; --json shows all")
        if job.lost and options.accept_missing:
            out.line(f"  given up: {counted(len(job.lost), 'part')}, with their rows{_but_finished(job)}", "bold red")
        elif job.lost:
            out.line(f"  missing or too short: {counted(len(job.lost), 'part')}; --apply is refused", "bold red")
            does = f"put them back; or --accept-missing gives them up, with their rows{_but_finished(job)}"
            out.line(f"  {does}", "bold red")
        if not is_applied:
            _show_staging_files(job, options, out)


def _show_damage_of_keys(job: PlannedJob, out: Output) -> None:
    if job.keys_problem:
        out.line(f"  {out.in_words(job.keys_problem.message)}; the sink does not start like that", "bold red")
        out.line(f"    {out.in_words(job.keys_problem.hint)}")


def show_recovered(planned: RecoveryPlan, done: RecoveredJob, place: Place, out: Output) -> None:
    """Print what was done to a job."""
    if out.as_json:
        return
    owed = f", {done.owed} could not be published: run it again" if done.owed else ""
    owed += f", {done.closed_staging_files} could not be encoded: run it again" if done.closed_staging_files else ""
    lost = f", {done.given_up} GIVEN UP" if done.given_up else ""
    out.line(
        f"sink {done.job}: {counted(done.published, 'part')} published{lost}{owed}", "red" if lost or owed else "green"
    )
    for directory in done.set_aside:
        out.line(f"  rows set aside, as Arrow files: {place.checkpoint_url}/{directory}", "yellow")
    show_sidecars((job for job in planned.jobs if job.job == done.job), planned.options, out)


def show_sidecars(jobs: Iterable[PlannedJob], options: RecoveryOptions, out: Output) -> None:
    """Say which readers leave out the tails of parts that were published with them."""
    cut = [part for job in jobs for part in job.parts if part.was_open and not part.is_staged]
    noted = sum(part.found != "finished" for part in cut)
    if options.cut == "valid-length" and noted:
        text = f"  {noted} of them have sidecars, where they are longer: readers that know none read their tails"
        out.line(text, "yellow")


def report_recovery(
    call: Call,
    given: Confirmation,
    planned: RecoveryPlan,
    outcomes: Sequence[RecoveredJob | FailedJob] = (),
    unfinished: tuple[str, ...] = (),
) -> int:
    """Print the document, or the sinks that are left, and return the exit code."""
    done = tuple(one for one in outcomes if isinstance(one, RecoveredJob))
    failed = tuple(one for one in outcomes if isinstance(one, FailedJob))
    if call.out.as_json:
        call.out.report(
            RecoverReport(
                base=call.place.base,
                plan=planned,
                digest=planned.digest,
                is_applied=given.is_applied,
                recovered=done,
                failed=failed,
                unfinished=unfinished,
            )
        )
    elif unfinished:
        call.out.note(f"partfile: not recovered to their end: sinks {', '.join(unfinished)}. Run it again.", "red")
    is_left = (
        any(one.owed or one.given_up or one.closed_staging_files for one in done)
        if given.is_applied
        else bool(planned.jobs)
    )
    return max([FINDINGS if is_left else DONE, *(code_of_problem(one.problem) for one in (*planned.failed, *failed))])


def _show_way_back(job: PlannedJob, options: RecoveryOptions, out: Output) -> None:
    out.line(f"  goes back to {options.restore_from}", "yellow")
    before = f", from {_position(job.goes_back_from)}" if job.goes_back_from else ""
    out.line(f"  the stream stands at {_position(job.position)} then{before}")
    if job.doubled:
        out.line(f"  {len(job.doubled)} files stay whose rows come twice:", "bold red")
        for path in job.doubled[:_SHOWN]:
            out.line(f"    {path}")


def _show_part(part: PlannedPart, options: RecoveryOptions, out: Output) -> None:
    end = shown_bytes(part.valid_length)
    if part.is_staged:
        does = _use_of_staging_file(part, end)
    elif part.was_open and options.cut == "valid-length":
        rows = counted(part.rows, "row")
        does = f"publish, with a sidecar if longer than {end} ({rows}): only readers of sidecars stop there"
    elif part.was_open:
        does = f"cut to {end} ({counted(part.rows, 'row')}) and publish"
    else:
        does = f"publish {end} ({counted(part.rows, 'row')})"
    found = f"{_FOUND[part.found]}, CANNOT BE ENCODED HERE: {part.problem}" if part.problem else _FOUND[part.found]
    is_wrong = part.found in {"blocked", "short", "missing"} or bool(part.problem)
    out.line(f"  {does}: {part.path}{found}", "bold red" if is_wrong else None)


def _use_of_staging_file(part: PlannedPart, end: str) -> str:
    """A phrase for what becomes of a staging file; nothing is promised of one that is missing or too short."""
    is_shared = part.buckets is not None and not part.is_set_aside
    shared = f" that {part.buckets} buckets or more share" if is_shared else ""
    what = f"{end} of a staging file{shared} ({counted(part.rows, 'row')})"
    if part.found in {"short", "missing"}:
        return f"cannot {'set aside' if part.is_set_aside else 'encode'} {what}"
    if part.is_set_aside:
        return f"set aside: keep {what} as Arrow files, and make no file of"
    if part.buckets is None:
        return f"encode {what} and publish"
    done = part.finished_buckets
    return f"encode {what} and publish in {f'those without a file yet ({done} have theirs)' if done else 'each'}"


def _show_staging_files(job: PlannedJob, options: RecoveryOptions, out: Output) -> None:
    """Say what the plan does not know of staging files, and the way out for those that lack bytes."""
    staged = [part for part in job.parts if part.is_staged]
    if not options.accept_missing and any(part.found in {"short", "missing"} for part in staged):
        way = page_url("RUNBOOK", "13-a-columnar-part-is-stuck-as-a-staging-file")
        out.line(f"  a staging file lacks bytes, so no file is made of it; what to do: {way}", "bold red")
    if any(part.found == "staged" and not part.problem for part in staged):
        way = "to read them before: partfile verify PATH --checksums"
        out.line(out.in_words(f"  bytes of staging files are read by --apply; {way}"))


def _but_finished(job: PlannedJob) -> str:
    """A phrase for the rows of lost staging files that are in files already."""
    return f"; but {job.finished_of_lost} buckets have theirs in files already" if job.finished_of_lost else ""


def _position(position: PlannedPosition) -> str:
    return "its own position" if position.query_id is None else f"query {position.query_id}, batch {position.batch_id}"


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
            "--restore-from",
            metavar="WHERE",
            help="Go back to this older checkpoint, by its id or directory, or to a savepoint.",
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
    set_aside: Annotated[
        list[str] | None,
        typer.Option(
            "--set-aside",
            metavar="PART",
            autocompletion=complete_staged_part,
            help="Make no file of this part, which cannot be encoded; keep its rows as Arrow files. May be repeated.",
        ),
    ] = None,
    adopt_layout: AdoptLayout = None,
    publish_pending: PublishPending = False,
    quarantine_in_progress: QuarantineInProgress = False,
    affix: Affix = None,
) -> int:
    """Publish what a stopped sink has left: each part that a completed checkpoint vouches for, at its valid length.

    Staging files of columnar parts are encoded first, in this process, a few at a time. The same as the sink's own next
    start does, without its rows. Prints a plan; --apply does it.
    """
    given = confirmation.confirmation(apply, plan, fence, idle_for)
    foreign = adoption_options(
        adopt_layout, affix, publish_pending=publish_pending, quarantine_in_progress=quarantine_in_progress
    )
    options = RecoveryOptions(
        cut=cut_of(cut),
        accept_missing=accept_missing,
        restore_from=restore_from,
        accept_newer=accept_newer,
        moved_from=moved_from,
        set_aside=tuple(set_aside or ()),
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


def _recover_sinks(call: Call, given: Confirmation, options: RecoveryOptions) -> int:
    with ExitStack() as stack:
        try:
            stores = stack.enter_context(open_stores(call.place))
            jobs = sinks_in(stores.checkpoints, call.place, call.uid)
        except NotFound as error:
            if options.restore_from is not None:
                error.hint = joined_hints(
                    error.hint,
                    "A sink that has none yet begins with a savepoint by itself, when its FileSink is given the path.",
                )
            raise
        _check_moved(call, options, stores, jobs)
        planned = plan_recovery(call.place, jobs, options, stores)
        touched = [job for job in jobs if job.name in {one.job for one in planned.jobs}]
        if not call.out.as_json:
            _show_plan(planned, given, call)
            if touched:
                confirmation.show_end_of_plan(given, planned, stores.checkpoints, touched, call)
        if not touched:
            confirmation.check_nothing_meant(given, planned)
        if given.is_applied and touched:
            now_ms = confirmation.now_of(given, stores.checkpoints, touched, call.now_ms)
            confirmation.check(given, planned, stores, touched, now_ms)
    return _recover_all(planned, call, given, touched if given.is_applied else [])


def _show_plan(planned: RecoveryPlan, given: Confirmation, call: Call) -> None:
    tell_failed(planned.failed, call.out)
    if planned.jobs or not planned.failed:
        show_jobs(planned.jobs, planned.options, call.out, is_applied=given.is_applied)


def _check_options(options: RecoveryOptions) -> None:
    """Refuse options that name nothing, or do nothing; raises ConfigError."""
    for name, value in (("--restore-from", options.restore_from), ("--moved-from", options.moved_from)):
        if value is not None and not value.strip():
            raise ConfigError(f"{name} is empty", hint=f"Leave it out, or give it a value: {name}=PATH")
    if options.accept_newer and options.restore_from is None:
        raise ConfigError(
            "--accept-newer has no effect without --restore-from",
            hint="Name the checkpoint or the savepoint to go back to with --restore-from.",
        )


def _check_moved(call: Call, options: RecoveryOptions, stores: Stores, jobs: Sequence[Job]) -> None:
    """Refuse to leave --moved-from out of account where no checkpoint says of which base it is; raises ConfigError."""
    if options.moved_from is None or call.place.checkpoint_dir is not None:
        return
    states = [read_checkpoint_log(stores.checkpoints, job).newest for job in jobs]
    if all(one is None or one.state.position.base is None for one in states):
        raise ConfigError(
            "--moved-from has no effect without --checkpoint-dir: checkpoints below PATH have moved with it",
            hint="Leave it out; or name the directory of checkpoints that stayed where it was: --checkpoint-dir D",
        )


def _recover_all(planned: RecoveryPlan, call: Call, given: Confirmation, jobs: Sequence[Job]) -> int:
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
    # A staging file is encoded, and then its file is published.
    steps = sum(len(one.parts) + one.to_encode for one in planned.jobs if one.job == job.name)
    try:
        with call.out.progress(f"publishing parts of sink {job.name}", steps) as step:
            done = recover(planned, call.place, job, call.now_ms, step=step)
    except PartfileError as error:
        failed = FailedJob.of(job, error)
        if not call.out.as_json:
            tell_failed([failed], call.out)
        return failed
    show_recovered(planned, done, call.place, call.out)
    return done
