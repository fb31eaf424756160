"""SIGKILL the driver, its Python workers, and the command that recovers between two drivers, over one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.processes.command_line import Recovering, told
from support.spark.drivers import Chaos, Relay, WorkerKills
from support.spark.streams import expected, ids_by_duckdb, write_source
from support.spark.watcher import Consumer, Watcher

if TYPE_CHECKING:
    import random
    from pathlib import Path


pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Scale(NamedTuple):
    """How much of it."""

    kills: int
    """Of drivers and workers together."""
    files: int


SHORT, LONG = Scale(kills=4, files=12), Scale(kills=100, files=160)
"""In every run, and with ``--long``."""
WORKERS_SHARE = 0.7
"""Of the lives of drivers."""


@pytest.mark.timeout(1800)
@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_taken", [False, True], ids=["files stay", "files are taken"])
@pytest.mark.fault("K1", "K17", "D14", "K16", "H6")
def test_a_stream_killed_often_and_recovered_in_between_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest, is_taken: bool
) -> None:
    """Random instants inside batches and commands; a reader polls all the while; in the end no invariant is broken.

    The reader may be a consumer, which moves each file the instant that it is visible.
    """
    scale = LONG if request.config.getoption("--long") else SHORT
    rows = write_source(tmp_path / "source", scale.files, rows_a_file=20)
    base = tmp_path / "out"
    job = {
        "base": str(base),
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "master": "local[2,4]",
        "options": {"consumers_take_files": is_taken},
    }
    taken = tmp_path / "taken"
    workers, recovering = WorkerKills(rng, most=3), Recovering(base, rng)
    with Consumer(base, taken) if is_taken else Watcher(base) as watcher, Relay(job) as drivers:
        chaos = Chaos(drivers, rng, most_given_up=0)
        while chaos.kills + workers.done < scale.kills:
            chaos.life(workers if rng.random() < WORKERS_SHARE else None)
            recovering()
        chaos.to_the_end()
    print(f"{chaos.kills=} {workers.done=} {recovering.done=} {recovering.kills=} {watcher.rounds=} {rows=}")  # noqa: T201 - how much it was.
    assert ids_by_duckdb(base) + ids_by_duckdb(taken) == expected(rows)
    assert "errors=0" in told("verify", base)
    assert "STUCK" not in told("status", base, "--scan")
