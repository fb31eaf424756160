"""The verb ``cat``: the rows of one part, as far as they count."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partfile.cli.command import Call, verb
from partfile.cli.completion import complete_part
from partfile.cli.exit_codes import DONE
from partfile.errors import PartfileError
from partfile.recovery.inspect.files import read_base

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.output import Output


_CHUNK_BYTES = 1 << 20


@verb()
def cat(
    call: Call,
    part: Annotated[
        str,
        typer.Argument(
            metavar="PART",
            help="The part: any of its names, relative to PATH or to the working directory, or in full.",
            autocompletion=complete_part,
        ),
    ],
    *,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="The bytes as stored: not decompressed, Parquet and staging files as they are."),
    ] = False,
) -> int:
    """Print what counts of a part: the rows up to its valid length, finished or not.

    Compressed text is decompressed; Parquet, ORC, Avro (where fastavro is installed) and staging files are printed as
    JSON lines, each row of a staging file that buckets share with its bucket. Of an unfinished part or a staging file
    nothing is printed that no checkpoint vouches for; a finished file is printed as readers see it, whichever program
    made it.
    """
    # What reads formats loads half of pyarrow, and pandas with it: no other verb waits for that.
    from partfile.readers.streams import decompressed  # noqa: PLC0415
    from partfile.recovery.inspect.content import (  # noqa: PLC0415
        open_valid,
        path_below,
        rows_of,
    )

    checkpoints = call.place.open_checkpoints()
    try:
        seen = read_base(call.place, checkpoints, call.uid)
    finally:
        if checkpoints is not None:
            checkpoints.close()
    with open_valid(call.place, seen, path_below(call.place, seen, part)) as valid:
        if raw:
            _copy(valid.file, call.out)
        else:
            with _damage_told(valid.path):
                rows = rows_of(valid)
                if rows is None:
                    _copy(decompressed(valid.file, valid.path), call.out)
                else:
                    for lines in rows:
                        call.out.raw(lines)
    return DONE


@contextmanager
def _damage_told(path: str) -> Iterator[None]:
    """Raise what a decoder says of bytes it cannot take as a finding; raises PartfileError."""
    try:
        yield
    except (OSError, ValueError, EOFError) as error:
        # What the file system says has an errno, or is an error of ours.
        if isinstance(error, PartfileError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise PartfileError(
            f"{path!r} cannot be decoded: {error}",
            hint="What was printed before is what it holds up to there. --raw prints its bytes; partfile list says "
            "whose file it is.",
            path=path,
        ) from error


def _copy(file: Any, out: Output) -> None:
    while data := file.read(_CHUNK_BYTES):
        out.raw(data)
