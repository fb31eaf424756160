"""The verb ``clean``: remove what no retained checkpoint names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import Field

from partfile.cli import confirmation
from partfile.cli.command import Call, verb
from partfile.cli.confirmation import IDLE_FOR, Apply, Fence, IdleFor, PlanDigest, shown_age
from partfile.cli.exit_codes import DONE, FINDINGS, code_of_problem
from partfile.cli.output import seconds_of, shown_bytes, shown_seconds, tell_failed, tell_unread
from partfile.errors import ConfigError
from partfile.recovery.clean import CleanedReport, Cleaning, CleaningRecord, clean, plan_now
from partfile.recovery.clean_plan import MEANING, CleaningOptions, CleaningPlan
from partfile.recovery.documents import Json
from partfile.recovery.inspect.places import sinks_in
from partfile.recovery.ownership import Stores, open_stores
from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from partfile.cli.output import Output
    from partfile.recovery.clean_plan import CleaningItem


_SHOWN = 20


class CleanReport(Json):
    """The output of ``clean --json``."""

    schema_name: Literal["partfile.clean"] = Field("partfile.clean", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: CleaningPlan
    """The plan, done if ``--apply`` was given."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    cleaned: CleanedReport | None
    """The result; null without ``--apply``, or if there was nothing to do."""
    is_unfinished: bool = False
    """Whether an interruption or an error has ended it before all of the plan was tried; run it again."""


@verb()
def clean_(
    call: Call,
    *,
    apply: Apply = False,
    plan: PlanDigest = None,
    fence: Fence = False,
    idle_for: IdleFor = IDLE_FOR,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="T", help="Touch nothing younger, by the store's clock.")
    ] = "24h",
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete for good, instead of moving to the quarantine.")
    ] = False,
    retain: Annotated[
        int | None,
        typer.Option(
            "--retain",
            metavar="N",
            help="Also remove checkpoints beyond the newest N with state; else all that count are kept. "
            "Takeovers that "
            "repeat a checkpoint go with it.",
        ),
    ] = None,
) -> int:
    """Remove what crashes have left and no retained checkpoint names: staged files, uploads, state files.

    Files go to _quarantine in the directory of checkpoints, or in _partfile below the base, where the store can rename;
    else --delete is needed. A sink is taken over while its files are cleaned, and nothing of it is published; a sink
    that has nothing to clean is not touched. Prints a plan; --apply does it.
    """
    given = confirmation.confirmation(apply, plan, fence, idle_for)
    if retain is not None and retain < 1:
        raise ConfigError(
            f"--retain {retain} would delete what the sink restores from", hint="Pass --retain 1, or more."
        )
    options = CleaningOptions(older_than_s=seconds_of(older_than, "--older-than"), delete=delete, retain=retain)
    with open_stores(call.place) as stores:
        jobs = sinks_in(stores.checkpoints, call.place, call.uid)
        now_ms = confirmation.now_of(given, stores.checkpoints, jobs, call.now_ms)
        planned, cleaning = _planned(call, stores, options, now_ms)
        touched = [job for job in jobs if job.name in {log.job for log in planned.logs}]
        if not call.out.as_json:
            _show(planned, now_ms, call.out)
        if planned.items and not call.out.as_json:
            confirmation.show_end_of_plan(given, planned, stores.checkpoints, touched, call)
        if not planned.to_do:
            confirmation.check_nothing_meant(given, planned)
        if not given.is_applied or not planned.to_do:
            return _report(call, planned, None, is_applied=apply)
        confirmation.check(given, planned, stores, touched, now_ms)
    return _clean(planned, cleaning, call)


def _clean(planned: CleaningPlan, cleaning: Cleaning, call: Call) -> int:
    """Do the plan, and report what was done however that ends."""
    record = CleaningRecord(cleaning.place)
    try:
        with call.out.progress("taking files away", len(planned.to_do)) as record.step:
            clean(planned, cleaning, open_store, record)
    except BaseException:
        if record.taken_over:
            _report_done(call, planned, record.report(), is_unfinished=True)
        raise
    return _report_done(call, planned, record.report(), is_unfinished=False)


def _report_done(call: Call, planned: CleaningPlan, done: CleanedReport, *, is_unfinished: bool) -> int:
    if not call.out.as_json:
        _show_done(done, call.out)
        if is_unfinished:
            names = ", ".join(done.taken_over)
            call.out.note(f"partfile: it ended before all was tried. Sinks taken over: {names}. Run it again.", "red")
    return _report(call, planned, done, is_applied=True, is_unfinished=is_unfinished)


def _planned(call: Call, stores: Stores, options: CleaningOptions, now_ms: int) -> tuple[CleaningPlan, Cleaning]:
    with call.out.progress("listing files") as step:
        planned = plan_now(Cleaning(call.place, call.uid, options, now_ms, step), stores)
    return planned, Cleaning(call.place, call.uid, options, now_ms, lambda _files: None)


def _show(planned: CleaningPlan, now_ms: int, out: Output) -> None:
    tell_failed(planned.failed, out)
    tell_unread(planned.unreadable, out)
    for one in planned.doubtful:
        out.line(
            f"left: checkpoint {one.checkpoint_id} of sink {one.job}. One after it is missing, so it is unknown "
            "whether it counted; partfile verify says more, and the sink deletes it with retention",
            "yellow",
        )
    if planned.young:
        age = shown_seconds(planned.options.older_than_s)
        out.line(f"left: {planned.young} that no checkpoint names, younger than --older-than {age}", "dim")
        out.line("  to see them:  the same command with --older-than 0s, without --apply", "dim")
    if not planned.items:
        out.line("nothing to clean: every file that is old enough is needed, or is none of ours")
        return
    kinds = dict.fromkeys(item.kind for item in planned.items)
    for kind in kinds:
        items = [item for item in planned.items if item.kind == kind]
        size = sum(item.size or 0 for item in items)
        out.line(f"{kind}: {len(items)}, {shown_bytes(size)}. {MEANING[kind]}", "bold")
        for item in items[:_SHOWN]:
            _show_item(item, now_ms, out)
        if len(items) > _SHOWN:
            out.line(f"  and {len(items) - _SHOWN} more; --json shows all")
    if len(planned.to_do) < len(planned.items):
        left = len(planned.items) - len(planned.to_do)
        out.line(f"{left} of them cannot be moved on this store, so they are left unless --delete is given", "yellow")
    if planned.logs:
        out.line(f"takes over: {', '.join(log.job for log in planned.logs)}", "bold")


def _show_item(item: CleaningItem, now_ms: int, out: Output) -> None:
    side = "" if item.side == "base" else " (among the checkpoints)"
    upload = f" upload {item.upload}" if item.upload else ""
    age = shown_age(now_ms, item.modified_at_ms)
    out.line(f"  {item.action}: {item.path}{upload}{side}, {shown_bytes(item.size)}, {age} old")


def _show_done(done: CleanedReport, out: Output) -> None:
    out.line(f"{done.done} taken away, {done.gone} were gone already", "green")
    for place in done.quarantines:
        out.line(f"they are in {place}; delete that directory when they are not missed")
    for path in done.busy:
        out.line(f"left, a task is writing it: {path}", "yellow")
    for one in done.failed:
        out.line(f"failed: {one.path}: {one.problem}{f'. {one.hint}' if one.hint else ''}", "red")
    if done.failed:
        out.line("What cannot be moved can be deleted where it is, with --delete.", "dim")


def _report(
    call: Call, planned: CleaningPlan, done: CleanedReport | None, *, is_applied: bool, is_unfinished: bool = False
) -> int:
    if call.out.as_json:
        call.out.report(
            CleanReport(
                base=call.place.base,
                plan=planned,
                digest=planned.digest,
                is_applied=is_applied,
                cleaned=done,
                is_unfinished=is_unfinished,
            )
        )
    is_left = bool(planned.doubtful) or len(planned.to_do) < len(planned.items)
    if done is None:
        is_left = bool(planned.items or planned.doubtful)
    elif done.busy or done.failed:
        is_left = True
    return max([FINDINGS if is_left else DONE, *(code_of_problem(one.problem) for one in planned.failed)])
