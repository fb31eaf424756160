"""Closing parts, and taking their leases, on a NameNode that is restarted meanwhile."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from partfile.errors import NotApplied
from partfile.stores.hdfs.client import HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import files_in, finished_bytes, new_part, write_part

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster

    from partfile.stores.base import Cut, PartHandle


class RestartAfterTheFirstTruncate(HdfsCalls):
    """Kills the NameNode when it has begun to cut, and brings it back a second later."""

    def __init__(self, cluster: HdfsCluster, options: HdfsOptions) -> None:
        super().__init__(cluster.url, options)
        self._cluster = cluster
        self.answers: list[bool] = []

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut, and kill after the first answer."""
        self.answers.append(super().truncate(path, length_bytes))
        if len(self.answers) == 1:
            self._cluster.kill_namenode()
            threading.Timer(1, self._cluster.start_namenode).start()
        return self.answers[-1]


DATA = b"durable" * 1000
CLIENT_GIVES_UP_AFTER_S = 13


def test_a_close_waits_until_the_datanode_has_reported(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """hdfs-native gives up after 12 s; the part is closed all the same, and its lease is free."""
    options = HdfsOptions(http_address=own_hdfs.http_address, call_timeout_s=120)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    own_hdfs.kill_namenode()
    closing = threading.Thread(target=stream.close)
    closing.start()
    # By now the DataNode has the end of the block; it sleeps before it can tell the new NameNode.
    time.sleep(1)
    own_hdfs.pause_datanode()
    own_hdfs.start_namenode()
    time.sleep(CLIENT_GIVES_UP_AFTER_S + 5)
    own_hdfs.resume_datanode()
    closing.join(60)
    assert not closing.is_alive()
    store.resume(handle).close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


def publish_for(store: HdfsStore, handle: PartHandle, cut: Cut, timeout_s: float) -> None:
    """Publish as checkpoints do: what is owed is tried again."""
    ends_at_s = time.monotonic() + timeout_s
    while True:
        try:
            return store.publish(handle, cut)
        except NotApplied:
            assert time.monotonic() < ends_at_s


def test_a_recovery_whose_answer_is_lost_is_asked_for_again(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """It was sent to a NameNode that died before it answered; the one that comes back knows nothing of it.

    Where the DataNode is slow to report, the part stays owed, and the next publication finds it closed.
    """
    options = HdfsOptions(http_address=own_hdfs.http_address, lease_timeout_s=20)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    own_hdfs.pause_namenode()
    publishing = threading.Thread(target=publish_for, args=(store, handle, "truncate", 150))
    publishing.start()
    time.sleep(1)
    own_hdfs.kill_namenode()
    own_hdfs.start_namenode()
    publishing.join(170)
    assert not publishing.is_alive()
    assert finished_bytes(store, handle) == DATA


def test_a_part_whose_namenode_died_while_it_was_cut_is_never_given_up(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """It is waited for, or owed where the recovery was asked for before the DataNode reported; never missing."""
    options = HdfsOptions(http_address=own_hdfs.http_address, lease_timeout_s=10)
    calls = RestartAfterTheFirstTruncate(own_hdfs, options)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options, calls=calls)
    handle = write_part(store, DATA, tail=b"tail" * 1000)
    publish_for(store, handle, "auto", 100)
    assert calls.answers[0] is False
    assert files_in(store) == {handle.path_of(handle.name): len(DATA)}
    assert finished_bytes(store, handle) == DATA
