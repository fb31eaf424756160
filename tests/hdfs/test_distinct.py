"""Spark streams that deduplicate, on a real HDFS: each id once, each run of keys read once by a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.hdfs.kills import Kills, after_each, some_of
from support.hdfs.life import Kind
from support.processes.command_line import told
from support.spark.distinct_life import DistinctLife
from support.spark.hdfs import ids_on_hdfs
from support.spark.streams import expected

if TYPE_CHECKING:
    import random
    from pathlib import Path

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
