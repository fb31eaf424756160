"""``recover --adopt-layout spark`` on trees that real Spark wrote and was killed over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes.command_line import run, told, told_json
from support.sinks.recovery import quarantined
from support.spark.streams import expected, ids_by_duckdb, write_source

if TYPE_CHECKING:
    from collections.abc import Iterable


TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "support" / "programs"
SPARK = ("--adopt-layout", "spark")
STOPPED = ("--apply", "--fence")
"""The driver was killed by this test, and waited for."""
FILES, ROWS_A_FILE = 10, 30
COMMITTED_FILES = 6
BLOCKING_ROW = (COMMITTED_FILES + 1) * ROWS_A_FILE
"""In batch 3, after Spark has compacted its log at batch 2; the file before it is of the same batch."""
LONGEST_RUN_S = 250

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Spark's file sink in a process group of its own that dies with this process."""
    places = [str(tmp_path / name) for name in ("source", "output", "checkpoint", "blocked")]
    return subprocess.Popen(
        [
            *(sys.executable, str(PROGRAMS / "die_with_owner.py"), str(os.getpid())),
            *(sys.executable, str(PROGRAMS / "spark_file_sink.py"), *places, str(BLOCKING_ROW)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        start_new_session=True,
    )


def killed_in_a_batch(tmp_path: Path) -> Path:
    """Spark is killed while one task of a batch has written its files and another is about to."""
    write_source(tmp_path / "source", FILES, ROWS_A_FILE)
    driver = start(tmp_path)
    try:
        deadline = time.monotonic() + LONGEST_RUN_S
        while not (tmp_path / "blocked").exists() and driver.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (tmp_path / "blocked").exists()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    return tmp_path / "output"


def copied(files: Iterable[str], source: Path, target: Path) -> None:
    """Copy files by their paths below a directory."""
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / file, target / file)


def test_what_a_killed_batch_left_goes_and_every_row_is_there_once(tmp_path: Path) -> None:
    """Leftovers make rows come twice for readers that know no log; without them each is there once, at any time."""
    output = killed_in_a_batch(tmp_path)
    assert (output / "_spark_metadata" / "2.compact").exists()
    items = told_json("recover", output, *SPARK, code=1)["plan"]["items"]
    assert items
    assert {(item["kind"], item["action"]) for item in items} == {("not committed", "quarantine")}
    leftovers = [item["path"] for item in items]
    copied(leftovers, output, tmp_path / "kept")
    result = run("recover", output, *SPARK, "--apply")
    assert "may be running" in result.stderr
    told("recover", output, *SPARK, *STOPPED)
    assert ids_by_duckdb(output) == expected(COMMITTED_FILES * ROWS_A_FILE)
    assert len([path for path in quarantined(output) if not path.endswith(".crc")]) == len(leftovers)
    assert start(tmp_path).wait(LONGEST_RUN_S) == 0
    assert ids_by_duckdb(output) == expected(FILES * ROWS_A_FILE)
    # Spark never looks at them, so the tree is the one of a restart that was not recovered before.
    copied(leftovers, tmp_path / "kept", output)
    assert ids_by_duckdb(output) != expected(FILES * ROWS_A_FILE)
    told("recover", output, *SPARK, *STOPPED)
    assert ids_by_duckdb(output) == expected(FILES * ROWS_A_FILE)
    plan = told_json("recover", output, *SPARK)["plan"]
    assert plan["items"] == []
    assert plan["finished"]["files"] >= FILES
