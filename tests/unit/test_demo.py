"""The demo's own parts tell the truth: its comparison, its view of batches, its choice of kills, its directory."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flights import fresh
from flights_reader import Comparison, compare, files_below
from flights_supervisor import BatchLog, choose_batches

if TYPE_CHECKING:
    import random
    from pathlib import Path

ROWS: list[dict[str, object]] = [
    {"flight": 1, "tailnum": "N1"},
    {"flight": 2, "tailnum": None},
    {"flight": 2, "tailnum": None},
]
CSV = "flight,tailnum\n1,N1\n2,NA\n2,\n"


def land(directory: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as one part in one bucket, beside files that no reader sees."""
    bucket = directory / "output" / "2013-01-01"
    bucket.mkdir(parents=True)
    data = gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    (bucket / "part-0-0-0.json.gz").write_bytes(data)
    (bucket / "_part-0-0-1.json.gz.token.in-progress").write_bytes(data[:-9])
    return directory / "output"


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
    tmp_path: Path, rows: list[dict[str, object]], expected: Comparison
) -> None:
    """A lost second copy, an extra copy and a changed value are each seen, nulls included."""
    csv = tmp_path / "flights.csv"
    csv.write_text(CSV)
    assert compare(csv, land(tmp_path, rows)) == expected


def test_an_unreadable_file_loses_every_row(tmp_path: Path) -> None:
    """A reader that stops at a broken file has nothing, and the comparison says so."""
    csv = tmp_path / "flights.csv"
    csv.write_text(CSV)
    output = land(tmp_path, ROWS)
    (output / "part-0-0-2.json.gz").write_bytes(b"\x1f\x8b torn")
    assert compare(csv, output) == Comparison(rows=0, lost=3, duplicated=0)


def test_only_finished_files_are_counted(tmp_path: Path) -> None:
    """Staged files are not files to a reader."""
    assert files_below(land(tmp_path, ROWS)).count == 1


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
