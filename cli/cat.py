"""The verb ``cat``: the rows of one part, as far as they count."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partfile.cli.failures import hinting
from partfile.cli.inspection.bases import read_base
from partfile.cli.inspection.exit_codes import DONE
from partfile.cli.verb import Call, verb
from partfile.filesystems.errors import PartfileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.output import Output

_CHUNK_BYTES = 1 << 20


@verb()
def cat(
    call: Call,
    part: Annotated[
        str, typer.Argument(metavar="PART", help="The part: any of its names, relative to PATH or in full.")
    ],
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="The bytes as stored: not decompressed, Parquet as it is.")
    ] = False,
) -> int:
    """Print what counts of a part: the rows up to its valid length, finished or not.

    Compressed text is decompressed, and Parquet printed as JSON lines. Of an unfinished part nothing is printed that no
    checkpoint vouches for; a finished file is printed as readers see it, whoever made it.
    """
    # What reads formats loads half of pyarrow, and pandas with it: no other verb waits for that.
    from partfile.cli.inspection.content import open_valid, path_below  # noqa: PLC0415
    from partfile.recovery.file_formats import format_of  # noqa: PLC0415
    from partfile.recovery.readable_files import decompressed  # noqa: PLC0415

    checkpoints = call.place.open_checkpoints()
    try:
        seen = read_base(call.place, checkpoints, call.uid)
    finally:
        if checkpoints is not None:
            checkpoints.close()
    with hinting("PART is a path relative to PATH, as partfile list prints them, or one that begins with PATH."):
        below = path_below(call.place, part)
    file, path = open_valid(call.place, seen, below)
    with file:
        if raw:
            _copy(file, call.out)
        else:
            with _damage_told(path):
                if format_of(path) == "parquet":
                    _print_rows(file, call.out)
                else:
                    _copy(decompressed(file, path), call.out)
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


def _print_rows(file: Any, out: Output) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who prints Parquet waits for it.

    for batch in pq.ParquetFile(file).iter_batches():
        for row in batch.to_pylist():
            out.raw(f"{json.dumps(row, default=str, ensure_ascii=False)}\n".encode())
