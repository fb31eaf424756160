"""SIGKILL to drivers and workers of streams into staged Parquet parts, between batches, inside them, inside encodes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from support.processes.command_line import told
from support.processes.deadline import wait_until
from support.spark.drivers import Chaos, Driver, Relay, WorkerKills
from support.spark.openers import FaultyEncodes
from support.spark.staged import HASHED, STAGED, numbered, rows_by_duckdb, rows_by_spark, staged_sink
from support.spark.streams import BUCKETS, LONG, Once, finished, run, stream, write_source

if TYPE_CHECKING:
    import random

    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]
LONGEST_RETRY_S = 300
"""From the death of a worker in the middle of an encode to the end of the stream, on a machine under load too."""


def job_of(root: Path, **more: Any) -> dict[str, Any]:
    """What a driver is to do."""
    places = {"base": str(root / "out"), "source": str(root / "source"), "checkpoint": str(root / "spark")}
    return {**places, "master": "local[2,4]", "options": STAGED | HASHED, **more}


@pytest.mark.parametrize("where", ["of the encode job", "of a batch"])
@pytest.mark.fault("D4")
def test_a_worker_killed_in_the_middle_of_an_encode(spark: SparkSession, tmp_path: Path, where: str) -> None:
    """Its task is tried again: a file under another name, while half a file is left that nothing ever names."""
    rows = write_source(tmp_path / "source", 4)
    flag = tmp_path / "flag"
    rolling = pf.RollingPolicy(max_part_bytes=1) if where == "of a batch" else LONG
    sink = staged_sink(tmp_path / "out", open_store_in_tasks=FaultyEncodes(flag, "kill"), rolling=rolling)
    frame = stream(spark, tmp_path / "source")
    query = sink.start(frame, checkpoint_location=str(tmp_path / "spark"), processingTime="0 seconds")
    query.processAllAvailable()
    query.stop()
    assert time.time() - flag.stat().st_mtime < LONGEST_RETRY_S
    # Its daemon takes note of its end some time later.
    wait_until(lambda: not Path(f"/proc/{flag.read_text()}").exists(), "the worker lives on")
    assert rows_by_duckdb(tmp_path / "out") == rows_by_spark(spark, tmp_path / "out") == numbered(rows)
    assert len(finished(tmp_path / "out")) == (BUCKETS if where == "of the encode job" else 4 * BUCKETS)


def test_storage_that_refuses_an_encode_is_asked_again(spark: SparkSession, tmp_path: Path) -> None:
    """In a task of a batch: the batch completes without that file, and what is left over is encoded after it."""
    rows = write_source(tmp_path / "source", 3)
    opener = FaultyEncodes(tmp_path / "flag", "refuse")
    sink = staged_sink(tmp_path / "out", open_store_in_tasks=opener, rolling=pf.RollingPolicy(max_part_bytes=1))
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert (tmp_path / "flag").exists()
    assert rows_by_duckdb(tmp_path / "out") == numbered(rows)
    assert len(finished(tmp_path / "out")) == 3 * BUCKETS


@pytest.mark.parametrize(("deed", "shares"), [("raise", False), ("kill", False), ("kill", True)])
@pytest.mark.fault("D1", "D4")
def test_a_task_that_fails_between_two_rows_is_retried(
    spark: SparkSession, tmp_path: Path, deed: str, *, shares: bool
) -> None:
    """The retry leaves the staging files alone that the first attempt held; they are encoded as far as they count."""
    rows = write_source(tmp_path / "source", 5)
    progress: list[pf.BatchProgress] = []
    bucketer = Once(tmp_path / "flag", deed, row=75)
    # Without hashing, which asks for buckets before the task that holds the staging files.
    plain: dict[str, Any] = {"distribution": "none", "hash_partitions": None}
    plain["buckets_per_staging_file"] = 1 if shares else None
    sink = staged_sink(tmp_path / "out", bucketer=bucketer, on_progress=progress.append, **plain)
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert (tmp_path / "flag").exists()
    assert rows_by_duckdb(tmp_path / "out") == numbered(rows)
    assert len(finished(tmp_path / "out")) == 2 * BUCKETS
    assert sum(one.parts_abandoned for one in progress) == (1 if shares else BUCKETS)


@pytest.mark.fault("K17")
@pytest.mark.timeout(900)
def test_a_driver_killed_while_its_encode_job_runs(tmp_path: Path) -> None:
    """At the clean end, and again in the job of the restart: the third driver encodes every staging file, once."""
    rows = write_source(tmp_path / "source", 2)
    for life in range(2):
        die_while_encoding(tmp_path, tmp_path / f"flag-{life}")
        assert finished(tmp_path / "out") == []
    rows = write_source(tmp_path / "source", 1, first=rows)
    assert Driver(job_of(tmp_path)).finish() == "done"
    assert rows_by_duckdb(tmp_path / "out") == numbered(rows)
    assert len(finished(tmp_path / "out")) == 2 * BUCKETS
    assert "errors=0" in told("verify", tmp_path / "out")


def die_while_encoding(root: Path, flag: Path) -> None:
    """One life of a driver, which is killed, with the worker, when a file is half encoded."""
    driver = Driver(job_of(root, encodes="wait", flag=str(flag)))
    try:
        wait_until(lambda: driver.has_ended or (flag.exists() and bool(flag.read_text())))
    finally:
        driver.kill()
    assert flag.exists(), driver.last_words
    # Workers have a process group of their own, and one that only sleeps outlives its driver for a while.
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(flag.read_text()), signal.SIGKILL)


@pytest.mark.fault("K17", "D14")
@pytest.mark.timeout(900)
def test_a_staged_stream_killed_often_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    """Drivers and workers die at random instants of batches whose parts roll by size, or stay open."""
    kills, files = (60, 100) if request.config.getoption("--long") else (3, 9)
    rows = write_source(tmp_path / "source", files, rows_a_file=20)
    workers = WorkerKills(rng, most=2)
    with Relay(job_of(tmp_path, max_part_bytes=rng.choice([1, 1500, 1 << 20]))) as drivers:
        chaos = Chaos(drivers, rng, most_given_up=0)
        while chaos.kills + workers.done < kills:
            chaos.life(workers if rng.random() < 1 / 2 else None)
        chaos.to_the_end()
    assert rows_by_duckdb(tmp_path / "out") == numbered(rows)
    assert "errors=0" in told("verify", tmp_path / "out")
