"""The verb ``checkpoints``: the checkpoints of each sink, and which are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli.command import Call, verb
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.cli.output import shown_bytes, shown_seconds
from partfile.cli.savepoint import show_entries
from partfile.recovery.inspect.checkpoints import (
    CheckpointReport,
    CheckpointsReport,
    LogReport,
    log_report,
    read_checkpoint_log,
)
from partfile.recovery.inspect.places import no_sink_at, sinks_in
from partfile.recovery.inspect.savepoints import SavepointEntry, savepoints_at

if TYPE_CHECKING:
    from partfile.cli.output import Output


_PARTS = ("OPEN", "PENDING", "CLOSED", "ENCODED")
_HEAD = ("", "ID", "KIND", "EPOCH", "AGE", *_PARTS, "PUBLICATION", "BATCH", "STATE", "NOTE")


@verb()
def checkpoints(
    call: Call,
    *,
    savepoint_dir: Annotated[
        str | None,
        typer.Option("--savepoint-dir", metavar="D", help="Show the savepoints in this directory as well."),
    ] = None,
) -> int:
    """List the retained checkpoints of each sink: checkpoints, takeovers, tombstones, published or not, and damage.

    Safe while the sink runs.
    """
    store = call.place.open_checkpoints()
    if store is None:
        raise no_sink_at(call.place)
    with store:
        jobs = sinks_in(store, call.place, call.uid)
        logs = tuple(log_report(read_checkpoint_log(store, job), call.now_ms) for job in jobs)
    saved: tuple[SavepointEntry, ...] = ()
    if savepoint_dir is not None:
        saved = tuple(savepoints_at(savepoint_dir, call.place.options_beside(savepoint_dir), call.uid))
    report = CheckpointsReport(checkpoints_at=call.place.checkpoint_url, logs=logs, savepoints=saved)
    if call.out.as_json:
        call.out.report(report)
    else:
        _show(report, call)
    damaged = any(log.problem or any(checkpoint.problem for checkpoint in log.checkpoints) for log in logs)
    return FINDINGS if damaged or any(one.problem for one in saved) else DONE


def _show(report: CheckpointsReport, call: Call) -> None:
    for log in report.logs:
        _show_log(log, call.out)
    if report.savepoints:
        show_entries(report.savepoints, call)


def _show_log(log: LogReport, out: Output) -> None:
    out.line(f"sink {log.job}", "bold")
    if log.problem:
        out.line(f"  DAMAGED: {log.problem}", "bold red")
        out.line(f"  {out.in_words(log.hint)}")
    out.table(_HEAD, [_row(checkpoint) for checkpoint in log.checkpoints], indent=2)
    out.line()


def _row(checkpoint: CheckpointReport) -> tuple[str, ...]:
    notes = [checkpoint.problem] if checkpoint.problem else []
    notes += ["stray: it never counted"] if checkpoint.is_stray else []
    return (
        "*" if checkpoint.is_in_force else "",
        str(checkpoint.checkpoint_id),
        checkpoint.kind,
        _known(checkpoint.epoch),
        shown_seconds(checkpoint.age_s),
        _known(checkpoint.open_parts),
        _known(checkpoint.pending_parts),
        _known(checkpoint.closed_staging_files),
        _known(checkpoint.encoded_staging_files),
        checkpoint.publication,
        _known(checkpoint.batch_id),
        shown_bytes(checkpoint.state_bytes),
        "; ".join(notes),
    )


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
