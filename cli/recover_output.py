"""What ``recover`` prints: its plan, what it did, and its document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.recovery_plan import RecoveredJob, RecoveryPlan
from partfile.cli.inspection.document import Json
from partfile.cli.inspection.exit_codes import DONE, FINDINGS
from partfile.cli.quantities import shown_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from partfile.cli.changing.recovery_plan import PlannedJob, PlannedPart, PlannedPosition, RecoveryOptions
    from partfile.cli.consent import Consent
    from partfile.cli.output import Output
    from partfile.cli.verb import Call

_SHOWN = 20
_FOUND = {
    "staged": "",
    "short": ", IS SHORTER THAN THAT",
    "finished": ", has its final name already",
    "missing": ", IS UNDER NONE OF ITS NAMES",
}


class RecoverReport(Json):
    """What ``recover --json`` prints."""

    schema_name: Literal["partfile.recover"] = Field("partfile.recover", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    plan: RecoveryPlan
    """What is to be done, or was done."""
    digest: str
    """Of the plan, for ``--plan``."""
    is_applied: bool
    """Whether ``--apply`` was given."""
    recovered: tuple[RecoveredJob, ...]
    """What was done; empty without ``--apply``."""
    failed: tuple[FailedJob, ...] = ()
    """What could not be done; the other jobs were recovered all the same. Those that were left out are in the plan."""
    unfinished: tuple[str, ...] = ()
    """The jobs at the first of which an interruption or another error ended it; run it again."""


def show_jobs(jobs: Sequence[PlannedJob], options: RecoveryOptions, out: Output) -> None:
    """Print what becomes of each job."""
    if not jobs:
        out.line("nothing to recover: no completed checkpoint that can be read waits for a part")
    for job in jobs:
        out.line(f"sink {job.job}, from checkpoint {job.checkpoint_id}", "bold")
        if job.moves_from is not None:
            out.line(f"  its base was {job.moves_from}, and is this one from then on", "yellow")
        if job.changes_state:
            _show_way_back(job, options, out)
        for part in job.parts[:_SHOWN]:
            _show_part(part, options, out)
        if len(job.parts) > _SHOWN:
            out.line(f"  and {len(job.parts) - _SHOWN} parts more; --json shows all")
        if job.lost and options.accept_missing:
            out.line(f"  {len(job.lost)} parts are given up, with their rows{_but_finished(job)}", "bold red")
        elif job.lost:
            out.line(f"  {len(job.lost)} parts are missing or too short: --apply is refused", "bold red")
            does = f"put them back; or --accept-missing gives them up, with their rows{_but_finished(job)}"
            out.line(f"  {does}", "bold red")


def show_recovered(planned: RecoveryPlan, done: RecoveredJob, out: Output) -> None:
    """Print what was done to a job."""
    if out.as_json:
        return
    owed = f", {done.owed} could not be published: run it again" if done.owed else ""
    owed += f", {done.rolled} could not be encoded: run it again" if done.rolled else ""
    lost = f", {done.given_up} GIVEN UP" if done.given_up else ""
    out.line(f"sink {done.job}: {done.published} parts published{lost}{owed}", "red" if lost or owed else "green")
    show_sidecars((job for job in planned.jobs if job.job == done.job), planned.options, out)


def show_sidecars(jobs: Iterable[PlannedJob], options: RecoveryOptions, out: Output) -> None:
    """Say of parts that were published with their tails who does not read those."""
    cut = [part for job in jobs for part in job.parts if part.was_open and not part.is_staged]
    noted = sum(part.found != "finished" for part in cut)
    if options.cut == "valid-length" and noted:
        text = f"  {noted} of them have sidecars, where they are longer: readers that know none read their tails"
        out.line(text, "yellow")


def report_recovery(
    call: Call,
    given: Consent,
    planned: RecoveryPlan,
    outcomes: Sequence[RecoveredJob | FailedJob] = (),
    unfinished: tuple[str, ...] = (),
) -> int:
    """Print the document, or who is left, and return the exit code."""
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
    is_left = any(one.owed or one.given_up or one.rolled for one in done) if given.is_applied else bool(planned.jobs)
    return max([FINDINGS if is_left else DONE, *(one.exit_code for one in (*planned.failed, *failed))])


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
    if part.buckets is not None:
        does = f"encode {end} of a stage that {part.buckets} buckets or more share ({part.rows} rows) and publish in "
        does += f"those without a file yet ({part.finished_buckets} have theirs)" if part.finished_buckets else "each"
    elif part.is_staged:
        does = f"encode {end} of a stage ({part.rows} rows) and publish"
    elif part.was_open and options.cut == "valid-length":
        does = f"publish, with a sidecar if longer than {end} ({part.rows} rows): only readers of sidecars stop there"
    elif part.was_open:
        does = f"cut to {end} ({part.rows} rows) and publish"
    else:
        does = f"publish {end} ({part.rows} rows)"
    found = f"{_FOUND[part.found]}, CANNOT BE ENCODED HERE: {part.problem}" if part.problem else _FOUND[part.found]
    is_wrong = part.found in {"short", "missing"} or bool(part.problem)
    out.line(f"  {does}: {part.path}{found}", "bold red" if is_wrong else None)


def _but_finished(job: PlannedJob) -> str:
    """What of the rows of lost stages is not lost."""
    return f"; but {job.finished_of_lost} buckets have theirs in files already" if job.finished_of_lost else ""


def _position(position: PlannedPosition) -> str:
    return "its own position" if position.query_id is None else f"query {position.query_id}, batch {position.batch_id}"
