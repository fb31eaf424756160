"""The demo's own parts tell the truth: its comparison, its view of batches, its choice of kills, its directory."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flights import fresh
from flights_reader import Comparison, compare, files_below
from flights_source import FlightsSource
from flights_supervisor import BatchLog, Job, Supervisor, TheDriver, choose_batches

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

    from flights_supervisor import Victim


ROWS: list[dict[str, object]] = [
    {"flight": 1, "tailnum": "N1"},
    {"flight": 2, "tailnum": None},
    {"flight": 2, "tailnum": None},
]
CSV = "flight,tailnum\n1,N1\n2,NA\n2,\n"


def land(directory: Path, rows: list[dict[str, object]], format: str = "json") -> Path:
    """Write rows as one part in one bucket, beside files that no reader sees."""
    bucket = directory / "output" / "2013-01-01"
    bucket.mkdir(parents=True)
    if format == "parquet":
        suffix, file = ".parquet", io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), file)
        data = file.getvalue()
    else:
        suffix, data = ".json.gz", gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    (bucket / f"part-0-0-0{suffix}").write_bytes(data)
    (bucket / f"_part-0-0-1{suffix}.token.in-progress").write_bytes(data[:-9])
    return directory / "output"


@pytest.mark.parametrize("format", ["json", "parquet"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ROWS, Comparison(rows=3, lost=0, duplicated=0)),
        (ROWS[:2], Comparison(rows=2, lost=1, duplicated=0)),
        ([*ROWS, ROWS[1]], Comparison(rows=4, lost=0, duplicated=1)),
        ([*ROWS[:2], {"flight": 3, "tailnum": None}], Comparison(rows=3, lost=1, duplicated=1)),
    ],
)
def test_the_comparison_counts_multisets_of_whole_rows(
    tmp_path: Path, rows: list[dict[str, object]], expected: Comparison, format: str
) -> None:
    """A lost second copy, an extra copy and a changed value are each seen, nulls included."""
    csv = tmp_path / "flights.csv"
    csv.write_text(CSV)
    assert compare(csv, land(tmp_path, rows, format), format) == expected


def test_an_unreadable_file_loses_every_row(tmp_path: Path) -> None:
    """A reader that stops at a broken file has nothing, and the comparison says so."""
    csv = tmp_path / "flights.csv"
    csv.write_text(CSV)
    output = land(tmp_path, ROWS)
    (output / "part-0-0-2.json.gz").write_bytes(b"\x1f\x8b torn")
    assert compare(csv, output) == Comparison(rows=0, lost=3, duplicated=0)


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_only_finished_files_are_counted(tmp_path: Path, format: str) -> None:
    """Staged files are not files to a reader."""
    assert files_below(land(tmp_path, ROWS, format), format).count == 1


def test_a_batch_runs_between_its_offsets_and_its_commit(tmp_path: Path) -> None:
    """Spark's own log says when a driver is inside a batch; its temporary files mean nothing."""
    log = BatchLog(str(tmp_path))
    assert (log.running(), log.committed()) == (None, 0)
    for directory in ("offsets", "commits"):
        (tmp_path / directory).mkdir()
    (tmp_path / "offsets" / ".1.tmp").touch()
    for batch in ("8", "9", "10"):
        (tmp_path / "offsets" / batch).touch()
        assert log.running() == int(batch)
        (tmp_path / "commits" / batch).touch()
        assert log.running() is None
    assert log.committed() == 11


@given(batches=st.integers(10, 500), kills=st.integers(0, 3), rng=st.randoms())
def test_kills_are_spread_over_the_stream(batches: int, kills: int, rng: random.Random) -> None:
    """Each kill has a batch of its own, in order, and the stream goes on after the last."""
    chosen = choose_batches(batches, kills, rng)
    assert len(chosen) == len(set(chosen)) == kills
    assert chosen == sorted(chosen)
    assert all(0 < batch < batches - 2 for batch in chosen)


def test_only_a_demo_of_ours_is_removed(tmp_path: Path) -> None:
    """A directory with other people's files is left alone; an earlier demo makes room."""
    (tmp_path / "precious").touch()
    with pytest.raises(SystemExit, match="not an earlier demo's"):
        fresh(tmp_path)
    assert (tmp_path / "precious").exists()
    first = fresh(tmp_path / "demo")
    (first / "partfile").mkdir()
    assert not (fresh(tmp_path / "demo") / "partfile").exists()


SCRIPT = """
import pathlib, sys, time
checkpoint, away = map(pathlib.Path, sys.argv[1:])
for batch in range(12):
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits").mkdir(exist_ok=True)
    if (checkpoint / "commits" / str(batch)).exists():
        continue
    (checkpoint / "offsets" / str(batch)).touch()
    time.sleep(0.3)
    if away.exists():
        away.unlink()
        sys.exit(1)
    (checkpoint / "commits" / str(batch)).touch()
"""


class ScriptedJob(Job):
    """A driver without Spark, which keeps the same books, and gives up when a server is away."""

    @property
    def command(self) -> Sequence[str]:
        """The script and where its books are."""
        return (sys.executable, "-c", SCRIPT, self.checkpoint, str(self.log.with_name("away")))


class AServer:
    """Another process than the driver, which is away until that was noticed."""

    name = "server"

    def __init__(self, away: Path) -> None:
        self._away = away

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Go away, and let the driver find out."""
        self._away.touch()
        os.killpg(driver.pid, signal.SIGCONT)


def scripted(tmp_path: Path) -> ScriptedJob:
    source = FlightsSource(tmp_path / "csv", tmp_path, (1,) * 12, 1)
    return ScriptedJob("script", source, "nowhere", str(tmp_path / "checkpoint"), tmp_path / "log")


def test_a_driver_that_ends_after_a_server_was_killed_is_started_again(tmp_path: Path) -> None:
    """So is one that was killed itself; both kills are known to have been inside batches, and the stream ends."""
    victims: list[Victim] = [AServer(tmp_path / "away"), TheDriver()]
    outcome = Supervisor(scripted(tmp_path), victims, random.Random(0)).run()
    assert [kill.victim for kill in outcome.kills] == ["server", "driver"]
    assert (outcome.starts, outcome.batches) == (3, 12)


def test_a_driver_that_ends_for_no_reason_ends_the_demo(tmp_path: Path) -> None:
    """Only a kill excuses it."""
    (tmp_path / "away").touch()
    with pytest.raises(SystemExit, match="ended with exit code 1"):
        Supervisor(scripted(tmp_path), [], random.Random(0)).run()
