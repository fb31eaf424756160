"""The verb ``status``: what is stuck and why, then each sink."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli.command import Call, verb
from partfile.cli.confirmation import IDLE_FOR, silence_s
from partfile.cli.exit_codes import DONE, FINDINGS
from partfile.cli.output import (
    command_line,
    counted,
    seconds_of,
    shown_bytes,
    shown_seconds,
    tell_unread,
)
from partfile.recovery.inspect.files import MEANING, SeenBase, read_base
from partfile.recovery.inspect.keys import missing_keys
from partfile.recovery.inspect.places import no_sink_at
from partfile.recovery.inspect.status import SinkStatus, StatusReport, set_aside_in, status_of
from partfile.recovery.inspect.tree import ScanReport, scan
from partfile.recovery.ownership import liveness_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import JsonValue

    from partfile.cli.output import Output
    from partfile.recovery.inspect.checkpoints import SeenLog
    from partfile.recovery.inspect.places import Place
    from partfile.recovery.inspect.status import PartStatus
    from partfile.stores.base import Store


_SHOWN_CAUSES = 10
_SHOWN_PARTS = 3
_SHOWN_PATHS = 20
_SHOWN_PARTITIONS = 5
_SHOWN_POSITION = 200
_ATTENTION = ("orphan", "lone-sidecar", "temporary", "unknown-chain", "foreign")


@verb()
def status(
    call: Call,
    *,
    scan_tree: Annotated[
        bool, typer.Option("--scan", help="List the whole tree as well, and say what each file is.")
    ] = False,
    quiet_after: Annotated[
        str | None,
        typer.Option(
            "--quiet-after",
            metavar="T",
            help="Where no lock tells whether a sink runs, it counts as stopped after so long without a checkpoint; "
            "as recover's --idle-for has it, but from reading alone. 10m if left out; 1h where the store has no "
            "locks, as S3.",
        ),
    ] = IDLE_FOR,
) -> int:
    """Show what is stuck, why, and what mends it; then how each sink stands.

    Reads checkpoints alone, however large the tree is, unless --scan is given. Safe while the sink runs.
    """
    if quiet_after is not None:
        seconds_of(quiet_after, "--quiet-after")
    with ExitStack() as stack:
        checkpoints = call.place.open_checkpoints()
        quiet_after_s = silence_s(quiet_after, "--quiet-after", checkpoints)
        if checkpoints is not None:
            stack.enter_context(checkpoints)
        seen = read_base(call.place, checkpoints, call.uid)
        set_aside = () if checkpoints is None else set_aside_in(checkpoints)
        if not seen.logs and not set_aside:
            raise no_sink_at(call.place)
        report = StatusReport(
            base=call.place.base,
            checkpoints_at=call.place.checkpoint_url,
            checked_at_ms=call.now_ms,
            quiet_after_s=quiet_after_s,
            sinks=tuple(_status(call, seen, log, quiet_after_s, checkpoints) for log in seen.chosen(call.uid)),
            set_aside=set_aside,
            scan=_scan(call, seen, checkpoints) if scan_tree else None,
        )
    if call.out.as_json:
        call.out.report(report)
    else:
        _show(report, quiet_after, call.place, call.out)
    return FINDINGS if report.has_findings else DONE


def _status(call: Call, seen: SeenBase, log: SeenLog, quiet_after_s: float, checkpoints: Store | None) -> SinkStatus:
    damage = None if checkpoints is None else missing_keys(checkpoints, call.place, log.job, log.newest)
    moved_at_ms = _moved_at_ms(log, checkpoints)
    return status_of(seen, log, call.now_ms, quiet_after_s, moved_at_ms, damage=damage)


def _moved_at_ms(log: SeenLog, checkpoints: Store | None) -> int | None:
    """When a checkpoint log moved last, by the rule that ``recover`` goes by."""
    return None if checkpoints is None else liveness_of(checkpoints, log.job).moved_at_ms


def _scan(call: Call, seen: SeenBase, checkpoints: Store | None) -> ScanReport:
    with call.place.open_base() as base, call.out.progress("listing files") as step:
        return scan(seen, base, checkpoints, call.uid, step)


def _show(report: StatusReport, quiet_after: str | None, place: Place, out: Output) -> None:
    for sink in report.sinks:
        _show_stuck(sink, quiet_after, place, out)
    for sink in report.sinks:
        _show_sink(sink, out)
        if sink.may_be_stuck:
            _show_doubt(sink, report.quiet_after_s, place, out)
    if report.set_aside:
        _show_set_aside(report, out)
    if report.scan is not None:
        _show_scan(report.scan, place, out)


def _show_stuck(sink: SinkStatus, quiet_after: str | None, place: Place, out: Output) -> None:
    if sink.problem is not None:
        out.line(f"DAMAGED  {sink.job}: {out.in_words(sink.problem.message)}", "bold red")
        out.line(f"  {out.in_words(sink.problem.hint)}")
        out.line(f"  look:  {_command('checkpoints', place, sink.job)}")
    if not sink.stuck:
        return
    out.line(f"STUCK  {sink.job}: {counted(len(sink.stuck), 'part')}", "bold red")
    causes = _by_cause(sink.stuck)
    for parts in causes[:_SHOWN_CAUSES]:
        _show_cause(parts, sink, place, out)
    if len(causes) > _SHOWN_CAUSES:
        out.line(f"  and {counted(len(causes) - _SHOWN_CAUSES, 'cause')} more; --json shows all")
    if any(part.is_for_recover for part in sink.stuck):
        # Where no lock tells, recover has to be told as well after how long the sink counts as stopped.
        wait = () if quiet_after is None or sink.is_running is False else ("--idle-for", quiet_after)
        out.line(f"  mend:  {_command('recover', place, sink.job, *wait)}")
        out.line("         shows a plan, and what stands in its way; with --apply does it", "dim")
    out.line()


def _by_cause(parts: Iterable[PartStatus]) -> list[list[PartStatus]]:
    """Parts that are stuck for one reason and of which the same becomes, in the order of the first of each."""
    found: dict[tuple[object, ...], list[PartStatus]] = {}
    for part in parts:
        found.setdefault((part.state, part.why, part.outcome, part.buckets is None), []).append(part)
    return list(found.values())


def _show_cause(parts: Sequence[PartStatus], sink: SinkStatus, place: Place, out: Output) -> None:
    first = parts[0]
    buckets = len({part.bucket for part in parts})
    facts = [
        f"{counted(len(parts), 'part')} {first.state}",
        f"{shown_bytes(sum(part.valid_length for part in parts))} valid",
        f"{counted(sum(part.rows for part in parts), 'row')}{_shared(first.buckets)}",
        *([f"in {buckets} buckets"] if buckets > 1 else []),
        f"{'the oldest ' if len(parts) > 1 else ''}{_age(first.age_s)}",
    ]
    out.line(f"  {', '.join(facts)}")
    out.line(f"    why:  {first.why}")
    out.line(f"    then: {first.outcome}")
    for part in parts[:_SHOWN_PARTS]:
        out.line(f"    {part.path}", "yellow")
    if len(parts) > _SHOWN_PARTS:
        rest = _command("list", place, sink.job, "--state", first.state)
        out.line(f"    and {len(parts) - _SHOWN_PARTS} more: {rest}")


def _show_sink(sink: SinkStatus, out: Output) -> None:
    running = {True: "running", False: "stopped", None: "not known whether it runs"}[sink.is_running]
    out.line(f"sink {sink.job}: {running}", "bold")
    rows = [
        ("epoch", f"{_known(sink.epoch)}, last moved {_age(sink.quiet_s)}"),
        ("newest checkpoint", f"{_known(sink.newest_checkpoint_id)} ({_known(sink.newest_kind)})"),
        ("retained", ", ".join(map(str, sink.retained_checkpoint_ids)) or "none"),
    ]
    if sink.query_id is not None:
        rows.append(("query and batch", f"{sink.query_id}, batch {sink.batch_id}"))
    if sink.position is not None:
        rows.append(("position", _position_words(sink.position)))
    for state, total in sink.parts.items():
        if state == "encoded-staging-file" and total.count:
            rows.append(
                (
                    state,
                    f"{counted(total.count, 'staging file')}, {shown_bytes(total.bytes)} held for older checkpoints",
                )
            )
        elif total.count:
            shared = f", {total.shared} of them{_shared(total.buckets)}" if total.shared else ""
            oldest = f", the oldest {_age(total.oldest_age_s)}"
            rows.append((state, f"{counted(total.count, 'part')}, {shown_bytes(total.bytes)} valid{shared}{oldest}"))
    if sink.problem is None and not sink.is_unfinished:
        rows.append(("unfinished parts", "none"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        out.line(f"  {name.ljust(width)}  {text}")


def _position_words(position: JsonValue) -> str:
    """Where the input stands: of Kafka how many records wait, of files how many are read, else as it was passed."""
    if isinstance(position, dict) and isinstance(topic := position.get("topic"), str):
        offsets, ends = position.get("offsets"), position.get("ends")
        if isinstance(offsets, dict) and isinstance(ends, dict):
            lags = {
                number: max(0, end - at)
                for number, at in offsets.items()
                if isinstance(at, int) and isinstance(end := ends.get(number), int)
            }
            most = sorted(lags, key=lambda number: -lags[number])[:_SHOWN_PARTITIONS]
            by_partition = ", ".join(f"{number}: {lags[number]}" for number in most if lags[number])
            waiting = f"{counted(sum(lags.values()), 'record')} waiting"
            if len(lags) < len(offsets):
                waiting = f"at least {waiting}" if lags else "not known how many records wait"
            what = f"topic {topic}, {counted(len(offsets), 'partition')}, {waiting}"
            return what + (f" (by partition {by_partition})" if by_partition else "")
    if isinstance(position, dict) and isinstance(done := position.get("done"), dict) and "files" in position:
        file = position.get("file")
        within = "" if file is None else f", and {file} up to {position.get('at')}"
        return f"{position['files']}: {counted(len(done), 'file')} read{within}"
    text = json.dumps(position, ensure_ascii=False)
    return text if len(text) <= _SHOWN_POSITION else f"{text[:_SHOWN_POSITION]}... (--json shows all)"


def _show_doubt(sink: SinkStatus, quiet_after_s: float, place: Place, out: Output) -> None:
    """Say why nothing is called stuck although the sink may be dead, and what to type if it is."""
    out.line(
        "  Nothing of it is called stuck yet: no lock tells whether it runs, and it counts as stopped only "
        f"{shown_seconds(quiet_after_s)} after its newest checkpoint.",
        "yellow",
    )
    out.line(f"  If it has stopped:  {_command('status', place, sink.job, '--quiet-after', '0s')}")


def _show_set_aside(report: StatusReport, out: Output) -> None:
    out.line(
        f"SET ASIDE: {counted(len(report.set_aside), 'part')}, of which no reader of the base sees the rows", "yellow"
    )
    for path in report.set_aside[:_SHOWN_PATHS]:
        out.line(f"  {report.checkpoints_at}/{path}")
    if len(report.set_aside) > _SHOWN_PATHS:
        out.line(f"  and {len(report.set_aside) - _SHOWN_PATHS} more; --json shows all")
    out.line("  Their rows are Arrow files: write them again through a sink, then delete the directory.", "dim")


def _show_scan(found: ScanReport, place: Place, out: Output) -> None:
    out.line()
    out.line("files below the base", "bold")
    rows = [(kind, str(one.files), shown_bytes(one.bytes), MEANING[kind]) for kind, one in found.kinds.items()]
    out.table(("KIND", "FILES", "BYTES", "MEANING"), rows, indent=2)
    for kind, one in found.kinds.items():
        if kind in _ATTENTION:
            out.line(f"  {kind}:", "yellow")
            for path in one.examples[:_SHOWN_PATHS]:
                out.line(f"    {path}")
            if one.files > _SHOWN_PATHS:
                out.line(f"    and {one.files - _SHOWN_PATHS} more: {_command('list', place, None, '--state', kind)}")
    tell_unread(found.unreadable, out)
    if found.missing:
        out.line(f"  MISSING: {counted(len(found.missing), 'part')} that the newest checkpoint vouches for", "bold red")
        for path in found.missing[:_SHOWN_PATHS]:
            out.line(f"    {path}")
    if not found.is_complete:
        out.line(
            "  not every checkpoint could be read: what looks like an orphan may be a part that counts", "bold red"
        )
    elif {"orphan", "temporary"} & found.kinds.keys():
        out.line(f"  mend:  {_command('clean', place, None)}")


def _command(name: str, place: Place, job: str | None, *more: str) -> str:
    """A command about this place; options of the store are left out, for they may be secret."""
    words = ["partfile", name, place.base]
    words += ["--uid", job] if job is not None else []
    words += ["--checkpoint-dir", place.checkpoint_dir] if place.checkpoint_dir is not None else []
    return command_line([*words, *more])


def _shared(buckets: int | None) -> str:
    return "" if buckets is None else f" shared by {buckets} buckets or more"


def _age(seconds: float | None) -> str:
    return "age not known" if seconds is None else f"{shown_seconds(seconds)} ago"


def _known(value: object) -> str:
    return "?" if value is None else str(value)
