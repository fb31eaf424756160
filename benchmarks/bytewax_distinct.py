"""Distinct rows of Bytewax into a file, run by an interpreter that has it; prints CPU seconds of a batch.

Rows come as pairs of key and finished line, so that it neither parses nor encodes, and it keeps no recovery store: both
are in its favour. State of a key is one flag.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found,unused-ignore]
from bytewax.connectors.files import FileSink  # type: ignore[import-not-found,unused-ignore]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found,unused-ignore]
from bytewax.inputs import (  # type: ignore[import-not-found,unused-ignore]
    FixedPartitionedSource,
    StatefulSourcePartition,
)
from bytewax.testing import run_main  # type: ignore[import-not-found,unused-ignore]

LINE = '{"id":"%s","payload":"' + "x" * 100 + '"}'
ROWS_AT_ONCE = 1000
"""As many rows as its own file source hands over at once."""


class _Batches(StatefulSourcePartition):  # type: ignore[misc,unused-ignore]
    def __init__(self, rows: int, batches: int, first: int, cpu_s: list[float]) -> None:
        self._random = random.Random(1)
        self._rows, self._batches, self._first, self._cpu_s = rows, batches, first, cpu_s
        self._number = 0
        self._left: list[tuple[str, str]] = []
        self._making_s = 0.0

    def next_batch(self) -> list[tuple[str, str]]:
        """Some rows of the next batch, half of which came before; the time of making them does not count."""
        if not self._left:
            began = time.process_time()
            if self._number in {self._first, self._batches}:
                self._cpu_s.append(began - self._making_s)
            if self._number == self._batches:
                raise StopIteration
            self._left = self._made()
            self._number += 1
            self._making_s += time.process_time() - began
        found, self._left = self._left[:ROWS_AT_ONCE], self._left[ROWS_AT_ONCE:]
        return found

    def snapshot(self) -> None:
        """There is nothing to recover."""

    def _made(self) -> list[tuple[str, str]]:
        half = self._rows // 2
        known = max(1, self._number) * half
        new = range(self._number * half, (self._number + 1) * half)
        ids = [*new, *(self._random.randrange(known) for _ in range(half))]
        self._random.shuffle(ids)
        keys = [f"event-{one:024d}" for one in ids]
        return [(key, LINE % key) for key in keys]


class _Source(FixedPartitionedSource):  # type: ignore[misc,unused-ignore]
    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def list_parts(self) -> list[str]:
        """One partition."""
        return ["rows"]

    def build_part(self, _step: str, _partition: str, _state: None) -> _Batches:
        """Its rows."""
        return _Batches(*self._arguments)


def _first_alone(seen: bool | None, line: str) -> tuple[bool, list[str]]:
    return True, [] if seen else [line]


def main(path: str, rows: int, batches: int, first: int) -> None:
    """Runs the flow, and measures the batches from one on."""
    cpu_s: list[float] = []
    flow = Dataflow("distinct")
    lines = op.input("rows", flow, _Source(rows, batches, first, cpu_s))
    distinct = op.stateful_flat_map("distinct", lines, _first_alone)
    op.output("file", distinct, FileSink(path))
    run_main(flow)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - no Path is needed here alone.
        written = sum(1 for _ in file)
    print(json.dumps({"batch_s": (cpu_s[1] - cpu_s[0]) / (batches - first), "written": written}))


main(sys.argv[1], *map(int, sys.argv[2:]))
