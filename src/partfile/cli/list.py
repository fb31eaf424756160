"""The verb ``list``: every part and every file, filtered, as a stream or in pages."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from partfile.cli.command import Call, verb
from partfile.cli.completion import complete_word
from partfile.cli.exit_codes import DONE
from partfile.cli.output import bytes_of, hinting, seconds_of, shown_seconds
from partfile.errors import ConfigError
from partfile.recovery.inspect.files import read_base
from partfile.recovery.inspect.places import no_sink_at
from partfile.recovery.inspect.tree import STATES, Filters, ListedPart, listed, page
from partfile.stores.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Iterator


logger = logging.getLogger("partfile")

_FORM = "{:<13} {:>14} {:>14} {:>12} {:>10} {:>7} {:>9}  {}"
_HEAD = ("STATE", "BYTES", "VALID", "ROWS", "CHECKPOINT", "SUBTASK", "AGE", "PATH")


@verb()
def list_parts(
    call: Call,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="S",
            help=f"Only these; may be repeated: {', '.join(STATES)}.",
            autocompletion=complete_word(STATES),
        ),
    ] = None,
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="B", help="Only this directory below PATH; nothing else is listed.")
    ] = "",
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="T", help="Only what was last changed so long ago.")
    ] = None,
    min_bytes: Annotated[str, typer.Option("--min-bytes", metavar="N", help="Only files of at least this size.")] = "0",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="So many at most, the first ones by path.")
    ] = None,
    after: Annotated[
        str, typer.Option("--after", metavar="P", help="Only paths after this one: the last of the page before.")
    ] = "",
) -> int:
    """List every part and file below PATH: state, size, valid length, rows, checkpoint, subtask, age and path.

    Without --limit and --after it prints as it lists, in no order, however many files there are. With --json each file
    is one line of JSON. Files are listed also where no sink is. Safe while the sink runs.
    """
    filters = _filters(call.uid, state or [], bucket, older_than, min_bytes)
    with ExitStack() as stack:
        checkpoints = call.place.open_checkpoints()
        if checkpoints is not None:
            stack.enter_context(checkpoints)
        seen = read_base(call.place, checkpoints, call.uid)
        base = stack.enter_context(call.place.open_base())
        step = stack.enter_context(call.out.progress("listing files"))
        unread: list[str] = []
        parts = listed(seen, base, checkpoints, filters, now_ms=call.now_ms, step=step, unread=unread)
        wanted = iter(page(parts, after, limit)) if limit is not None or after else parts
        first = next(wanted, None)
        if not seen.logs:
            missing = no_sink_at(call.place)
            if first is None:
                raise missing
            logger.warning("%s", missing)
        _print(first, wanted, filters.bucket, call)
    for directory in sorted(unread):
        logger.warning("not looked at, since this user may not read it: %s", directory)
    return DONE


def _filters(uid: str | None, states: list[str], bucket: str, older_than: str | None, min_bytes: str) -> Filters:
    unknown = sorted({*states} - {*STATES})
    if unknown:
        raise ConfigError(f"--state {unknown[0]!r} is not known", hint=f"There are {', '.join(STATES)}.")
    with hinting("--bucket is a directory below PATH, relative to it, as partfile list prints them."):
        below = check_relative_path(bucket.strip("/"))
    return Filters(
        uid=uid,
        states=frozenset(states),
        bucket=below,
        older_than_s=0.0 if older_than is None else seconds_of(older_than, "--older-than"),
        min_bytes=bytes_of(min_bytes, "--min-bytes"),
    )


def _print(first: ListedPart | None, others: Iterator[ListedPart], bucket: str, call: Call) -> None:
    parts = others if first is None else chain([first], others)
    if call.out.as_json:
        for part in parts:
            call.out.json_line(part)
        return
    if first is None:
        call.out.line(f"no file: none at {bucket!r} below PATH, or none that was asked for" if bucket else "no file")
        return
    call.out.line(_FORM.format(*_HEAD), "bold")
    for part in parts:
        call.out.line(_row(part))


def _row(part: ListedPart) -> str:
    return _FORM.format(
        part.state,
        _known(part.size_bytes),
        _known(part.valid_length),
        _known(part.rows),
        _known(part.checkpoint_id),
        _known(part.subtask),
        shown_seconds(part.age_s),
        part.path if part.buckets is None else f"{part.path}  shared by {part.buckets} buckets or more",
    )


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)
