"""What readers of HDFS do after a fork, with a file that is open, and before a NameNode that does not answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import hdfs_native
import pyarrow as pa
import pytest
from hdfs_streams import hdfs_sink

import partfile as pf
from partfile.errors import NotApplied, NotReady

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_cluster import HdfsCluster

SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.int64())])
BLOCK_BYTES = 1 << 20
DEADLINE_S = 2.0
SLACK_S = 4.0

FORKING = """
import os, sys
import partfile as pf
base = sys.argv[1]
shown, dataset = pf.valid_length_filesystem(base), pf.read(base)
(name, *_) = shown.find(shown.base)
file = shown.open(name)
half = file.read(1)
known = shown.info(name), dataset.to_table().num_rows, half + file.read()
file.seek(1)
if os.fork() == 0:
    rest = shown.open(name).read(1) + file.read()
    assert (shown.info(name), dataset.to_table().num_rows, rest) == known
    assert pf.read(base).count_rows() == known[1] == 6
    os._exit(17)
code = os.waitstatus_to_exitcode(os.wait()[1])
assert code == 17, code
assert dataset.to_table().num_rows == 6
"""


def write_rows(cluster: HdfsCluster, base: str) -> str:
    """Six rows in finished files; returns the URL of their base path."""
    with hdfs_sink(cluster, base).local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": list(range(6)), "bucket": [number % 2 for number in range(6)]}))
    return cluster.url + base


def assert_ends_in_time(work: Callable[[], object]) -> None:
    """The call raises at its deadline."""
    began = time.monotonic()
    with pytest.raises(NotApplied, match=f"has not answered within {DEADLINE_S:g} s"):
        work()
    assert time.monotonic() - began < DEADLINE_S + SLACK_S


def test_a_forked_child_reads_through_what_it_inherited(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A file system, a dataset and an open file made before the fork; nothing waits for threads of the parent's."""
    url = write_rows(hdfs, f"{hdfs_directory}/out")
    subprocess.run([sys.executable, "-c", FORKING, url], check=True, timeout=60)


def test_an_open_file_ends_in_an_error_where_its_closed_blocks_end(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Whether its first writer holds it, one who appends, or it was renamed meanwhile; once closed it is read whole."""
    client, path = hdfs_native.Client(hdfs.url), f"{hdfs_directory}/part-0.txt"
    content = b"x" * BLOCK_BYTES + b"end"
    behind = pf.valid_length_filesystem(hdfs.url + hdfs_directory).fs
    options = hdfs_native.WriteOptions(block_size=BLOCK_BYTES)
    with client.create(path, options) as writer:
        writer.write(content)
        writer.hsync()
        opened = behind.open(path)
        assert opened.read(BLOCK_BYTES) == content[:BLOCK_BYTES]
        for position in (BLOCK_BYTES, BLOCK_BYTES + 2):
            opened.seek(position)
            with pytest.raises(
                NotReady, match=rf"{path}' was open .* saw {BLOCK_BYTES} bytes, and it has {len(content)}"
            ):
                opened.read(1)
    assert behind.cat_file(path) == content
    with client.append(path) as writer:
        with pytest.raises(NotReady, match=path):
            behind.cat_file(path)
        client.rename(path, f"{path}.moved")
        with pytest.raises(NotReady, match="moved since"):
            opened.read(1)
        client.rename(f"{path}.moved", path)
    assert behind.cat_file(path) == content


def test_a_namenode_that_does_not_answer_ends_a_read_in_time(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Looking, listing, opening and scanning say so within the deadline; a file is never taken for absent."""
    url = write_rows(own_hdfs, f"{own_hdfs_directory}/out")
    options = {"call_timeout_s": DEADLINE_S}
    dataset = pf.read(url, schema=SCHEMA, storage_options=options)
    shown = pf.valid_length_filesystem(url, options)
    name = shown.find(shown.base)[0]
    own_hdfs.pause_namenode()
    for work in (
        lambda: shown.exists(name),
        lambda: shown.fs.exists(name),
        lambda: shown.find(shown.base),
        lambda: shown.fs.open(name),
        lambda: pf.read(url, storage_options=options),
        lambda: pf.read(url, include="pending", storage_options=options),
        dataset.to_table,
        lambda: list(dataset.to_batches()),
    ):
        assert_ends_in_time(work)
    own_hdfs.mend()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))


def test_a_datanode_that_does_not_answer_ends_a_scan_in_time(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The bytes have a deadline too; when it goes on, the same dataset is read."""
    dataset = pf.read(
        write_rows(own_hdfs, f"{own_hdfs_directory}/out"), schema=SCHEMA, storage_options={"call_timeout_s": DEADLINE_S}
    )
    own_hdfs.pause_datanode()
    assert_ends_in_time(dataset.to_table)
    own_hdfs.mend()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))


def test_a_scan_waits_for_a_namenode_that_restarts(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Whether the dataset was made before it was killed, or is made meanwhile by a client that was never connected."""
    url = write_rows(own_hdfs, f"{own_hdfs_directory}/out")
    dataset = pf.read(url, schema=SCHEMA)
    own_hdfs.kill_namenode()
    timer = threading.Timer(2, own_hdfs.start_namenode)
    timer.start()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))
    assert timer.finished.is_set()
    own_hdfs.kill_namenode()
    timer = threading.Timer(2, own_hdfs.start_namenode)
    timer.start()
    assert pf.read(url, storage_options={"call_timeout_s": 50.0}).count_rows() == 6
    assert timer.finished.is_set()
