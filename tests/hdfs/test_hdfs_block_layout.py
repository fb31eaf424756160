"""Settings that a real NameNode must have heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hdfs_native

from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster


def test_files_are_stored_as_hadoops_properties_say(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """hdfs-native itself takes the defaults of the NameNode."""
    options = HdfsOptions(config={"dfs.blocksize": "64m", "dfs.replication": "2"})
    with HdfsStore(hdfs.url + hdfs_directory, options) as store:
        store.create_file("empty", b"")
    status = hdfs_native.Client(hdfs.url).get_file_info(f"{hdfs_directory}/empty")
    assert (status.blocksize, status.replication) == (64 << 20, 2)
