"""SIGKILL the driver at random instants, over one stream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from driver_process import Relay
from spark_support import expected, ids_by_duckdb, write_source
from watcher import Watcher

if TYPE_CHECKING:
    import random
    from pathlib import Path

pytestmark = pytest.mark.spark
KILLS, KILLS_IN_EVERY_RUN = 25, 6


def test_a_driver_killed_often_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    """Random instants inside batches and between them; a reader polls all the while. With --long 25 kills."""
    kills = KILLS if request.config.getoption("--long") else KILLS_IN_EVERY_RUN
    rows = write_source(tmp_path / "source", 5 * kills, rows_a_file=20)
    job = {"base": str(tmp_path / "out"), "source": str(tmp_path / "source"), "checkpoint": str(tmp_path / "spark")}
    with Watcher(tmp_path / "out"), Relay(job) as drivers:
        for _ in range(kills):
            driver = drivers.next()
            for _ in range(rng.randint(1, 3)):
                assert driver.wait_for("begin") is not None, "the stream ended before all kills; make it longer"
            time.sleep(rng.uniform(0, 0.4))
            driver.kill()
        assert drivers.next(is_last=True).finish() == "done"
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
