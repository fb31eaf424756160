"""SIGKILL drivers and workers of a stream that deduplicates, recover in between, and move it by a savepoint."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from partfile.snapshot.streams import DEFAULT_INLINE_THRESHOLD_BYTES
from support.processes.command_line import Recovering, told
from support.spark.drivers import Chaos, Relay, WorkerKills
from support.spark.streams import BUCKETS, expected, ids_by_duckdb
from support.spark.watcher import Watcher

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path


pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Scale(NamedTuple):
    """How much of it."""

    kills: int
    """Of drivers and workers together; half of them before the savepoint."""
    files: int


SHORT, LONG = Scale(kills=3, files=12), Scale(kills=30, files=64)
"""In every run, and with ``--long``."""
IDS_A_FILE = 20
WORKERS_SHARE = 0.7
"""Of the lives of drivers."""
FROM_STOP_TO_SAVEPOINT_S = 1.0
"""About how long a savepoint takes from the moment that it is asked for."""


def write_overlapping(directory: Path, files: int, rng: random.Random) -> int:
    """Write source files in which every id comes one to three times, in one file or in later ones too; how many ids."""
    directory.mkdir()
    rows: list[list[int]] = [[] for _ in range(files)]
    for one in range(files * IDS_A_FILE):
        first = one // IDS_A_FILE
        for at in [first, *(rng.randrange(first, files) for _ in range(rng.randrange(3)))]:
            rows[at].append(one)
    for at, ids in enumerate(rows):
        rng.shuffle(ids)
        path = directory / f"{at:05d}.json"
        path.write_text("".join(json.dumps({"id": one, "bucket": one % BUCKETS}) + "\n" for one in ids))
        os.utime(path, (1e9 + at, 1e9 + at))
    return files * IDS_A_FILE


class Lives:
    """One stream into a sink that deduplicates, on one base and then on another; each life has a job of its own.

    Args:
        root: Where everything is.
        rng: Draws tasks, files or inline runs, and instants.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self._more: dict[str, Any] = {}
        """Of the job of the next life."""
        self._restore: dict[str, Any] = {}
        self.base = root / "out"
        self.drivers = Relay(
            {
                "base": str(self.base),
                "source": str(root / "source"),
                "checkpoint": str(root / "spark"),
                "master": "local[2,4]",
                "deduplicate": "id",
            },
            self._drawn,
        )
        self.chaos = Chaos(self.drivers, rng, most_given_up=0)
        self.workers = WorkerKills(rng, most=3)
        self.recoveries = 0

    @property
    def kills(self) -> int:
        """Of drivers and workers together."""
        return self.chaos.kills + self.workers.done

    def _drawn(self) -> Mapping[str, Any]:
        options = {
            "hash_partitions": self._rng.randint(1, 5),
            "inline_threshold_bytes": self._rng.choice([0, DEFAULT_INLINE_THRESHOLD_BYTES]),
        }
        drawn = {"base": str(self.base), "repartition": self._rng.randint(1, 3), "options": options | self._restore}
        return drawn | self._more

    def until(self, kills: int) -> None:
        """Live and die on one base until so many have been killed, and recover from time to time."""
        recovering = Recovering(self.base, self._rng)
        while self.kills < kills:
            self.chaos.life(self.workers if self._rng.random() < WORKERS_SHARE else None)
            if list(self.base.glob("_partfile/*/chk-*/_metadata")):
                recovering()
        self.recoveries += recovering.done + recovering.kills

    def move(self, base: Path, most_killed: int) -> None:
        """End a life by a savepoint, and begin the next one with that on another base.

        Args:
            base: The other one.
            most_killed: How many drivers are killed at most that take it, before or after it is complete.
        """
        location = None
        for left in range(self._rng.randint(0, most_killed), -1, -1):
            savepoints = self._root / f"savepoints-{left}"
            self._more = {"savepoint_dir": str(savepoints), "savepoint_after": self._rng.randint(0, 1)}
            driver = self.drivers.next()
            if left:
                assert driver.wait_for("saving") is not None, driver.last_words
                time.sleep(self._rng.uniform(0, FROM_STOP_TO_SAVEPOINT_S))
                driver.kill()
                self.chaos.kills += 1
            else:
                location = driver.finish().removeprefix("saved ")
        assert location is not None
        self._more, self.base = {}, base
        self._restore = {"restore_from": str(shutil.move(location, self._root / "moved"))}

    def to_the_end(self) -> None:
        """Let the stream end, by large batches."""
        self._more = {"files": 10}
        self.chaos.to_the_end()


@pytest.mark.timeout(1800)
@pytest.mark.fault("K1", "K17", "D1", "D14", "K16", "H6")
def test_a_stream_killed_often_and_moved_once_writes_each_id_once(
    tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    """However many tasks each life has; a reader of either base polls all the while; no run of keys is damaged."""
    scale = LONG if request.config.getoption("--long") else SHORT
    ids = write_overlapping(tmp_path / "source", scale.files, rng)
    bases = [tmp_path / "out", tmp_path / "fresh"]
    lives = Lives(tmp_path, rng)
    with Watcher(bases[0]), Watcher(bases[1]), lives.drivers:
        lives.until(scale.kills // 2)
        before = lives.kills
        lives.move(bases[1], most_killed=1 + scale.kills // 20)
        moving = lives.kills - before
        lives.until(scale.kills)
        lives.to_the_end()
    print(f"{lives.chaos.kills=} {lives.workers.done=} {moving=} {lives.recoveries=} {ids=}")  # noqa: T201 - how much it was.
    for base in bases:
        told("clean", base, "--older-than", "0s", "--apply", "--delete")
        assert "errors=0" in told("verify", base)
        assert "STUCK" not in told("status", base, "--scan")
        assert ids_by_duckdb(base)
    assert ids_by_duckdb(bases[0]) + ids_by_duckdb(bases[1]) == expected(ids)
