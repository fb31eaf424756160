"""The demo's own parts tell the truth: its source, its comparison, its view of batches, its kills, its directory."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flights import fresh
from flights_reader import Comparison, compare, files_below
from flights_source import AIRPORTS, BATCHES, LATEST_COPY, FlightsSource, sent_once, with_copies, write_batches
from flights_supervisor import BatchLog, Job, Supervisor, TheDriver, choose_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flights_supervisor import Victim


ROOT = Path(__file__).parents[2]
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


def some_flights(rng: random.Random) -> pa.Table:
    """A year in small, with some forty rows a batch."""
    rows = rng.randrange(2000, 2100)
    return pa.table({"flight": range(rows), "origin": [rng.choice(AIRPORTS) for _ in range(rows)]})


def rows_in(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(path).to_pylist()
    return rows


def number(row: dict[str, object]) -> int:
    return int(str(row["flight"]))


def sent_rows(files: Path) -> list[list[dict[str, object]]]:
    """The rows of each batch, in the order in which Spark reads the files."""
    paths = sorted(files.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in paths] == [f"{batch:03}-{of}.parquet" for batch in range(BATCHES) for of in AIRPORTS]
    tables = iter([rows_in(path) for path in paths])
    return [[row for table in batch for row in table] for batch in zip(*[tables] * len(AIRPORTS), strict=True)]


def test_without_copies_each_row_is_sent_once_in_order(tmp_path: Path, rng: random.Random) -> None:
    """Batch after batch the stream is the table; each file has the flights of one airport."""
    flights = some_flights(rng)
    sizes = write_batches(tmp_path, flights, sent_once(flights))
    batches = sent_rows(tmp_path)
    assert [len(rows) for rows in batches] == list(sizes)
    assert max(sizes) - min(sizes) <= 1
    assert sorted((row for rows in batches for row in rows), key=str) == sorted(flights.to_pylist(), key=str)
    assert all(max(map(number, one)) < min(map(number, after)) for one, after in pairwise(batches))
    for airport in AIRPORTS:
        assert all(row["origin"] == airport for path in tmp_path.glob(f"*-{airport}.*") for row in rows_in(path))


def test_copies_follow_each_row_soon(tmp_path: Path, rng: random.Random) -> None:
    """Each row is sent one to three times, from its own batch on, in any file; what is different is the table."""
    flights = some_flights(rng)
    once = sent_once(flights)
    sizes = write_batches(tmp_path, flights, with_copies(once, rng))
    batches = sent_rows(tmp_path)
    assert [len(rows) for rows in batches] == list(sizes)
    times = Counter(number(row) for rows in batches for row in rows)
    assert set(times) == set(range(flights.num_rows))
    assert set(times.values()) == {1, 2, 3}
    assert {(number(row), row["origin"]) for rows in batches for row in rows} == {
        (number(row), row["origin"]) for row in flights.to_pylist()
    }
    behind = [batch - int(once.batches[number(row)]) for batch, rows in enumerate(batches) for row in rows]
    assert set(behind) == set(range(LATEST_COPY + 1))
    assert behind.count(0) >= flights.num_rows
    assert {row["origin"] for path in tmp_path.glob(f"*-{AIRPORTS[0]}.*") for row in rows_in(path)} == set(AIRPORTS)


def test_the_same_seed_sends_the_same_copies(rng: random.Random) -> None:
    """What a seed has shown it shows again."""
    flights, seed = some_flights(rng), rng.random()
    one, same, other = (with_copies(sent_once(flights), random.Random(drawn)) for drawn in (seed, seed, rng.random()))
    assert [one.rows.tolist(), one.batches.tolist(), one.files.tolist()] == [
        same.rows.tolist(),
        same.batches.tolist(),
        same.files.tolist(),
    ]
    assert one.rows.tolist() != other.rows.tolist()


SCRIPT = """
import pathlib, sys, time
checkpoint, away = map(pathlib.Path, sys.argv[1:])
for batch in range(12):
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits").mkdir(exist_ok=True)
    if (checkpoint / "commits" / str(batch)).exists():
        continue
    (checkpoint / "offsets" / str(batch)).touch()
    time.sleep(0.6)
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


@pytest.mark.parametrize("demo", ["demo", "demo-hdfs", "demo-s3"])
def test_make_sends_rows_again_where_it_is_asked_to(demo: str) -> None:
    """``DEDUPLICATE=1`` reaches the script, and without it nothing does."""
    environment = {name: value for name, value in os.environ.items() if name not in {"DEDUPLICATE", "MAKEFLAGS"}}
    for words, is_asked in ((["DEDUPLICATE=1"], True), ([], False)):
        command = ["make", "--dry-run", "--no-print-directory", "--directory", str(ROOT), demo, *words]
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert ("--deduplicate" in shown.splitlines()[-1]) is is_asked
