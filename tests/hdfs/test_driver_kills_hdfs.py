"""SIGKILL the driver and the NameNode at random instants inside batches, over one stream."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import hdfs_native.fsspec
import pyarrow.dataset
import pytest
from driver_process import Driver, Relay, copy_checkpoint
from hdfs_streams import ids_on_hdfs
from spark_support import BUCKETS, expected, ids_by_duckdb, write_source

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from hdfs_cluster import HdfsCluster

pytestmark = pytest.mark.spark
ROWS_A_FILE = 12_500
MOST_BATCHES_A_LIFE = 2
FIRST_GUESS_S = 0.5
PATIENT_CLIENT = {
    # Spark's own checkpoint is on HDFS as well: its client is to wait for the NameNode as ours does.
    "spark.hadoop.dfs.client.retry.policy.enabled": "true",
    "spark.hadoop.dfs.client.retry.policy.spec": "500,120",
}


class Scale(NamedTuple):
    """How much of it."""

    files: int
    driver_kills: int
    namenode_kills: int


SHORT, LONG = Scale(files=20, driver_kills=4, namenode_kills=1), Scale(files=40, driver_kills=15, namenode_kills=5)
"""In every run, and with ``--long``: 500 000 rows."""


@dataclass
class Chaos:
    """One stream and those who are killed; remembers how long batches take, so that kills land inside them."""

    cluster: HdfsCluster
    drivers: Relay
    rng: random.Random
    scale: Scale
    first_s: list[float] = field(default_factory=list)
    """How long the first batch of a life took, which restores as well."""
    later_s: list[float] = field(default_factory=list)
    driver_kills: int = 0
    namenode_kills: int = 0
    gave_up: int = 0
    """Drivers that ended by themselves, which a NameNode that is away is reason for."""

    def life(self, batches: int, *, with_namenode: bool) -> None:
        """One life of the driver, which ends inside its last batch by SIGKILL; the NameNode dies in its first one."""
        driver = self.drivers.next()
        for number in range(batches):
            line = driver.wait_for("begin")
            began = time.monotonic()
            if line is None:
                self.gave_up += 1
                assert driver.has_given_up(), "the stream ended before all kills; make it longer"
                assert self.gave_up <= self.scale.namenode_kills, driver.last_words
                return
            batch = line.split()[1]
            if number == 0 and with_namenode:
                self._kill_namenode()
            known_s = self.later_s if number else self.first_s
            if number == batches - 1:
                time.sleep(self._instant_s(known_s))
                self.driver_kills += f"end {batch}" not in driver.kill()
            elif driver.wait_for(f"end {batch}") is not None and not (number == 0 and with_namenode):
                known_s.append(time.monotonic() - began)

    def to_the_end(self) -> None:
        """Let the stream end."""
        self.cluster.wait_until_ready()
        assert self.drivers.next(is_last=True).finish() == "done"

    def _instant_s(self, known_s: list[float]) -> float:
        return self.rng.uniform(0, statistics.median(known_s) if known_s else FIRST_GUESS_S)

    def _kill_namenode(self) -> None:
        time.sleep(self._instant_s(self.first_s))
        self.cluster.kill_namenode()
        self.namenode_kills += 1
        threading.Timer(self.rng.uniform(0, 2), self.cluster.start_namenode).start()


@pytest.mark.timeout(1800)
def test_a_stream_that_outlives_its_drivers_and_its_namenode_loses_and_doubles_nothing(
    own_hdfs: HdfsCluster, own_hdfs_directory: str, tmp_path: Path, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    """Read back by Spark, by pyarrow through hdfs-native's fsspec, and by DuckDB from a copy."""
    scale = LONG if request.config.getoption("--long") else SHORT
    rows = write_source(tmp_path / "source", scale.files, rows_a_file=ROWS_A_FILE)
    base = f"{own_hdfs_directory}/out"
    options = {"storage_options": {"http_address": own_hdfs.http_address}}
    job = {
        "base": own_hdfs.url + base,
        "source": str(tmp_path / "source"),
        "checkpoint": f"{own_hdfs.url}{own_hdfs_directory}/spark",
        "options": options,
        "spark": PATIENT_CLIENT,
    }
    with Relay(job) as drivers:
        chaos = Chaos(own_hdfs, drivers, rng, scale)
        while chaos.driver_kills < scale.driver_kills:
            left = (scale.namenode_kills - chaos.namenode_kills, scale.driver_kills - chaos.driver_kills)
            with_namenode = rng.random() < left[0] / left[1]
            chaos.life(rng.randint(1 + with_namenode, MOST_BATCHES_A_LIFE), with_namenode=with_namenode)
        chaos.to_the_end()
    assert (chaos.driver_kills, chaos.namenode_kills) == (scale.driver_kills, scale.namenode_kills)
    own_hdfs.wait_until_ready()

    everything = expected(rows)
    port = int(own_hdfs.url.rpartition(":")[2])
    # fsspec empties its cache in every forked child, where hdfs-native's client waits for its threads for ever.
    stranger = hdfs_native.fsspec.HdfsFileSystem("127.0.0.1", port, skip_instance_cache=True)
    dataset = pyarrow.dataset.dataset(base, format="json", partitioning="hive", filesystem=stranger)
    # Without threads: with two of them pyarrow's JSON datasets wait for each other, on local disk too.
    assert Counter(dataset.to_table(columns=["id"], use_threads=False)["id"].to_pylist()) == everything
    stranger.get(f"{base}/", str(tmp_path / "copy"), recursive=True)
    assert ids_by_duckdb(tmp_path / "copy") == everything
    spark = request.getfixturevalue("spark")
    landed = spark.read.json(own_hdfs.url + base).groupBy("bucket").count().collect()
    assert {row.bucket: row["count"] for row in landed} == dict(Counter(row % BUCKETS for row in range(rows)))
    assert spark.read.json(own_hdfs.url + base).select("id").distinct().count() == rows


def test_two_drivers_on_one_uid_make_one_history(
    hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, rng: random.Random
) -> None:
    """A second driver takes over while the first one sleeps anywhere in a batch: the first is fenced when it wakes."""
    rows, base = write_source(tmp_path / "source", 12, rows_a_file=20), f"{hdfs_directory}/out"
    job = {
        "base": hdfs.url + base,
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "options": {"storage_options": {"http_address": hdfs.http_address}},
        "spark": PATIENT_CLIENT,
    }
    first = Driver(job)
    assert first.wait_for("begin 2") is not None
    time.sleep(rng.uniform(0, FIRST_GUESS_S))
    os.kill(first.process.pid, signal.SIGSTOP)
    copy_checkpoint(tmp_path / "spark", tmp_path / "copy")
    second = Driver(job | {"checkpoint": str(tmp_path / "copy")})
    for _ in range(3):
        assert second.wait_for("end") is not None
    os.kill(first.process.pid, signal.SIGCONT)
    assert second.finish() == "done"
    assert first.finish() == "fenced"
    assert ids_on_hdfs(hdfs, base) == expected(rows)
