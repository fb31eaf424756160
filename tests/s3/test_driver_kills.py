"""SIGKILL the driver, its Python workers and the S3 server at random instants inside batches, over one stream."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import duckdb
import pyarrow.dataset
import pyarrow.fs
import pyarrow.json
import pytest

from support.s3.life import store_options
from support.spark.drivers import ROWS_A_FILE, Chaos, Relay, WorkerKills
from support.spark.s3 import ObjectConsumer, ObjectWatcher, ids_on_s3, pending_uploads
from support.spark.streams import expected, write_source

if TYPE_CHECKING:
    import random
    from pathlib import Path

    import s3fs

    from support.s3.server import S3Server
    from support.spark.drivers import Driver


pytestmark = [pytest.mark.spark, pytest.mark.slow]
MIB = 1 << 20
WIDE_BYTES = 1500
"""A batch has 6 MB for bucket 0, so that its part is an upload by the time the batch ends."""
ROLLED_BYTES = {False: 16 * MIB, True: MIB}
"""Beside a consumer each batch closes parts, so that something is published in most batches that a driver dies in."""
CLOCK_SLACK_S = 2.0


class Scale(NamedTuple):
    """How much of it."""

    files: int
    driver_kills: int
    worker_kills: int
    restarts: int


SHORT = Scale(files=8, driver_kills=2, worker_kills=1, restarts=1)
LONG = Scale(files=40, driver_kills=15, worker_kills=5, restarts=3)
"""In every run, and with ``--long``: 500 000 rows."""


@dataclass
class Mischief:
    """Kills the server, which is back after up to two seconds, or a Python worker; each as often as it is to be."""

    server: S3Server
    rng: random.Random
    worker_kills: int
    restarts: int
    left: list[str] = field(init=False)
    timers: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = ["worker"] * self.worker_kills + ["server"] * self.restarts
        self.rng.shuffle(self.left)

    def __call__(self, driver: Driver) -> None:
        """Do the next one, if it can be done now."""
        if self.left[-1] == "worker":
            workers = WorkerKills(self.rng)
            workers(driver)
            if not workers.done:
                return
        else:
            self.server.kill()
            self.timers.append(threading.Timer(self.rng.uniform(0, 2), self.server.start))
            self.timers[-1].start()
        self.left.pop()

    def mend(self) -> None:
        """Wait until the server is back."""
        for timer in self.timers:
            timer.join()
        self.server.mend()


@pytest.mark.timeout(1800)
@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_taken", [False, True], ids=["files stay", "files are taken"])
@pytest.mark.fault("K17", "N11", "D13", "D14")
def test_a_stream_that_outlives_its_drivers_workers_and_server_loses_and_doubles_nothing(
    radosgw: S3Server, tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest, is_taken: bool
) -> None:
    """Read back by DuckDB and by pyarrow, both through s3fs; no upload is left but those of batches broken off.

    The objects stay, or a consumer moves each to another prefix as soon as it is listed (R5): then the first driver
    dies as soon as an object of its is listed.
    """
    scale = LONG if request.config.getoption("--long") else SHORT
    rows = write_source(tmp_path / "source", scale.files, rows_a_file=ROWS_A_FILE)
    bucket = radosgw.bucket()
    base, taken = f"s3://{bucket}/out", f"s3://{bucket}/taken"
    options = {"storage_options": store_options(radosgw), "distribution": "hash", "hash_partitions": 2}
    job = {
        "base": base,
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "options": {**options, "consumers_take_files": is_taken},
        "max_part_bytes": ROLLED_BYTES[is_taken],
        "wide_bytes": WIDE_BYTES,
        "master": "local[2,4]",
    }
    mischief = Mischief(radosgw, rng, scale.worker_kills, scale.restarts)
    watcher = ObjectConsumer(radosgw, base, taken) if is_taken else ObjectWatcher(radosgw, base)
    with watcher, Relay(job) as drivers:
        chaos = Chaos(drivers, rng, most_given_up=scale.restarts)
        try:
            if is_taken:
                chaos.life_until(lambda: bool(watcher.seen))
            while chaos.driver_kills < scale.driver_kills or mischief.left:
                lives_left = max(1, scale.driver_kills - chaos.driver_kills)
                chaos.life(mischief if rng.random() < len(mischief.left) / lives_left else None)
            mischief.mend()
            chaos.to_the_end()
        finally:
            mischief.mend()
    assert chaos.driver_kills >= scale.driver_kills

    everything, reader, place = expected(rows), radosgw.filesystem(), taken if is_taken else base
    assert ids_by_duckdb(reader, place) == everything
    assert ids_by_pyarrow(reader, place) == everything
    assert watcher.seen
    assert not (is_taken and ids_on_s3(radosgw, base)), "an object is there that no consumer has taken"
    unexplained = [one for one in pending_uploads(radosgw, base) if not was_broken_off(one, chaos.broken_off)]
    assert not unexplained


def ids_by_duckdb(reader: s3fs.S3FileSystem, base: str) -> Counter[int]:
    """The ids in every file that DuckDB's glob finds on S3."""
    database = duckdb.connect()
    database.register_filesystem(reader)
    found = database.execute(f"SELECT id FROM read_json('{base}/**/*.json', columns = {{id: 'BIGINT'}})")  # noqa: S608
    return Counter(row[0] for row in found.fetchall())


def ids_by_pyarrow(reader: s3fs.S3FileSystem, base: str) -> Counter[int]:
    """The ids in every file that pyarrow's discovery finds on S3."""
    files = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(reader))
    dataset = pyarrow.dataset.dataset(base.removeprefix("s3://"), format="json", filesystem=files)
    found: Counter[int] = Counter()
    # File by file: scanned as one, several of them wait for each other on two cores, on local disk too.
    for path in dataset.files:
        with files.open_input_stream(path) as stream:
            found.update(pyarrow.json.read_json(stream)["id"].to_pylist())
    return found


def was_broken_off(upload: dict[str, Any], broken_off: list[tuple[float, float]]) -> bool:
    """Whether an upload was begun inside a batch in which a process died: its attempt never answered."""
    begun_at = upload["Initiated"].timestamp()
    return any(began - CLOCK_SLACK_S <= begun_at <= ended + CLOCK_SLACK_S for began, ended in broken_off)
