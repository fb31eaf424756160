"""The verb ``verify``: every invariant of a base, checked."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli.command import Call, verb
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.recovery.inspect.verify import verify as verify_base

if TYPE_CHECKING:
    from partfile.cli.output import Output
    from partfile.recovery.inspect.verify import Finding, VerifyReport


@verb()
def verify(
    call: Call,
    *,
    checksums: Annotated[
        bool,
        typer.Option(
            "--checksums",
            help="Also read staging files, and files that they were encoded into, and compare their checksums.",
        ),
    ] = False,
) -> int:
    """Check every invariant of PATH, and say which finished files belong to which checkpoint.

    Lists the whole tree, and reads no part unless --checksums asks for it: then all bytes of those whose checksum a
    retained checkpoint has. Errors end with 1; notes are what crashes and people leave, and do no harm. Parts that only
    wait for the next start are no errors: see status. Safe while the sink runs.
    """
    with ExitStack() as stack:
        checkpoints = call.place.open_checkpoints()
        if checkpoints is not None:
            stack.enter_context(checkpoints)
        base = stack.enter_context(call.place.open_base())
        step = stack.enter_context(call.out.progress("checking files"))
        report = verify_base(call.place, base, checkpoints, call.uid, step, checksums=checksums)
    if call.out.as_json:
        call.out.report(report)
    else:
        _show(report, call.out)
    return FINDINGS if report.errors else DONE


def _show(report: VerifyReport, out: Output) -> None:
    for finding in report.findings:
        _show_finding(finding, out)
    for one in report.checkpoints:
        out.line(f"checkpoint {one.checkpoint_id} of {one.job} finished", "bold")
        for path in one.files:
            out.line(f"  {path}")
    files = ", ".join(f"{count} {kind}" for kind, count in report.files.items()) or "none"
    out.line(f"sinks: {', '.join(report.jobs) or 'none'}; files: {files}")
    if report.checksums_compared is not None:
        out.line(f"checksums: compared={report.checksums_compared}")
    notes = len(report.findings) - len(report.errors)
    out.line(f"verify: errors={len(report.errors)} notes={notes}", "red" if report.errors else "green")


def _show_finding(finding: Finding, out: Output) -> None:
    where = [finding.path] if finding.path is not None else []
    where += [f"sink {finding.job}"] if finding.job is not None else []
    where += [f"checkpoint {finding.checkpoint_id}"] if finding.checkpoint_id is not None else []
    is_error = finding.severity == "error"
    out.line(f"{finding.severity}  {finding.code}  {', '.join(where)}", "red" if is_error else "yellow")
    out.line(f"  {out.in_words(finding.message)}")
    if finding.hint:
        out.line(f"  {out.in_words(finding.hint)}")
