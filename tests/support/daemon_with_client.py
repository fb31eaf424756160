"""A Spark worker daemon that has used HDFS before it forks any worker, as a site's own daemon module might.

``spark.python.daemon.module=daemon_with_client``; the URL of HDFS is in ``PARTFILE_TEST_HDFS``.
"""

from __future__ import annotations

import os

from pyspark.daemon import manager

from partfile.filesystems.hdfs_process import this_process
from partfile.filesystems.opening import open_store

if __name__ == "__main__":
    with open_store(os.environ["PARTFILE_TEST_HDFS"], {}) as store:
        store.list_names("")
    (client,) = this_process()._clients.values()
    os.environ["PARTFILE_TEST_PARENT_CLIENT"] = str(id(client))
    manager()
