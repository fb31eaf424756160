"""The verbs ``savepoint list``, ``show``, ``create`` and ``dispose``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from partfile.cli import confirmation
from partfile.cli.command import Call, verb
from partfile.cli.confirmation import IDLE_FOR, AcceptMissing, Apply, CutWord, Fence, IdleFor, PlanDigest, cut_of
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.cli.output import counted, seconds_of, shown_seconds
from partfile.cli.recover import show_jobs, show_sidecars
from partfile.errors import ConfigError
from partfile.recovery.documents import Json
from partfile.recovery.inspect.places import sinks_in
from partfile.recovery.inspect.savepoints import SavepointEntry, SavepointList, savepoint_report, savepoints_at
from partfile.recovery.ownership import open_stores
from partfile.recovery.recover import RecoveryOptions
from partfile.recovery.savepoints import (
    CreatedSavepoint,
    CreationPlan,
    DisposalPlan,
    create_savepoint,
    dispose,
    plan_creation,
    plan_disposal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


app = typer.Typer(
    help="Savepoints: snapshots that belong to you, which nothing deletes unasked.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.command("list", epilog="Example: partfile savepoint list /data/savepoints")
@verb(path="Directory in which savepoints are made.")
def list_(call: Call) -> int:
    """List the savepoints in a directory, those that were never finished or are damaged included.

    Looks whether their files are there; ``savepoint show`` reads them.
    """
    found = savepoints_at(call.place.base, call.place.storage_options, call.uid)
    if call.out.as_json:
        call.out.report(SavepointList(directory=call.place.base, savepoints=tuple(found)))
    elif not found:
        call.out.line(f"no savepoint in {call.place.base}")
    else:
        show_entries(found, call)
    return FINDINGS if any(one.problem for one in found) else DONE


@app.command("show", epilog="Example: partfile savepoint show /data/savepoints/savepoint-flight-0123456789ab")
@verb(path="The savepoint: its directory, or the _metadata in it.")
def show(call: Call) -> int:
    """Show what a savepoint holds. Reads all that a restore needs, and ends with 1 if it cannot be restored."""
    location = call.place.base
    report = savepoint_report(location, call.place.storage_options)
    if call.out.as_json:
        call.out.report(report)
        return FINDINGS if report.problem else DONE
    if report.problem:
        call.out.line(f"DAMAGED  {call.out.in_words(report.problem)}", "bold red")
        call.out.line(f"  {call.out.in_words(report.hint)}")
    call.out.table(
        ("SAVEPOINT", location),
        [
            ("sink", report.job),
            ("taken by checkpoint", str(report.checkpoint_id)),
            ("age", shown_seconds((call.now_ms - report.time_ms) / 1000)),
            ("stopped the sink", "yes" if report.ends_the_job else "no"),
            ("operators", ", ".join(report.operators)),
            ("bytes of state", str(report.state_bytes)),
            *([] if report.keys == 0 else [("keys of rows", "unknown" if report.keys is None else str(report.keys))]),
            ("written by partfile", report.writer),
        ],
    )
    return FINDINGS if report.problem else DONE


def show_entries(entries: Sequence[SavepointEntry], call: Call) -> None:
    """Print savepoints as a table."""
    head = ("SAVEPOINT", "SINK", "CHECKPOINT", "AGE", "STOPPED", "PROBLEM")
    call.out.table(head, [_row(one, call.now_ms) for one in entries])


def _row(entry: SavepointEntry, now_ms: int) -> tuple[str, ...]:
    age_s = None if entry.time_ms is None else (now_ms - entry.time_ms) / 1000
    stopped = {True: "yes", False: "no", None: "?"}[entry.ends_the_job]
    checkpoint = str(entry.checkpoint_id or "?")
    return entry.directory, entry.job or "?", checkpoint, shown_seconds(age_s), stopped, entry.problem


class CreateReport(Json):
    """The output of ``savepoint create --json``."""

    schema_name: Literal["partfile.savepoint-create"] = Field("partfile.savepoint-create", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: CreationPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    location: str | None
    """The location that ``restore_from`` takes; null without ``--apply``."""
    published: int | None
    """Parts that have their final names by now; null without ``--apply``."""
    given_up: int | None
    """Parts that were gone, whose rows are lost; null without ``--apply``."""


class DisposeReport(Json):
    """The output of ``savepoint dispose --json``."""

    schema_name: Literal["partfile.savepoint-dispose"] = Field("partfile.savepoint-dispose", alias="schema")
    schema_version: Literal[1] = 1
    plan: DisposalPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""


@app.command(epilog="Example: partfile savepoint create /data/flights --to /data/savepoints --apply")
@verb()
def create(
    call: Call,
    *,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Directory in which the savepoint is made.")],
    apply: Apply = False,
    plan: PlanDigest = None,
    fence: Fence = False,
    idle_for: IdleFor = IDLE_FOR,
    cut: CutWord = "auto",
    accept_missing: AcceptMissing = False,
) -> int:
    """Take a savepoint of a sink that does not run: recover it, then write down where it stands.

    Prints a plan; --apply does it. Ask a sink that runs for a savepoint itself.
    """
    given = confirmation.confirmation(apply, plan, fence, idle_for)
    options = RecoveryOptions(cut=cut_of(cut), accept_missing=accept_missing)
    with open_stores(call.place) as stores:
        jobs = sinks_in(stores.checkpoints, call.place, call.uid)
        if len(jobs) > 1:
            names = ", ".join(job.name for job in jobs)
            raise ConfigError("more than one sink is here, and a savepoint is of one", hint=f"Pass --uid: {names}.")
        planned = plan_creation(call.place, jobs[0], to, options, stores)
        if not call.out.as_json:
            show_jobs((planned.job,), options, call.out, is_applied=given.is_applied)
            refused = "; --apply is refused, since the keys cannot be read" if planned.job.keys_problem else ""
            call.out.line(f"  then write a savepoint below {to}{refused}", "bold red" if refused else None)
            confirmation.show_end_of_plan(given, planned, stores.checkpoints, jobs, call)
        if given.is_applied:
            now_ms = confirmation.now_of(given, stores.checkpoints, jobs, call.now_ms)
            confirmation.check(given, planned, stores, jobs, now_ms)
    done = None
    if given.is_applied:
        with call.out.progress("publishing parts", len(planned.job.parts) + planned.job.to_encode) as step:
            done = create_savepoint(planned, call.place, jobs[0], call.now_ms, step=step)
    _report_created(call, planned, done)
    return FINDINGS if done is None or done.given_up else DONE


def _report_created(call: Call, planned: CreationPlan, done: CreatedSavepoint | None) -> None:
    if call.out.as_json:
        call.out.report(
            CreateReport(
                base=call.place.base,
                plan=planned,
                digest=planned.digest,
                is_applied=done is not None,
                location=done.location if done else None,
                published=done.published if done else None,
                given_up=done.given_up if done else None,
            )
        )
    elif done is not None:
        lost = f", {done.given_up} GIVEN UP" if done.given_up else ""
        call.out.line(f"{counted(done.published, 'part')} published{lost}", "red" if lost else "green")
        show_sidecars((planned.job,), planned.options, call.out)
        call.out.line(f"savepoint {done.location}", "green")


@app.command(
    "dispose", epilog="Example: partfile savepoint dispose /data/savepoints/savepoint-flight-0123456789ab --apply"
)
@verb(path="The savepoint: its directory, or the _metadata in it.")
def dispose_(
    call: Call,
    *,
    apply: Apply = False,
    plan: PlanDigest = None,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="T", help="Refuse an unfinished or unreadable one that is younger."),
    ] = "24h",
) -> int:
    """Delete a savepoint for good, or what was left of one. Prints a plan; --apply does it.

    One of a newer partfile is refused. Files in its directory that are none of a savepoint's stay.
    """
    given = confirmation.confirmation(apply, plan, fence=False, idle_for=IDLE_FOR)
    planned = plan_disposal(
        call.place.base, call.place.storage_options, call.now_ms, seconds_of(older_than, "--older-than")
    )
    is_needed = planned.kind != "nothing"
    if call.out.as_json:
        call.out.report(DisposeReport(plan=planned, digest=planned.digest, is_applied=apply))
    elif not is_needed:
        call.out.line(f"nothing is at {planned.location}")
    else:
        taken_of = f" of sink {planned.job}, checkpoint {planned.checkpoint_id}" if planned.job else ""
        call.out.line(f"delete the {planned.kind} {planned.location}{taken_of}: {len(planned.files)} files", "bold")
        for name in planned.foreign:
            call.out.line(f"  leave: {name}, which is none of a savepoint's", "yellow")
        call.out.line(f"plan {planned.digest}", "bold")
        if not apply:
            call.out.line("Nothing was changed. Add --apply to do this.", "dim")
    if not is_needed:
        confirmation.check_nothing_meant(given, planned)
        return DONE
    if not given.is_applied:
        return FINDINGS
    confirmation.check_plan(given, planned)
    dispose(planned, call.place.storage_options)
    call.tell(f"deleted {counted(len(planned.files), 'file')}")
    return DONE
