"""Spark streams that deduplicate, on a real HDFS: each id once, each run of keys read once by a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.hdfs.kills import Kills, after_each, some_of
from support.hdfs.life import Kind
from support.processes.command_line import told
from support.spark.distinct_life import DistinctLife, When, distinct_sink, taken_over_by_a_rival, write_files_again
from support.spark.hdfs import ids_on_hdfs
from support.spark.streams import expected, run, stream

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.hdfs.cluster import HdfsCluster


EVERY = 40
"""Every so many-th call, from a random one on; with ``--long`` every one."""


@pytest.mark.slow
@pytest.mark.fault("K3", "K6", "K10", "K13")
def test_a_kill_at_any_call_loses_and_doubles_nothing(
    hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, rng: random.Random, pytestconfig: pytest.Config
) -> None:
    """Rows come again, and runs of keys are written, merged and deleted: each row is there once, also after it."""
    choose = after_each if pytestconfig.getoption("long") else some_of(rng, EVERY)
    kills = Kills(hdfs, hdfs_directory, "truncate", Kind(is_restore=False, is_distinct=True))
    kills.enumerate(tmp_path / "calls.json", choose)


@pytest.mark.spark
def test_the_tasks_of_a_host_read_each_run_of_keys_once(
    hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over batches and a restart, unless the copies are gone."""
    base, checkpoint = f"{hdfs.url}{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/spark"
    lives = DistinctLife(base, checkpoint, tmp_path, {"http_address": hdfs.http_address}, monkeypatch)
    lives.live_and_check()
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/out") == expected(lives.ids)
    assert "errors=0" in told("verify", base)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.fault("D9", "D10")
def test_of_two_drivers_with_keys_the_second_fences_the_first(  # noqa: PLR0917 - fixtures.
    spark: SparkSession,
    hdfs: HdfsCluster,
    hdfs_directory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: When,
) -> None:
    """Though it has deleted runs that the first one needs, it is no damage; the next driver knows every key."""
    base, options = f"{hdfs.url}{hdfs_directory}/out", {"http_address": hdfs.http_address}
    middle = taken_over_by_a_rival(base, options, spark, tmp_path, when=when, monkeypatch=monkeypatch)
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/out") == expected(middle)
    last = write_files_again(tmp_path / "source", 1, first=middle - 20)
    run(distinct_sink(base, options), stream(spark, tmp_path / "source"), str(tmp_path / "copy"))
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/out") == expected(last)
    assert "errors=0" in told("verify", base)
