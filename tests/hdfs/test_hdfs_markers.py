"""Markers on HDFS whose holder has died: their lease can be had after a minute, and until then nobody waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from partfile.stores.hdfs.store import HdfsStore

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster


def test_a_marker_that_was_refused_once_is_not_waited_for_again(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Each batch asks for the marker: after a driver's death each would otherwise lose half a second for a minute."""
    base = hdfs.url + hdfs_directory
    with HdfsStore(base) as holder, HdfsStore(base) as store:
        assert holder.hold_marker("_marker")
        seconds = []
        for _ in range(3):
            began = time.monotonic()
            assert not store.hold_marker("_marker")
            seconds.append(time.monotonic() - began)
        assert seconds[0] > 0.2
        assert max(seconds[1:]) < 0.2
        holder.close()
        assert store.hold_marker("_marker")
