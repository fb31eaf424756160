"""Executors that die and twins that race, on real clusters of two executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.spark.classes import java_options
from support.spark.cluster import standalone_cluster
from support.spark.drivers import STREAMS
from support.spark.streams import expected, ids_by_duckdb, write_source
from support.spark.watcher import Watcher

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRIVER = Path(__file__).parents[1] / "support" / "programs" / "kill_driver.py"
CLUSTER = "local-cluster[2,1,1024]"
PLACES = {"base": "out", "source": "source", "checkpoint": "spark"}


def run(root: Path, spark: dict[str, str] | None = None, **job: Any) -> None:
    fixed: dict[str, Any] = {name: str(root / place) for name, place in PLACES.items()}
    # Executors are Javas of their own, and start with the archived classes as the driver does.
    fixed["spark"] = {"spark.executor.extraJavaOptions": java_options()} | (spark or {})
    done = subprocess.run(
        [sys.executable, str(DRIVER), json.dumps(fixed | {"master": CLUSTER} | job)],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(DRIVER.parents[2])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("done")


def attempts(root: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in (root / "flag.log").read_text().splitlines()]


@pytest.mark.fault("K17", "D2", "D13")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("more", STREAMS.values(), ids=STREAMS)
def test_a_fetch_failure_runs_one_partition_twice_with_attempt_0(tmp_path: Path, more: dict[str, Any]) -> None:
    """An executor dies with its shuffle files: a partition runs again beside its first run, both with attempt 0."""
    rows = write_source(tmp_path / "source", 4, rows_a_file=40)
    with Watcher(tmp_path / "out"):
        run(
            tmp_path,
            once="kill-executor",
            flag=str(tmp_path / "flag"),
            row=90,
            files=2,
            repartition=2,
            **more,
        )
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    first_attempts = [(one["stage"], one["partition"]) for one in attempts(tmp_path) if one["attempt"] == 0]
    assert len(first_attempts) > len(set(first_attempts)), "no partition ran twice with attempt number 0"


@pytest.mark.fault("D2")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("more", STREAMS.values(), ids=STREAMS)
def test_a_speculative_twin_doubles_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    """A slow task gets a twin: whichever is acknowledged, its rows are there once, and the other's nowhere."""
    rows = write_source(tmp_path / "source", 4, rows_a_file=40)
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "100ms",
        # A twin needs the other executor, which may begin long after the first one on a busy machine.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
    }
    with standalone_cluster(tmp_path) as url, Watcher(tmp_path / "out"):
        run(
            tmp_path,
            master=url,
            # It is ended as soon as its twin has won.
            once="sleep:60",
            flag=str(tmp_path / "flag"),
            row=90,
            spark=speculation,
            repartition=2,
            **more,
        )
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    tasks = [(one["stage"], one["partition"]) for one in attempts(tmp_path)]
    assert len(tasks) > len(set(tasks)), "no task got a twin"
