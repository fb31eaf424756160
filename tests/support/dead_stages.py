"""Sinks with staged columnar parts that died at one place of their life; see also ``dead_sinks``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from life_cycle import batch, in_child
from staged_streams import Stages, staged_sink

if TYPE_CHECKING:
    from pathlib import Path


def die_with_open_stages(base: Path, **options: Any) -> None:
    """Two stages of two rows each that a checkpoint vouches for, with whole messages beyond their valid lengths."""

    def begin() -> None:
        out = staged_sink(base, **options).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        write_tail(out)
        os._exit(0)

    assert in_child(begin) == 0


def write_tail(out: Any) -> None:
    """Rows that no checkpoint vouches for, in the stages all the same."""
    out.write(batch(4, 3), position=7)
    for part in out._operator._active.values():
        part.flush()


def die_with_rolled_stages(base: Path, **options: Any) -> None:
    """The same stages, which a start has taken over and could not encode."""
    die_with_open_stages(base, **options)

    def begin() -> None:
        stages = Stages()
        stages.are_readable = False
        staged_sink(base, open_store=stages.open_store, **options).local().open()
        os._exit(0)

    assert in_child(begin) == 0


def die_with_an_unnamed_encode(base: Path, **options: Any) -> None:
    """The same stages, encoded by a start that died before a checkpoint named the files."""
    die_with_open_stages(base, **options)

    def begin() -> None:
        out = staged_sink(base, **options).local()
        coordinator: Any = out._runtime.coordinator
        coordinator._checkpoint_of_its_own = lambda *_: os._exit(0)
        out.open()

    assert in_child(begin) == 0
