"""``recover --adopt-layout`` on a real HDFS: by truncate where the web server can be reached, else by copies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from command_line import run, told, told_json
from flink_trees import rows, write_utf

from partfile.stores.registry import open_store

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster

UUID = "e54e316f-8d8f-4e0a-9556-b37b0aa330c2"
STOPPED = ("--apply", "--fence")


def put(url: str, files: dict[str, bytes]) -> None:
    """Files as another program writes them."""
    with open_store(url, {}) as store:
        for path, data in files.items():
            store.create_file(path, data)


def content(url: str) -> dict[str, bytes]:
    """Every file but partfile's own, with its bytes."""
    with open_store(url, {}) as store:
        return {file.path: store.read_file(file.path, 10_000) for file in store.list()}


@pytest.mark.parametrize("has_truncate", [True, False])
def test_what_flink_left_is_cut_and_published(hdfs: HdfsCluster, hdfs_directory: str, *, has_truncate: bool) -> None:
    """Finished and pending parts end at their valid lengths; one that was being written is away."""
    url = hdfs.url + hdfs_directory
    options = ("--storage-option", f"http_address={hdfs.http_address}") if has_truncate else ()
    put(
        url,
        {
            "d/part-0-0": rows(0, 10),
            "d/part-0-1": rows(10, 20) + b"tail",
            "d/_part-0-1.valid-length": write_utf("50"),
            "d/_part-1-0.pending": rows(20, 30) + b"00",
            "d/_part-1-0.valid-length": write_utf("50"),
            "d/_part-0-2.pending": rows(30, 40),
            "d/_part-0-3.in-progress": rows(40, 41),
        },
    )
    command = ("recover", url, "--adopt-layout", "flink", "--publish-pending", "--quarantine-in-progress", *options)
    before = content(url)
    assert len(told_json(*command, code=1)["plan"]["items"]) == 4
    assert "may be running" in run(*command, "--apply").stderr
    assert content(url) == before
    told(*command, *STOPPED)
    left = content(url)
    visible = {path: data for path, data in left.items() if not path.startswith("d/_")}
    assert visible == {f"d/part-{name}": rows(*span) for name, span in _PARTS.items()}
    originals = {} if has_truncate else {path: "quarantine" for path in left if path not in visible}
    assert len(originals) == (0 if has_truncate else 2)
    assert {item["path"]: item["action"] for item in told_json(*command, *STOPPED)["plan"]["items"]} == originals
    assert content(url) == visible


_PARTS = {"0-0": (0, 10), "0-1": (10, 20), "1-0": (20, 30), "0-2": (30, 40)}


def test_what_spark_did_not_commit_is_moved(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """The log names files by the whole URL of the cluster; the rest is in the quarantine under another name."""
    url = hdfs.url + hdfs_directory
    committed, stray = (f"b=1/part-0000{number}-{UUID}.c000.json" for number in (0, 1))
    entry: dict[str, Any] = {"path": f"{url}/{committed}", "size": 3, "isDir": False, "modificationTime": 1}
    line = json.dumps({**entry, "blockReplication": 1, "blockSize": 1, "action": "add"})
    put(url, {committed: b"{}\n", stray: b"{}\n", "_spark_metadata/0": f"v1\n{line}".encode()})
    told("recover", url, "--adopt-layout", "spark", *STOPPED)
    assert set(content(url)) == {committed, "_spark_metadata/0"}
    with open_store(url, {}) as store:
        (taken,) = store.list_names("_partfile/_quarantine")
        (name,) = store.list_names(f"_partfile/_quarantine/{taken}/b=1")
        assert name == f"_{stray.rpartition('/')[2]}.not-committed"
        assert store.read_file(f"_partfile/_quarantine/{taken}/b=1/{name}", 10) == b"{}\n"
