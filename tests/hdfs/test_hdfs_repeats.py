"""What is not done again after the NameNode refused for a while: hdfs-native does only the rest of it, or too much."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import NotReady
from partfile.stores.hdfs.client import HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import finished_bytes, new_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_cluster import HdfsCluster

BLOCK_BYTES = 1 << 20
DATA = bytes(range(256)) * (BLOCK_BYTES // 512)
LEAVES_AFTER_S = 2.0


class SafeModeBefore(HdfsCalls):
    """Puts the NameNode into safe mode before a call is made, and lets it leave some seconds later."""

    def __init__(self, cluster: HdfsCluster, name: str, url: str, options: HdfsOptions) -> None:
        super().__init__(url, options)
        self._cluster = cluster
        self.is_armed = False
        self.leaving: threading.Thread | None = None
        original: Callable[..., Any] = getattr(self, name)

        def then_call(*arguments: Any) -> Any:
            if self.is_armed:
                self.is_armed = False
                cluster.administer("-safemode", "enter")
                self.leaving = threading.Thread(target=self._leave)
                self.leaving.start()
            return original(*arguments)

        setattr(self, name, then_call)

    def _leave(self) -> None:
        time.sleep(LEAVES_AFTER_S)
        self._cluster.administer("-safemode", "leave")


def open_with(cluster: HdfsCluster, directory: str, call: str) -> tuple[HdfsStore, SafeModeBefore]:
    options = HdfsOptions(http_address=cluster.http_address, block_size_bytes=BLOCK_BYTES)
    calls = SafeModeBefore(cluster, call, cluster.url, options)
    return HdfsStore(cluster.url + directory, options, calls=calls), calls


def test_a_write_that_needs_a_block_in_safe_mode_is_never_repeated(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """A part of it may have gone to the block before: done again, those rows would be there twice."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "write")
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    calls.is_armed = True
    with pytest.raises(NotReady, match=r"[Ss]afe mode"):
        stream.write(DATA * 2)
    assert calls.leaving is not None
    calls.leaving.join()
    stream.close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


def test_a_part_that_is_closed_in_safe_mode_can_be_resumed(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """hdfs-native tells the NameNode of the last block once; closing again would never end."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "close")
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    calls.is_armed = True
    stream.close()
    store.resume(handle).close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


def test_a_link_whose_close_falls_into_safe_mode_is_created(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The coordinator goes on as if nothing had been."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "close")
    calls.is_armed = True
    store.create_file("chk-1/_metadata", DATA)
    assert store.read_file("chk-1/_metadata", len(DATA)) == DATA
    assert store.list_names("chk-1") == ["_metadata"]
