"""The verb ``checkpoints``: the checkpoints of each sink, and which are damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli.command import Call, verb
from partfile.cli.output import shown_bytes, shown_seconds
from partfile.cli.savepoint import show_entries
from partfile.recovery.documents import DONE, FINDINGS
from partfile.recovery.inspect.checkpoints import ChainReport, CheckpointsReport, LinkReport, chain_report, read_chain
from partfile.recovery.inspect.places import jobs_in
from partfile.recovery.inspect.savepoints import SavepointEntry, savepoints_at

if TYPE_CHECKING:
    from partfile.cli.output import Output


_PARTS = ("OPEN", "PENDING", "ROLLED", "SPENT")
_HEAD = ("", "ID", "KIND", "GENERATION", "AGE", *_PARTS, "PUBLICATION", "BATCH", "STATE", "NOTE")


@verb()
def checkpoints(
    call: Call,
    *,
    savepoint_dir: Annotated[
        str | None,
        typer.Option("--savepoint-dir", metavar="D", help="Show the savepoints in this directory as well."),
    ] = None,
) -> int:
    """List the retained checkpoints of each sink: links, fences, tombstones, published or not, and damage.

    Safe while the sink runs.
    """
    store = call.place.open_checkpoints()
    chains: tuple[ChainReport, ...] = ()
    if store is not None:
        with store:
            chains = tuple(chain_report(read_chain(store, job), call.now_ms) for job in jobs_in(store, call.uid))
    saved: tuple[SavepointEntry, ...] = ()
    if savepoint_dir is not None:
        saved = tuple(savepoints_at(savepoint_dir, call.place.options_beside(savepoint_dir), call.uid))
    report = CheckpointsReport(checkpoints_at=call.place.checkpoint_url, chains=chains, savepoints=saved)
    if call.out.as_json:
        call.out.report(report)
    else:
        _show(report, call)
    damaged = any(chain.problem or any(link.problem for link in chain.links) for chain in chains)
    return FINDINGS if damaged or any(one.problem for one in saved) else DONE


def _show(report: CheckpointsReport, call: Call) -> None:
    if not report.chains:
        call.out.line(f"no sink has checkpoints at {report.checkpoints_at}")
    for chain in report.chains:
        _show_chain(chain, call.out)
    if report.savepoints:
        show_entries(report.savepoints, call)


def _show_chain(chain: ChainReport, out: Output) -> None:
    out.line(f"sink {chain.job}", "bold")
    if chain.problem:
        out.line(f"  DAMAGED: {chain.problem}", "bold red")
        out.line(f"  {chain.hint}")
    out.table(_HEAD, [_row(link) for link in chain.links], indent=2)
    out.line()


def _row(link: LinkReport) -> tuple[str, ...]:
    notes = [link.problem] if link.problem else []
    notes += ["stray: it never counted"] if link.is_stray else []
    return (
        "*" if link.is_in_force else "",
        str(link.checkpoint_id),
        link.kind,
        _known(link.generation),
        shown_seconds(link.age_s),
        _known(link.open_parts),
        _known(link.pending_parts),
        _known(link.rolled_stages),
        _known(link.spent_stages),
        link.publication,
        _known(link.batch_id),
        shown_bytes(link.state_bytes),
        "; ".join(notes),
    )


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
