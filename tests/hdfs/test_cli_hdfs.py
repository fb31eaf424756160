"""The verbs that read, on a real HDFS on which a sink was killed or lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line import run, told, told_json, told_lines
from hdfs_commands import killed
from hdfs_life import live, opener
from life_cycle import batch, long_sink

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster

CHANGING = {"create", "append", "rename", "rename2", "delete", "truncate", "mkdirs", "recoverLease", "addBlock"}
VALID_BYTES = 2 * len("row-0000\n")


def test_a_killed_sink_is_told_and_nothing_is_changed(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Open parts are stuck, listed with what counts of them, no error to verify; a look asks for no change."""
    url = hdfs.url + hdfs_directory
    killed(hdfs, url)
    before = hdfs.operations()
    (sink,) = told_json("status", url, code=1)["sinks"]
    assert [part["valid_length"] for part in sink["stuck"]] == [VALID_BYTES] * 2
    assert sink["is_running"] is None
    parts = [part for part in told_lines("list", url) if part["state"] == "in-progress"]
    assert [(part["valid_length"], part["is_current"]) for part in parts] == [(VALID_BYTES, True)] * 2
    assert told_json("verify", url)["findings"] == []
    assert told_json("status", url, "--scan", code=1)["scan"]["missing"] == []
    assert told_json("checkpoints", url)["chains"][0]["links"][-1]["open_parts"] == 2
    after = hdfs.operations()
    asked = {name for name, count in after.items() if count != before.get(name, 0)}
    assert "getListing" in asked
    assert not asked & CHANGING
    live(url, hdfs.http_address, "auto", is_restore=True)
    assert told_json("status", url)["sinks"][0]["stuck"] == []
    assert told_json("verify", url)["findings"] == []


def test_valid_bytes_are_printed_once_nobody_holds_them(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A finished part is printed by its path; one that is not there ends with 2."""
    url = hdfs.url + hdfs_directory
    with long_sink(url, open_store=opener(hdfs.http_address)).local() as out:  # type: ignore[arg-type]
        out.write(batch(0, 4), position=4)
    (first, second) = sorted(str(part["path"]) for part in told_lines("list", url))
    assert told("cat", url, first) + told("cat", url, f"{url}/{second}") == "row-0000\nrow-0002\nrow-0001\nrow-0003\n"
    assert run("cat", url, "no/such").exit_code == 2


def test_a_sink_that_lives_never_looks_broken(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """While parts are held open, their lengths are no finding: HDFS tells them late."""
    url = hdfs.url + hdfs_directory
    with long_sink(url, open_store=opener(hdfs.http_address)).local() as out:  # type: ignore[arg-type]
        for number in range(4):
            out.write(batch(2 * number, 2), position=2 * number + 2)
            out.checkpoint()
            assert told_json("verify", url)["findings"] == []
            out.write(batch(2 * number, 2), position=2 * number + 2)
            assert told_json("verify", url)["findings"] == []


def test_a_name_node_that_is_away_is_told_apart() -> None:
    """Nothing answers: 3, within the deadline that was given."""
    result = run("status", "hdfs://127.0.0.1:9/base", "--storage-option", "call_timeout_s=2")
    assert result.exit_code == 3
    assert "Traceback" not in result.stderr
