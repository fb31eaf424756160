"""The HDFS store keeps the contract of the ports, on a real NameNode and DataNode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Store
    from support.hdfs.cluster import HdfsCluster


class TestHdfsStore(StoreContract):
    """Each test below a directory of its own. The lease of a dead process is soft for 60 s."""

    leases_end_with_their_process = False

    @pytest.fixture
    def reopen(self, hdfs: HdfsCluster, hdfs_directory: str) -> Callable[[], Store]:
        """Each store of a process shares its one client."""
        options = HdfsOptions(http_address=hdfs.http_address)
        return lambda: HdfsStore(hdfs.url + hdfs_directory, options)
