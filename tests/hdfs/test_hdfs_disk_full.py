"""A DataNode whose disk is full: nothing of the batch counts, the error says so, and with room the sink goes on."""

from __future__ import annotations

import resource
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hdfs_cluster import HdfsCluster
from hdfs_life import finished_files

import partfile as pf
from partfile.errors import NotApplied, OutcomeUnknown, StoreError
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import finished_bytes, new_part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from partfile.stores.base import PartHandle

ROOM_BYTES = 200_000
DATA, TOO_MUCH = b"durable" * 1000, b"too much" * 50_000
RESERVED = "dfs.datanode.du.reserved"
RECOVERED_WITHIN_S = 90.0
ALL_THERE_IS = str(1 << 60)


@contextmanager
def no_file_beyond(cluster: HdfsCluster, size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse what the DataNode writes into a file beyond a size: EFBIG, in the place of ENOSPC."""
    _, datanode = cluster.process_ids
    before = resource.prlimit(datanode, resource.RLIMIT_FSIZE)
    resource.prlimit(datanode, resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(datanode, resource.RLIMIT_FSIZE, before)


def reserve(cluster: HdfsCluster, size_bytes: str) -> None:
    """Start the DataNode again with so much of its disk reserved for others."""
    site = cluster.configuration_directory / "hdfs-site.xml"
    head, name, tail = site.read_text().partition(f"<name>{RESERVED}</name><value>")
    site.write_text(head + name + size_bytes + tail[tail.index("</value>") :])
    cluster.kill_datanode()
    cluster.start_datanode()
    cluster.wait_until_ready()


def write(sink: pf.FileSink, *lines: str) -> None:
    """Write the lines after those that count already, and end."""
    with sink.local() as out:
        done = out.position or 0
        assert isinstance(done, int)
        out.write(pa.RecordBatch.from_pydict({"line": lines[done:]}), position=len(lines))
        out.checkpoint()


def lines_at(url: str) -> list[str]:
    """Every line of every finished file."""
    with HdfsStore(url) as store:
        return sorted(line for data in finished_files(store).values() for line in data.decode().splitlines())


def sink_at(url: str, http_address: str) -> pf.FileSink:
    """A sink that does not wait long."""
    return pf.FileSink(
        url, uid="job", format="text", storage_options={"http_address": http_address, "call_timeout_s": 10}
    )


def test_a_part_whose_disk_filled_up_in_the_middle_of_a_block_is_owed_until_its_datanode_is_started_again(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """What was durable stays so, though HDFS cannot close the block before: file and memory disagree on its length."""
    options = HdfsOptions(http_address=own_hdfs.http_address, call_timeout_s=10, lease_timeout_s=10)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    with no_file_beyond(own_hdfs, ROOM_BYTES):
        with pytest.raises(OutcomeUnknown, match=r"sync|write to"):
            fill(stream)
        with pytest.raises(NotApplied, match="lost to this process"):
            stream.persist()
        stream.close()
    with pytest.raises(NotApplied, match="recovery of its lease has not ended"):
        store.publish(handle, "truncate")
    own_hdfs.kill_datanode()
    own_hdfs.mend()
    publish_in_time(store, handle)
    assert finished_bytes(store, handle) == DATA


def publish_in_time(store: HdfsStore, handle: PartHandle) -> None:
    """Try as a sink does with each checkpoint: HDFS begins a recovery anew when the one that failed has timed out."""
    ends_at_s = time.monotonic() + RECOVERED_WITHIN_S
    while True:
        try:
            store.publish(handle, "truncate")
        except NotApplied:
            assert time.monotonic() < ends_at_s
        else:
            return


def fill(stream: Any) -> None:
    """Write more than there is room for."""
    stream.write(TOO_MUCH)
    stream.persist()


@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
def test_a_batch_for_which_there_is_no_room_counts_for_nothing(
    own_hdfs: HdfsCluster, own_hdfs_directory: str, room_bytes: int
) -> None:
    """Neither with the first byte of a block nor in the middle of it; the next run has every row once."""
    url = f"{own_hdfs.url}{own_hdfs_directory}/base"
    lines = ["a", *(f"{number:0100d}" for number in range(5000))]
    write(sink_at(url, own_hdfs.http_address), *lines[:1])
    with no_file_beyond(own_hdfs, room_bytes), pytest.raises(StoreError) as raised:
        write(sink_at(url, own_hdfs.http_address), *lines)
    assert raised.value.hint
    assert lines_at(url) == lines[:1]
    write(sink_at(url, own_hdfs.http_address), *lines)
    assert lines_at(url) == sorted(lines)


def test_a_disk_without_room_for_a_block_is_named(tmp_path: Path) -> None:
    """The NameNode finds no DataNode for the block, so certainly nothing happened."""
    with HdfsCluster(tmp_path / "cluster", {RESERVED: "0"}) as cluster:
        url = f"{cluster.url}/base"
        write(sink_at(url, cluster.http_address), "a")
        reserve(cluster, ALL_THERE_IS)
        with pytest.raises(NotApplied, match="minReplication") as raised:
            write(sink_at(url, cluster.http_address), "a", "b")
        assert "Free space" in raised.value.hint
        reserve(cluster, "0")
        write(sink_at(url, cluster.http_address), "a", "b")
        assert lines_at(url) == ["a", "b"]
