"""Spark streams into a real HDFS for the tests: their sinks, and what another reader finds there afterwards."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hdfs_native

from partfile.errors import StoreError
from partfile.sink.operator import SinkOperator
from partfile.sink.states import SubtaskSnapshot
from support.hdfs.life import Taking
from support.processes.deadline import wait_until
from support.spark.streams import Once, calling_operator, close_sockets, make_sink
from support.spark.watcher import Polling

if TYPE_CHECKING:
    import pyarrow as pa

    import partfile as pf
    from support.hdfs.cluster import HdfsCluster


def hdfs_sink(cluster: HdfsCluster, base: str, **options: Any) -> pf.FileSink:
    """A sink of numbered rows; ``base`` is an absolute path on HDFS."""
    client = {"http_address": cluster.http_address} | options.pop("storage_options", {})
    return make_sink(cluster.url + base, storage_options=client, **options)


def visible_files(cluster: HdfsCluster, base: str) -> list[str]:
    """The files that a reader of ``base`` sees, as absolute paths: nothing hidden, nor below what is hidden."""
    client = hdfs_native.Client(cluster.url)
    try:
        paths = [status.path for status in client.list_status(base, recursive=True) if not status.isdir]
    except FileNotFoundError:
        return []
    return sorted(path for path in paths if not is_hidden(path.removeprefix(base)))


def is_hidden(path: str) -> bool:
    """Whether readers leave a file out by its name, or by that of a directory it is in."""
    return any(step.startswith(("_", ".")) for step in path.split("/"))


def ids_on_hdfs(cluster: HdfsCluster, base: str) -> Counter[int]:
    """The ids in every file that a reader of ``base`` sees."""
    client = hdfs_native.Client(cluster.url)
    found: Counter[int] = Counter()
    for path in visible_files(cluster, base):
        found.update(json.loads(line)["id"] for line in client.read(path).read().splitlines())
    return found


class Consumer(Polling):
    """Moves each file away as soon as it is visible, to the directory that ``taken_by`` says.

    Args:
        cluster: The HDFS.
        base: The base of a sink, an absolute path.
    """

    def __init__(self, cluster: HdfsCluster, base: str) -> None:
        # A rename is hdfs-native's own, whose errors are these; done or not, the next look goes on.
        super().__init__(pause_s=0.05, away=(StoreError, OSError, RuntimeError))
        self._taking = Taking(cluster.url + base, cluster.http_address)
        self.takes = 0
        """How many looks have found a file."""

    def _look(self) -> None:
        self.takes += self._taking.take()


class HeldByAZombie(Once):
    """A bucketer whose worker is killed while a copy of it lives on, which took its parts and holds their leases.

    When the given row first comes by, the copy resumes the task's parts by a client of its own, writes the rows and
    makes them durable; then the worker dies. The copy waits for the file ``{flag}.go``, writes the rows once more, and
    leaves what it did in ``{flag}.end``.

    Args:
        flag: A file that remembers that it happened.
        row: The id that sets it off.
    """

    def __init__(self, flag: Path, row: int) -> None:
        super().__init__(flag, "held", row)

    def _act(self, batch: pa.RecordBatch) -> None:
        worker = calling_operator()
        if os.fork() == 0:
            try:
                self._live_on(worker, batch)
            finally:
                os._exit(0)
        wait_until(Path(f"{self.flag}.held").exists)
        # Killed rather than failed, and before it has opened anything itself.
        os.kill(os.getpid(), signal.SIGKILL)

    def _live_on(self, worker: SinkOperator, batch: pa.RecordBatch) -> None:
        close_sockets()
        zombie = SinkOperator(worker._store, worker._description)
        share = SubtaskSnapshot(
            subtask=worker.context.subtask, open=tuple(worker._assigned.values()), max_count=worker._max_count
        )
        zombie.open(worker.context, share)
        zombie.write(batch)
        resumed = {part.part.name for part in share.open} & {part.part.name for part in zombie.snapshot(0).open}
        Path(f"{self.flag}.held").write_text(str(len(resumed)))
        wait_until(Path(f"{self.flag}.go").exists)
        try:
            zombie.write(batch)
            zombie.snapshot(0)
            end = "durable"
        except StoreError as error:
            end = type(error).__name__
        partial = Path(f"{self.flag}.partial")
        partial.write_text(json.dumps({"resumed": len(resumed), "end": end}))
        partial.rename(f"{self.flag}.end")
