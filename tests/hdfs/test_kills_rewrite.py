"""SIGKILL at the calls of the whole life cycle on HDFS, with cut="rewrite"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hdfs_kills import Kills, after_each, some_of

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from hdfs_cluster import HdfsCluster

STEPS = {True: 4, False: 8}
"""Every so many-th call of a restore that cuts, and of a life that has nothing to cut; from a random one on."""


@pytest.mark.parametrize("is_restore", [False, True], ids=["life", "restore"])
def test_a_kill_at_any_call_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
    is_restore: bool,
    hdfs: HdfsCluster,
    hdfs_directory: str,
    tmp_path: Path,
    rng: random.Random,
    pytestconfig: pytest.Config,
) -> None:
    """The parts of a restore are longer than a checkpoint vouches for; with ``--long`` no call is left out."""
    is_whole = pytestconfig.getoption("long")
    kills = Kills(hdfs, hdfs_directory, "rewrite", is_restore)
    kills.enumerate(tmp_path / "calls.json", after_each if is_whole else some_of(rng, STEPS[is_restore]))
