"""The verb ``state``: the keys of sinks that deduplicate, shown, exported and forgotten."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from partfile.cli import confirmation
from partfile.cli.command import Call, verb
from partfile.cli.confirmation import IDLE_FOR, Apply, Fence, IdleFor, PlanDigest
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.cli.output import counted, shown_bytes, shown_seconds
from partfile.errors import ConfigError, NotFound
from partfile.recovery.documents import Json
from partfile.recovery.inspect.keys import StateReport, export_keys, jobs_with_keys, keys_reports
from partfile.recovery.inspect.places import no_sink_at, sinks_in
from partfile.recovery.keys import ForgetPlan, forget_keys, plan_forgetting
from partfile.recovery.ownership import open_stores
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.cli.confirmation import Confirmation
    from partfile.recovery.inspect.places import Job


class ForgetReport(Json):
    """The output of ``state --forget --json``."""

    schema_name: Literal["partfile.state-forget"] = Field("partfile.state-forget", alias="schema")
    schema_version: Literal[1] = 1
    plan: ForgetPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""


_HEAD = ("KEYS", "BYTES", "OLDEST", "YOUNGEST", "EXPIRES", "FILE")


@verb()
def state(
    call: Call,
    *,
    export: Annotated[
        str | None,
        typer.Option(
            "--export", metavar="FILE", help="Write the hashes and times of one sink's keys to a new Parquet file."
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Forget all keys of one sink, so that it may go on with others. Prints a plan."),
    ] = False,
    apply: Apply = False,
    plan: PlanDigest = None,
    fence: Fence = False,
    idle_for: IdleFor = IDLE_FOR,
) -> int:
    """Show the keys of each sink that deduplicates: how many, their bytes and ages, and when each run expires.

    By the newest checkpoint. Reads each run, and ends with 1 if one is damaged. Safe while the sink runs. With --forget
    it prints a plan, and --apply does it: the sink is taken over without its keys, and nothing is published. Rows that
    it has written before are then written again.
    """
    given = confirmation.confirmation(apply, plan, fence, idle_for)
    if forget and export is not None:
        raise ConfigError("--forget and --export do not go together", hint="Export the keys first, with --export FILE.")
    if given.is_applied and not forget:
        raise ConfigError("--apply has no effect without --forget", hint="Leave it out, or add --forget.")
    return _forget(call, given) if forget else _look(call, export)


def _look(call: Call, export: str | None) -> int:
    store = call.place.open_checkpoints()
    if store is None:
        raise no_sink_at(call.place)
    with store:
        jobs = sinks_in(store, call.place, call.uid)
        job = None if export is None else _only(jobs_with_keys(store, jobs), call)
        with call.out.progress("checking runs") as step:
            reports = tuple(keys_reports(store, call.place, jobs, step))
        exported = None if job is None or export is None else export_keys(store, call.place, job, export)
    report = StateReport(
        checkpoints_at=call.place.checkpoint_url,
        sinks=reports,
        exported=None if exported is None else exported.written,
        left_out=None if exported is None else exported.left_out,
    )
    if call.out.as_json:
        call.out.report(report)
    else:
        _show(report, export, call)
    return FINDINGS if report.damaged else DONE


def _forget(call: Call, given: Confirmation) -> int:
    with open_stores(call.place) as stores:
        jobs = sinks_in(stores.checkpoints, call.place, call.uid)
        job = _only(jobs_with_keys(stores.checkpoints, jobs), call)
        planned = plan_forgetting(stores.checkpoints, job)
        if not call.out.as_json:
            call.out.line(f"forget {planned.keys} keys of {list(planned.columns)} of sink {planned.job}", "bold")
            call.out.line("  rows with these keys are written again if they come again")
            confirmation.show_end_of_plan(given, planned, stores.checkpoints, [job], call)
        if given.is_applied:
            now_ms = confirmation.now_of(given, stores.checkpoints, [job], call.now_ms)
            confirmation.check(given, planned, stores, [job], now_ms)
            forget_keys(planned, call.place, job, call.now_ms, open_store)
            call.tell(f"sink {planned.job} knows no keys any more")
    if call.out.as_json:
        call.out.report(ForgetReport(plan=planned, digest=planned.digest, is_applied=given.is_applied))
    return DONE if given.is_applied else FINDINGS


def _only(jobs: Sequence[Job], call: Call) -> Job:
    """The one of the jobs that have keys; of a sink with several writers the one that is called exactly so.

    Raises:
        NotFound: There is none.
        ConfigError: There are several.
    """
    if not jobs:
        raise NotFound(
            "no sink that is meant deduplicates, so there are no keys",
            hint=call.out.in_words("Leave out --forget and --export. See which sinks there are: partfile status PATH"),
        )
    found = [job for job in jobs if job.name == call.uid] or jobs
    if len(found) != 1:
        listed = ", ".join(job.name for job in found)
        raise ConfigError(
            f"the keys of one sink are meant, and those that deduplicate are: {listed}",
            hint="Name one with --uid NAME; its writer N is --uid NAME~N.",
        )
    return found[0]


def _show(report: StateReport, export: str | None, call: Call) -> None:
    for damaged in report.damaged:
        call.out.line(f"DAMAGED  {call.out.in_words(damaged.problem)}", "bold red")
        call.out.line(f"  {call.out.in_words(damaged.hint)}")
    for one in report.sinks:
        name = one.uid if one.writer == 0 else f"{one.uid}~{one.writer}"
        ttl = "for ever" if one.ttl_ms is None else shown_seconds(one.ttl_ms / 1000)
        columns = ", ".join(f"{column} ({kind})" for column, kind in zip(one.columns, one.kinds, strict=True))
        call.out.line(f"sink {name}", "bold")
        call.out.line(f"  key: {columns}; remembered {ttl}")
        call.out.line(f"  {one.keys} keys, {shown_bytes(one.bytes)} in {counted(len(one.runs), 'run')}")
        rows = [
            (
                str(run.keys),
                shown_bytes(run.bytes),
                _time(run.first_ms),
                _time(run.last_ms),
                "never" if run.expires_ms is None else _time(run.expires_ms),
                f"{run.path or 'in the checkpoint'}{'  DAMAGED' if run.problem else ''}",
            )
            for run in one.runs
        ]
        call.out.table(_HEAD, rows, indent=2)
    if not report.sinks:
        call.out.line("no sink here deduplicates")
    if export is not None:
        call.out.line(f"{report.exported} keys written to {export}")
        if report.left_out:
            call.out.line(f"{report.left_out} keys left out: all of them are forgotten, and their files are damaged")


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
