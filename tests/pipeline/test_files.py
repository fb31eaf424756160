"""A directory that grows, read once: lines and Parquet, kills in the middle, files that change or go."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from textwrap import dedent
from threading import Timer
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError, RecordError
from support.processes.deadline import PATIENCE_S

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

SCHEMA = {"id": "int64"}


def lines(first: int, last: int) -> bytes:
    """Lines of JSON."""
    return b"".join(b'{"id": %d}\n' % number for number in range(first, last))


def put(path: Path, name: str, data: bytes) -> None:
    """A file that appears as a whole."""
    (path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
    hidden = path / "in" / ".being-written"
    hidden.write_bytes(data)
    hidden.rename(path / "in" / name)


def ids_in(path: Path) -> list[int]:
    """What the finished files hold, sorted."""
    return sorted(pf.read(path / "out", schema=pa.schema({"id": pa.int64()})).to_table()["id"].to_pylist())


def job_of(path: Path, *, dead_letters: pf.FileSink | None = None, **options: Any) -> pf.Pipeline:
    """A job that reads what is there."""
    given: dict[str, Any] = {"schema": SCHEMA, "follow": False, **options}
    source = pf.FilesSource(given.pop("directory", path / "in"), **given)
    made = pf.Pipeline("job", interval_s=0.05).source(source, dead_letters=dead_letters)
    return made.sink(pf.FileSink(path / "out", uid="job", format="json"))


def test_each_file_is_read_once(tmp_path: Path) -> None:
    """Those below directories and compressed ones too, over two runs; hidden ones and others are left."""
    put(tmp_path, "a.json", lines(0, 5) + b"\n  \n" + lines(5, 6)[:-1])
    put(tmp_path, "day=1/b.json.gz", gzip.compress(lines(6, 10)))
    put(tmp_path, "_hidden/c.json", lines(100, 101))
    put(tmp_path, "d.txt", b"no json")
    put(tmp_path, "e.json", b"")
    assert job_of(tmp_path, pattern="*.json*").run().rows == 10
    put(tmp_path, "0.json", lines(10, 25_010))
    result = job_of(tmp_path, pattern="*.json*").run()
    assert (result.rows, result.is_ended) == (25_000, True)
    assert ids_in(tmp_path) == list(range(25_010))
    assert job_of(tmp_path, pattern="*.json*").run().rows == 0


def test_files_that_come_are_read(tmp_path: Path) -> None:
    """Until the job is told to stop."""
    put(tmp_path, "a.json", lines(0, 5))
    job = job_of(tmp_path, follow=True, poll_s=0.05)
    Timer(0.5, put, (tmp_path, "b.json", lines(5, 9))).start()
    Timer(2, job.stop).start()
    result = job.run()
    assert not result.is_ended
    assert ids_in(tmp_path) == list(range(9))


PROGRAM = """
    import sys, time
    import partfile as pf

    def slowly(rows):
        print(rows.num_rows, flush=True)
        time.sleep(0.02)
        return rows

    format = sys.argv[2]
    source = pf.FilesSource(
        sys.argv[1] + "/in", format=format, schema={"id": "int64"} if format == "json" else None, follow=False)
    job = pf.Pipeline("job", interval_s=0.03)
    job.source(source).map_batches(slowly).sink(pf.FileSink(sys.argv[1] + "/out", uid="job", format="json"))
    print(job.run(), flush=True)
"""


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_job_that_is_killed_loses_and_doubles_nothing(tmp_path: Path, rng: random.Random, format: str) -> None:
    """Within files, several times; the last run goes to the end."""
    for number, first in enumerate(range(0, 400_000, 100_000)):
        if format == "json":
            put(tmp_path, f"{number}.json", lines(first, first + 100_000))
        else:
            (tmp_path / "in").mkdir(exist_ok=True)
            rows = pa.table({"id": pa.array(range(first, first + 100_000), pa.int64())})
            pq.write_table(rows, tmp_path / "in" / f"{number}.parquet", row_group_size=25_000)
    command = [sys.executable, "-c", dedent(PROGRAM), str(tmp_path), format]
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(rng.randint(1, 12)):
            process.stdout.readline()
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    told, _ = process.communicate(timeout=PATIENCE_S)
    assert "is_ended=True" in told
    assert ids_in(tmp_path) == list(range(400_000))


def test_rows_of_parquet_are_passed_over_within_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another version hands them on in other numbers."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": pa.array(range(50), pa.int64())}), tmp_path / "in" / "a.parquet", row_group_size=20)

    def run(size: int, stops_at: int) -> None:
        monkeypatch.setattr("partfile.pipeline.files._ROWS_AT_ONCE", size)
        batches: list[int] = []
        job = pf.Pipeline("job").source(pf.FilesSource(tmp_path / "in", format="parquet", follow=False))

        def stop(rows: pa.RecordBatch) -> pa.RecordBatch:
            batches.append(rows.num_rows)
            if len(batches) == stops_at:
                job.stop()
            return rows

        job.map_batches(stop).sink(pf.FileSink(tmp_path / "out", uid="job", format="json")).run()

    run(7, stops_at=2)
    run(10, stops_at=9)
    assert ids_in(tmp_path) == list(range(50))


def stopped_within_a_file(path: Path) -> None:
    """A job that has read the first 10 000 lines of a file of 20 000."""
    put(path, "a.json", lines(0, 20_000))
    made = pf.Pipeline("job").source(pf.FilesSource(path / "in", schema=SCHEMA))

    def stop(rows: pa.RecordBatch) -> pa.RecordBatch:
        made.stop()
        return rows

    made.map_batches(stop).sink(pf.FileSink(path / "out", uid="job", format="json")).run()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file.unlink(), "was deleted before it was read to its end"),
        (lambda file: file.write_bytes(lines(0, 9999)), "is shorter than what was read of it"),
    ],
)
def test_a_file_that_changes_while_it_is_read_is_no_silent_jump(
    tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    """Put back, it is gone on with."""
    stopped_within_a_file(tmp_path)
    assert len(ids_in(tmp_path)) == 10_000
    change(tmp_path / "in" / "a.json")
    with pytest.raises(CheckpointMismatch, match=told):
        job_of(tmp_path).run()
    (tmp_path / "in" / "a.json").write_bytes(lines(0, 20_000))
    job_of(tmp_path).run()
    assert ids_in(tmp_path) == list(range(20_000))


def test_lines_that_are_no_rows_are_dead_letters(tmp_path: Path) -> None:
    """With file and line; without a place for them the first one ends the job."""
    put(tmp_path, "a.json", lines(0, 3) + b'bad\n\n{"id": "x"}\n' + lines(3, 5))
    with pytest.raises(RecordError, match=r"line 4 of .*/in/a.json is no row: it is no JSON"):
        job_of(tmp_path).run()
    dead = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    put(tmp_path, "b.json", b"[]\n")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "in").rename(other / "in")
    assert job_of(other, dead_letters=dead).run().dead_letters == 3
    assert ids_in(other) == list(range(5))
    told = [json.loads(line) for one in (tmp_path / "dead").glob("part-*") for line in one.open()]
    assert [(one["file"], one["line"]) for one in sorted(told, key=lambda one: (one["file"], one["line"]))] == [
        (f"{other}/in/a.json", 4),
        (f"{other}/in/a.json", 6),
        (f"{other}/in/b.json", 1),
    ]


def test_names_are_forgotten_with_their_age(tmp_path: Path) -> None:
    """Older files are left, and a directory that has nothing for a while makes none come twice."""
    put(tmp_path, "a.json", lines(0, 1))
    put(tmp_path, "b.json", lines(1, 2))
    os.utime(tmp_path / "in" / "a.json", (1000, 1000))
    assert job_of(tmp_path, max_age_s="1 day").run().rows == 1
    (tmp_path / "in").rename(tmp_path / "away")
    (tmp_path / "in").mkdir()
    assert job_of(tmp_path, max_age_s="1 day").run().rows == 0
    (tmp_path / "in").rmdir()
    (tmp_path / "away").rename(tmp_path / "in")
    result = job_of(tmp_path, max_age_s="1 day").run()
    assert result.rows == 0
    assert ids_in(tmp_path) == [1]
    assert isinstance(result.position, dict)
    assert isinstance(done := result.position["done"], dict)
    assert list(done) == ["b.json"]


def test_other_file_systems_are_read(tmp_path: Path) -> None:
    """By fsspec; another directory is refused."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/landing/a.json", lines(0, 4))
    job_of(tmp_path, directory="memory://landing").run()
    assert ids_in(tmp_path) == list(range(4))
    with pytest.raises(CheckpointMismatch, match="is of files below '/landing', and those below '/elsewhere'"):
        job_of(tmp_path, directory="memory://elsewhere").run()
    with pytest.raises(CheckpointMismatch, match="which is no position of files"):
        pf.FilesSource(tmp_path, schema=SCHEMA).open({"topic": "t"}, "job", None)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (pf.FilesSource, "format='json' needs a schema"),
        (lambda path: pf.FilesSource(path, format="parquet", schema=SCHEMA), "format='parquet' has its own schema"),
        (lambda path: pf.FilesSource(path, format="csv"), "format='csv'"),  # type: ignore[arg-type]
        (lambda path: pf.FilesSource(path, schema=SCHEMA, poll_s=0), "poll_s=0"),
        (lambda path: pf.FilesSource(path, schema=SCHEMA, max_age_s="old"), "max_age_s='old'"),
        (lambda path: pf.FilesSource(path, schema={"id": "number"}), "no schema"),
        (lambda _: pf.FilesSource("nothing://x", schema=SCHEMA).open(None, "j", None), "cannot be opened"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, make: Any, told: str) -> None:
    """By its name, with what to write instead."""
    with pytest.raises(ConfigError, match=told) as refused:
        make(tmp_path)
    assert refused.value.hint


def test_too_many_names_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the position is too large for a checkpoint."""
    monkeypatch.setattr("partfile.pipeline.files._MOST_BYTES_OF_NAMES", 30)
    put(tmp_path, "a.json", lines(0, 1))
    put(tmp_path, "b.json", lines(1, 2))
    with pytest.raises(ConfigError, match=r"2 files below .* are remembered, too many for a checkpoint"):
        job_of(tmp_path).run()
