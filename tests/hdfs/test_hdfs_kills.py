"""SIGKILL before and after calls of the whole life cycle on HDFS; restart; compare. A sample, drawn by a printed seed.

Each life takes seconds here, so the enumeration without gaps is that of the local store, whose sink is the same, and
that of the store's own verbs in ``test_hdfs_parts``.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from clean_forks import CleanForks
from hdfs_life import assert_exactly_once, finished_files, opener
from life_cycle import assert_only_grew, rows_of

from partfile.filesystems.faults import both_sides

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from hdfs_cluster import HdfsCluster

CUTS = ["truncate", "rewrite", "valid-length"]
KILLS = 1


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    """Processes without a client of this one's."""
    with CleanForks("hdfs_life") as clean:
        yield clean


@pytest.mark.parametrize("is_restore", [False, True], ids=["life", "restore"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_kill_at_a_call_loses_and_doubles_nothing(  # noqa: PLR0917 - fixtures.
    cut: str,
    is_restore: bool,
    hdfs: HdfsCluster,
    hdfs_directory: str,
    forks: CleanForks,
    tmp_path: Path,
    rng: random.Random,
) -> None:
    """Whole committed rows are seen at once, and all rows after a restart; of a life, and of a restore that cuts."""
    fixed = {"http_address": hdfs.http_address, "cut": cut}

    def at(name: object) -> str:
        url = f"{hdfs.url}{hdfs_directory}/{name}"
        if is_restore:
            assert forks.run("seed", url=url, **fixed) == -signal.SIGKILL
        return url

    names = tmp_path / "calls.json"
    assert forks.run("count", url=at("counted"), to=str(names), is_restore=is_restore, **fixed) == 0
    calls = json.loads(names.read_text())
    assert ("truncate" in calls) is (is_restore and cut == "truncate")
    kills = rng.sample(both_sides(len(calls)), KILLS)
    for number, when in kills:
        shown = f"{when} call {number} of {len(calls)}, {calls[number - 1]}"
        url = at(f"{when}-{number}")
        code = forks.run("die", url=url, number=number, when=when, is_restore=is_restore, **fixed)
        assert code == -signal.SIGKILL, shown
        with opener(hdfs.http_address)(url, None) as store:
            seen = finished_files(store)
            assert max(rows_of(seen).values(), default=1) == 1, shown
            assert forks.run("live", url=url, is_restore=is_restore, **fixed) == 0, shown
            assert_only_grew(seen, assert_exactly_once(store))
