"""A tree that a sink is writing, for readers that know nothing of partfile."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

import partfile as pf
from support.sinks.life_cycle import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FINISHED = list(range(20))
"""The ids of the rows that readers see."""


@contextmanager
def live_tree(base: Path, format: str) -> Iterator[None]:
    """Finished files, open parts with rows that count, rows that count not yet, and checkpoints.

    Args:
        base: Where to write it.
        format: Of the files. Text has the ids alone, as lines.
    """
    sink = pf.FileSink(base, uid="live", format=format, bucketer=pf.HiveBucketer("key"), rolling=LONG)
    with sink.local() as out:
        out.write(_rows(0, format))
        out.savepoint(base.with_name("savepoints"))  # publishes every open part, and the sink goes on
        out.write(_rows(20, format))
        out.checkpoint()
        out.write(_rows(40, format))
        assert list(base.rglob("_part-*"))
        yield


def _rows(first: int, format: str) -> pa.Table:
    ids = pa.array(range(first, first + 20))
    return pa.table({"id": ids.cast("string") if format == "text" else ids, "key": [f"k{n % 3}" for n in range(20)]})
