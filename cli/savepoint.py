"""The verb ``savepoint``: what savepoints there are, and what one holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from partfile.cli.inspection.exit_codes import DONE, FINDINGS
from partfile.cli.inspection.savepoints import SavepointEntry, SavepointList, savepoint_report, savepoints_at
from partfile.cli.quantities import shown_seconds
from partfile.cli.verb import Call, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(help="Savepoints: snapshots that belong to you, which nothing deletes unasked.", no_args_is_help=True)


@app.command("list", epilog="Example: partfile savepoint list /data/savepoints")
@verb(path="Directory in which savepoints are made.")
def list_(call: Call) -> int:
    """List the savepoints in a directory, those that were never finished or are damaged included."""
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
    """Show what a savepoint holds."""
    location = call.place.base
    report = savepoint_report(location, call.place.storage_options)
    if call.out.as_json:
        call.out.report(report)
        return DONE
    call.out.table(
        ("SAVEPOINT", location),
        [
            ("sink", report.job),
            ("taken by checkpoint", str(report.checkpoint_id)),
            ("age", shown_seconds((call.now_ms - report.time_ms) / 1000)),
            ("stopped the sink", "yes" if report.ends_the_job else "no"),
            ("operators", ", ".join(report.operators)),
            ("bytes of state", str(report.state_bytes)),
            ("written by partfile", report.writer),
        ],
    )
    return DONE


def show_entries(entries: Sequence[SavepointEntry], call: Call) -> None:
    """Print savepoints as a table."""
    head = ("SAVEPOINT", "SINK", "CHECKPOINT", "AGE", "STOPPED", "PROBLEM")
    call.out.table(head, [_row(one, call.now_ms) for one in entries])


def _row(entry: SavepointEntry, now_ms: int) -> tuple[str, ...]:
    age_s = None if entry.time_ms is None else (now_ms - entry.time_ms) / 1000
    stopped = {True: "yes", False: "no", None: "?"}[entry.ends_the_job]
    checkpoint = str(entry.checkpoint_id or "?")
    return entry.directory, entry.job or "?", checkpoint, shown_seconds(age_s), stopped, entry.problem
