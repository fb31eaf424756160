"""What Spark's tasks open their stores with: noted in a file, or failing once in the middle of an encode."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partfile.errors import NotReady
from partfile.stores.hdfs import client as hdfs_process
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import open_store
from partfile.stores.s3 import client as s3_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.base import PartHandle, PartStream, Store
    from partfile.stores.hdfs.client import HdfsProcess
    from partfile.stores.local.stream import LocalPartStream
    from partfile.stores.s3.client import S3Process


# What Spark's tasks open their stores with, and by which client of which process: noted in a file.


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


class ReadsNoted:
    """Opens the stores of Spark's tasks, and notes each whole file that a task reads.

    Args:
        log: A local file, one path below the base of its store a line.
    """

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __call__(self, url: str, storage_options: Mapping[str, object]) -> Store:
        """Open a store as every task does."""
        store = open_store(url, storage_options)
        really = store.read_file

        def read_file(path: str, max_bytes: int) -> bytes:
            with open(self.log, "a") as log:  # noqa: PTH123 - runs in a worker
                log.write(f"{path}\n")
            return really(path, max_bytes)

        store.read_file = read_file  # type: ignore[method-assign]
        return store

    def reads(self) -> Counter[str]:
        """How often each file was read so far."""
        return Counter(Path(self.log).read_text().splitlines()) if Path(self.log).exists() else Counter()


def clients_of(url: str) -> HdfsProcess | S3Process:
    """What this process has for the kind of store that a URL names."""
    return s3_process.this_process() if url.startswith("s3://") else hdfs_process.this_process()


# Stores of Spark's tasks in which something bad happens once, in the middle of the encode of a staging file.

_HALF_A_FILE = b"PAR1" + bytes(100)


class FaultyEncodes:
    """Opens local stores for tasks. The encode that comes first in all of them fails, each later one is left alone.

    Args:
        flag: A file that remembers that it happened; it holds the id of the process that it happened to.
        deed: ``kill`` (SIGKILL of the worker), ``refuse`` (storage is not ready), or ``wait`` (to be killed).
    """

    def __init__(self, flag: Path, deed: str) -> None:
        self.flag = str(flag)
        self.deed = deed

    def __call__(self, url: str, _storage_options: Mapping[str, object]) -> LocalStore:
        """Open a store."""
        return _Store(url, self)

    def act(self, stream: PartStream) -> None:
        """Begin the file, and then do the deed if it is the first one."""
        try:
            flag = os.open(self.flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        if self.deed == "refuse":
            os.close(flag)
            raise NotReady("a deliberate refusal")
        stream.write(_HALF_A_FILE)
        os.write(flag, str(os.getpid()).encode())
        os.close(flag)
        if self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


class FatalBucket:
    """Opens local stores for tasks whose worker dies whenever it encodes a staging file of one bucket.

    Args:
        bucket: Of the parts that are too much for a worker.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    def __call__(self, url: str, _storage_options: Mapping[str, object]) -> LocalStore:
        """Open a store."""
        return _FatalStore(url, self.bucket)


class _FatalStore(LocalStore):
    def __init__(self, url: str, bucket: str) -> None:
        super().__init__(url)
        self._bucket = bucket

    def create(self, handle: PartHandle) -> LocalPartStream:
        if handle.bucket == self._bucket and not handle.is_staging_file:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create(handle)


class _Store(LocalStore):
    def __init__(self, url: str, faults: FaultyEncodes) -> None:
        super().__init__(url)
        self._faults = faults

    def create(self, handle: PartHandle) -> LocalPartStream:
        stream = super().create(handle)
        if not handle.is_staging_file:
            self._faults.act(stream)
        return stream
