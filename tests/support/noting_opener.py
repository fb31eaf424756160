"""What Spark's tasks open their stores with, and by which client of which process: noted in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partfile.stores.hdfs import client as hdfs_process
from partfile.stores.registry import open_store
from partfile.stores.s3 import client as s3_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.base import Store
    from partfile.stores.hdfs.client import HdfsProcess
    from partfile.stores.s3.client import S3Process


class NotingOpener:
    """Opens the stores of Spark's tasks, and notes of each which process opened it with what, by which client.

    Args:
        log: A local file, one line of JSON a store.
    """

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __call__(self, url: str, storage_options: Mapping[str, object]) -> Store:
        """Open a store as every task does."""
        store = open_store(url, storage_options)
        store.file_exists("anything")  # Makes the client, if there is none.
        process = clients_of(url)
        note = {
            "process": os.getpid(),
            "made_in": process.process_id,
            "clients": [id(client) for client in process._clients.values()],
            "options": sorted(storage_options),
            "inherited": int(os.environ.get("PARTFILE_TEST_PARENT_CLIENT", "0")),
        }
        with open(self.log, "a") as log:  # noqa: PTH123 - runs in a worker
            log.write(json.dumps(note) + "\n")
        return store

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What was noted so far."""
        return [json.loads(line) for line in Path(self.log).read_text().splitlines()]


def clients_of(url: str) -> HdfsProcess | S3Process:
    """What this process has for the kind of store that a URL names."""
    return s3_process.this_process() if url.startswith("s3://") else hdfs_process.this_process()
