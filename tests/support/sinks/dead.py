"""Sinks that died at one place of their life, with row parts and with staged columnar parts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from partfile.stores.base import PartHandle
from support.sinks.life_cycle import batch, in_child, make_sink
from support.sinks.staged_streams import StagingFiles, staged_sink

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from partfile.sink.states import PendingPart


# Sinks that died at one place of their life, for those who look at what they left; see also ``life_cycle``.

_TOKEN = "0123456789abcdef" * 2


class Dying:
    """In place of what publishes."""

    def prepare(self, parts: Sequence[PendingPart]) -> Sequence[PendingPart]:
        """Prepare nothing: parts on local disks are as they have to be."""
        return parts

    def publish(self, *_: object, **__: object) -> None:
        """The process ends here, without a word."""
        os._exit(0)


def orphan_of(chain: str, number: int) -> PartHandle:
    """A part of this checkpoint log that no checkpoint has heard of."""
    name = f"part-{chain}-0-{number}.txt"
    return PartHandle(
        bucket="bucket=b0",
        name=name,
        in_progress=f"_{name}.{_TOKEN}.in-progress",
        pending=f"_{name}.{_TOKEN}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=0,
    )


def crash_when_promised(base: Path, **options: Any) -> None:
    """A checkpoint is complete, and its process is killed before it publishes."""

    def begin() -> None:
        with make_sink(base, **options).local() as out:
            out._runtime.coordinator._publisher = Dying()  # type: ignore[assignment]
            out.write(batch(0, 8), position=8)
            out.checkpoint()

    assert in_child(begin) == 0


# Sinks with staged columnar parts that died at one place of their life; see also ``dead_sinks``.


def die_with_open_staging_files(base: Path, **options: Any) -> None:
    """Two staging files of two rows each that a checkpoint vouches for, with messages beyond their valid lengths."""

    def begin() -> None:
        out = staged_sink(base, **options).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        write_tail(out)
        os._exit(0)

    assert in_child(begin) == 0


def write_tail(out: Any) -> None:
    """Rows that no checkpoint vouches for, in the staging files all the same."""
    out.write(batch(4, 3), position=7)
    for part in out._operator._active.values():
        part.flush()


def die_with_closed_staging_files(base: Path, **options: Any) -> None:
    """The same staging files, which a start has taken over and could not encode."""
    die_with_open_staging_files(base, **options)

    def begin() -> None:
        staging_files = StagingFiles()
        staging_files.are_readable = False
        staged_sink(base, open_store=staging_files.open_store, **options).local().open()
        os._exit(0)

    assert in_child(begin) == 0


def die_with_an_unnamed_encode(base: Path, **options: Any) -> None:
    """The same staging files, encoded by a start that died before a checkpoint named the files."""
    die_with_open_staging_files(base, **options)

    def begin() -> None:
        out = staged_sink(base, **options).local()
        coordinator: Any = out._runtime.coordinator
        coordinator._checkpoint_of_its_own = lambda *_: os._exit(0)
        out.open()

    assert in_child(begin) == 0
