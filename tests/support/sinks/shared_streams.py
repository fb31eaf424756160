"""Sinks whose buckets share a staging file, what they leave, and what the command line says of it."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

import partfile as pf
from partfile.sink import encode
from partfile.sink.coordinator import Runtime
from partfile.sink.plan import with_closed
from support.processes.command_line import told, told_json, told_lines
from support.sinks.life_cycle import LONG, make_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pytest

    from partfile.sink.file_sink import FileSink
    from partfile.sink.states import ClosedStagingFile


# Sinks whose buckets share a staging file, and what they leave, on a local disk or as files of anywhere else.

BUCKETS = 12


def sharing_sink(base: Path | str, **options: Any) -> FileSink:
    """A sink whose buckets share a staging file if there are more than three in a batch."""
    fixed: dict[str, Any] = {
        "format": "parquet",
        "columnar": "staged",
        "rolling": LONG,
        "bucketer": pf.HiveBucketer("k"),
        "buckets_per_staging_file": 3,
    }
    return make_sink(base, **(fixed | options))


def mark_some_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the files of odd buckets have names of their own, as if some file system took them for others."""
    monkeypatch.setattr(
        encode, "clashing", lambda buckets: {one for one in buckets if one[-1:].isdigit() and int(one[-1]) % 2}
    )


def many(first: int, count: int = BUCKETS, *, buckets: int = BUCKETS) -> pa.RecordBatch:
    """So many rows, dealt out over buckets in turn."""
    rows = range(first, first + count)
    return pa.RecordBatch.from_pydict({"k": [row % buckets for row in rows], "row": rows})


def many_lines(first: int) -> pa.RecordBatch:
    """A row a bucket, as text."""
    rows = many(first)
    return rows.set_column(1, "row", rows["row"].cast(pa.string()))


def counted(first: int, end: int, *, buckets: int = BUCKETS) -> Counter[tuple[str, int]]:
    """Each of these rows once, in its bucket."""
    return Counter((f"k={row % buckets}", row) for row in range(first, end))


def shared_in(base: Path) -> list[Path]:
    """The files of multi-bucket staging files, spent ones among them."""
    return sorted(base.glob("_part-*.in-progress"))


def rows_in(base: Path, format: str = "parquet") -> Counter[tuple[str, int]]:
    """How often each row is in a finished file of each bucket."""
    return rows_of_files(
        {f"{path.parent.name}/{path.name}": path.read_bytes() for path in base.glob("k=*/part-*")}, format
    )


def rows_of_files(files: Mapping[str, bytes], format: str = "parquet") -> Counter[tuple[str, int]]:
    """How often each row is in some files, with the bucket that each file is in."""
    found: Counter[tuple[str, int]] = Counter()
    for path, data in files.items():
        found.update((path.rpartition("/")[0], row) for row in _rows(data, format))
    return found


@dataclass
class Seen:
    """What a reader has seen of a stream by now, who may be a consumer: it takes each file when it looks."""

    look: Callable[[], Counter[tuple[str, int]]]
    """How often each row is in a visible file."""
    take: Callable[[], object] | None
    """Takes the visible files away; None for a reader."""
    _taken: Counter[tuple[str, int]] = field(default_factory=Counter)

    def __call__(self) -> Counter[tuple[str, int]]:
        """Look, and take; what was taken before counts as well."""
        found = self.look()
        if self.take is None:
            return found
        self.take()
        self._taken += found
        return self._taken


def continue_sharing(sink: FileSink, rows: int, notes: Path | None = None) -> int:
    """Write so many rows from the restored position on, a row a bucket and checkpoint, and end; returns the position.

    Args:
        sink: The sink.
        rows: A multiple of the number of buckets.
        notes: Holds how many rows a caller has been told are safe; what is restored must not be less.
    """
    with sink.local() as out:
        assert out.position is None or isinstance(out.position, int)
        begun = done = out.position or 0
        assert notes is None or not notes.exists() or done >= int(notes.read_text()), (
            "an acknowledged checkpoint is gone"
        )
        while done < rows:
            out.write(many(done), position=done + BUCKETS)
            out.checkpoint()
            done += BUCKETS
            if notes is not None:
                notes.write_text(str(done))
    return begun


def die_sharing(sink: FileSink) -> None:
    """A checkpoint that holds two rows a bucket in a multi-bucket staging file, then a tail, made durable.

    The process is gone.
    """
    out = sink.local().open()
    out.write(many(0, 2 * BUCKETS), position=2 * BUCKETS)
    out.checkpoint()
    out.write(many(2 * BUCKETS), position=3 * BUCKETS)
    out._operator.snapshot(99)
    out.close()


def _rows(data: bytes, format: str) -> list[int]:
    if format == "parquet":
        rows: list[int] = pq.read_table(pa.BufferReader(data))["row"].to_pylist()
        return rows
    if format == "avro":
        return [record["row"] for record in fastavro.reader(io.BytesIO(data))]  # type: ignore[index, call-overload, misc]
    lines = data.decode().splitlines()
    if format == "json":
        return [json.loads(line)["row"] for line in lines]
    return (
        [int(record["row"]) for record in csv.DictReader(lines)] if format == "csv" else [int(line) for line in lines]
    )


def closed(base: Path) -> ClosedStagingFile:
    """The staging file of a crashed sink, as its next start would roll it."""
    runtime = Runtime(sharing_sink(base).settings, "life")
    state = runtime.coordinator.look()
    runtime.close()
    assert state is not None
    (staging_file,) = with_closed(state, state.open[0], 9).closed
    return staging_file


# What the command line says of a dead sink whose buckets share a staging file, and what it does about it, on any store.

HELD = 2 * BUCKETS
"""Rows that the checkpoint of a dead sink vouches for."""


def check_commands(place: tuple[Any, ...], rows: Callable[[], Counter[tuple[str, int]]]) -> None:
    """Status, list, verify and cat before; recover; verify after.

    Args:
        place: The words that name the base of a sink that ``die_sharing`` has left, and open it.
        rows: How often each row is in a finished file of each bucket.
    """
    (sink,) = told_json("status", *place, "--quiet-after", "0s", code=1)["sinks"]
    assert (sink["parts"]["staging-file"]["shared"], sink["parts"]["staging-file"]["buckets"]) == (1, BUCKETS)
    (listed,) = told_lines("list", *place, "--state", "staging-file")
    assert (listed["buckets"], listed["rows"]) == (BUCKETS, HELD)
    assert told_json("verify", *place)["findings"] == []
    printed = [json.loads(line)["bucket"] for line in told("cat", place[0], listed["path"], *place[1:]).splitlines()]
    assert sorted(printed) == sorted(f"k={row % BUCKETS}" for row in range(HELD))
    assert f"{BUCKETS} buckets or more share" in told("recover", *place, code=1)
    assert f"{BUCKETS} parts published" in told("recover", *place, "--apply", "--fence")
    assert rows() == counted(0, HELD)
    assert told_json("verify", *place)["findings"] == []
