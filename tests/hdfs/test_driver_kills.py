"""SIGKILL the driver and the NameNode at random instants inside batches, over one stream."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import hdfs_native.fsspec
import pyarrow.dataset
import pytest

from support.hdfs.life import taken_by
from support.spark.distinct_life import write_files_again
from support.spark.drivers import FIRST_GUESS_S, ROWS_A_FILE, Chaos, Driver, Relay, copy_checkpoint
from support.spark.hdfs import Consumer, ids_on_hdfs
from support.spark.streams import BUCKETS, expected, ids_by_duckdb, write_source

if TYPE_CHECKING:
    import random
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.hdfs.cluster import HdfsCluster


pytestmark = pytest.mark.spark
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


SHORT, LONG = Scale(files=9, driver_kills=2, namenode_kills=1), Scale(files=40, driver_kills=15, namenode_kills=5)
"""In every run, and with ``--long``: 500 000 rows."""
ROLLED_BYTES = 1 << 15
"""Beside a consumer each batch closes parts, so that something is published in most batches that a driver dies in."""


@dataclass
class NameNodeKills:
    """Kills the NameNode, which is back after up to two seconds."""

    cluster: HdfsCluster
    rng: random.Random
    done: int = 0

    def __call__(self, _driver: Driver) -> None:
        """Kill it."""
        self.cluster.kill_namenode()
        self.done += 1
        threading.Timer(self.rng.uniform(0, 2), self.cluster.start_namenode).start()


def beside(cluster: HdfsCluster, base: str, *, is_taken: bool) -> AbstractContextManager[Consumer | None]:
    """A consumer that moves each file the instant it is visible; or none."""
    return Consumer(cluster, base) if is_taken else nullcontext()


def ids_seen(cluster: HdfsCluster, base: str) -> Counter[int]:
    """The ids in every file that a reader of ``base`` sees, or that a consumer has moved away."""
    return ids_on_hdfs(cluster, base) + ids_on_hdfs(cluster, taken_by(base))


@pytest.mark.timeout(1800)
@pytest.mark.drawn(1)
@pytest.mark.parametrize("is_taken", [False, True], ids=["files stay", "files are taken"])
@pytest.mark.fault("K17")
def test_a_stream_that_outlives_its_drivers_and_its_namenode_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
    own_hdfs: HdfsCluster,
    own_hdfs_directory: str,
    tmp_path: Path,
    rng: random.Random,
    request: pytest.FixtureRequest,
    is_taken: bool,
) -> None:
    """Files that stay are read back by every reader; what a consumer has moved counts as what lies there does (R5).

    Beside the consumer the first driver dies as soon as a file of its has been moved.
    """
    scale = LONG if request.config.getoption("--long") else SHORT
    rows = write_source(tmp_path / "source", scale.files, rows_a_file=ROWS_A_FILE)
    base = f"{own_hdfs_directory}/out"
    options = {"storage_options": {"http_address": own_hdfs.http_address}, "consumers_take_files": is_taken}
    job = {
        "base": own_hdfs.url + base,
        "source": str(tmp_path / "source"),
        "checkpoint": f"{own_hdfs.url}{own_hdfs_directory}/spark",
        "options": options,
        "spark": PATIENT_CLIENT,
        **({"max_part_bytes": ROLLED_BYTES} if is_taken else {}),
    }
    namenode = NameNodeKills(own_hdfs, rng)
    with beside(own_hdfs, base, is_taken=is_taken) as consumer, Relay(job) as drivers:
        chaos = Chaos(drivers, rng, most_given_up=scale.namenode_kills)
        if consumer is not None:
            chaos.life_until(lambda: consumer.takes > 0)
        while chaos.driver_kills < scale.driver_kills:
            left = (scale.namenode_kills - namenode.done, scale.driver_kills - chaos.driver_kills)
            chaos.life(namenode if rng.random() < left[0] / left[1] else None)
        own_hdfs.wait_until_ready()
        chaos.to_the_end()
    assert (chaos.driver_kills, namenode.done) == (scale.driver_kills, scale.namenode_kills)
    own_hdfs.wait_until_ready()
    if consumer is None:
        assert_read_by_everyone(own_hdfs, base, tmp_path / "copy", rows, request.getfixturevalue("spark"))
    else:
        assert consumer.takes > chaos.kills
        assert ids_seen(own_hdfs, base) == expected(rows)


def assert_read_by_everyone(cluster: HdfsCluster, base: str, copy: Path, rows: int, spark: SparkSession) -> None:
    """By Spark, by pyarrow through hdfs-native's fsspec, and by DuckDB from a copy."""
    everything = expected(rows)
    port = int(cluster.url.rpartition(":")[2])
    # fsspec empties its cache in every forked child, where hdfs-native's client waits for its threads for ever.
    reader = hdfs_native.fsspec.HdfsFileSystem("127.0.0.1", port, skip_instance_cache=True)
    dataset = pyarrow.dataset.dataset(base, format="json", partitioning="hive", filesystem=reader)
    # Without threads: with two of them pyarrow's JSON datasets wait for each other, on local disk too.
    assert Counter(dataset.to_table(columns=["id"], use_threads=False)["id"].to_pylist()) == everything
    reader.get(f"{base}/", str(copy), recursive=True)
    assert ids_by_duckdb(copy) == everything
    landed = spark.read.json(cluster.url + base).groupBy("bucket").count().collect()
    assert {row.bucket: row["count"] for row in landed} == dict(Counter(row % BUCKETS for row in range(rows)))
    assert spark.read.json(cluster.url + base).select("id").distinct().count() == rows


@pytest.mark.drawn(1)
@pytest.mark.parametrize("form", ["files stay", "files are taken", "rows come again"])
def test_two_drivers_on_one_uid_make_one_history(
    hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, rng: random.Random, form: str
) -> None:
    """A second driver takes over while the first one sleeps anywhere in a batch: the first is fenced when it wakes.

    Beside a consumer the second has published, and the consumer moved, what the first knows as its own. Where rows come
    again, it has merged the runs of keys in which the first one looks.
    """
    source, base, is_taken = tmp_path / "source", f"{hdfs_directory}/out", form == "files are taken"
    is_distinct = form == "rows come again"
    rows = write_files_again(source, 12) if is_distinct else write_source(source, 12, rows_a_file=20)
    options = {"storage_options": {"http_address": hdfs.http_address}, "consumers_take_files": is_taken}
    job = {
        "base": hdfs.url + base,
        "source": str(source),
        "checkpoint": str(tmp_path / "spark"),
        "options": {**options, "inline_threshold_bytes": 0} if is_distinct else options,
        "spark": PATIENT_CLIENT,
        **({"deduplicate": "id"} if is_distinct else {}),
    }
    with beside(hdfs, base, is_taken=is_taken):
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
    assert ids_seen(hdfs, base) == expected(rows)
