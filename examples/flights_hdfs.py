"""Exactly once on HDFS, shown: the flights of 2013 streamed to a NameNode that is killed, by a driver that is killed.

Run it with ``make demo-hdfs``. It needs Java 17+ and, once, Maven, which fetches Hadoop's servers. The driver is
that of ``make demo``: all it knows of HDFS is ``HADOOP_CONF_DIR`` and its URLs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flights import KILLS, begin, print_table
from flights_reader import compare, files_below
from flights_supervisor import Job, Supervisor, TheDriver
from partfile.stores.registry import open_store
from support.hdfs.cluster import HdfsCluster
from support.processes.server import MissingProgram

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from flights_supervisor import Victim

AWAY_S = 5.0
PATIENCE = {
    # Spark's own checkpoint is on HDFS too; by default Hadoop's Java client gives up on a NameNode that only restarts.
    "dfs.client.retry.policy.enabled": "true",
    "dfs.client.retry.policy.spec": "1000,60",
}


@dataclass(frozen=True, slots=True)
class TheNameNode:
    """The NameNode of a cluster, which is back some seconds after it was killed."""

    cluster: HdfsCluster
    name: str = "NameNode"

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill it, let the driver feel that for a while, and start it again."""
        self.cluster.kill_namenode()
        os.killpg(driver.pid, signal.SIGCONT)
        time.sleep(AWAY_S)
        self.cluster.start_namenode()
        self.cluster.wait_until_ready()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if nothing was lost or duplicated and every kill landed inside a batch."""
    directory, source, rng, options = begin(arguments, __doc__.splitlines()[0], Path("artifacts/demo-hdfs"))
    format = options.format
    print("starting a NameNode and a DataNode", flush=True)
    try:
        cluster = HdfsCluster(directory / "cluster", PATIENCE)
    except MissingProgram as missing:
        raise SystemExit(str(missing)) from None
    with cluster:
        os.environ["HADOOP_CONF_DIR"] = str(cluster.configuration_directory)
        checkpoint = f"{cluster.url}/spark-checkpoint"
        job = Job(
            "partfile",
            source,
            f"{cluster.url}/flights",
            checkpoint,
            directory / "partfile.log",
            format,
            options.mode,
            options.deduplicate,
        )
        victims: list[Victim] = [TheDriver(), TheNameNode(cluster), TheDriver()]
        outcome = Supervisor(job, victims, rng, poll_s=0.05).run()
        copy = directory / "copy"
        fetch(job.output, copy)
    print("\nDuckDB reads a copy of the directory and compares it with the source", flush=True)
    ours, files = compare(source.csv, copy, format), files_below(copy, format)
    print_table(("partfile",), [outcome], [ours], [files])
    print(
        f"demo-hdfs: rows={ours.rows} lost={ours.lost} duplicated={ours.duplicated} files={files.count} "
        f"kills={len(outcome.kills)}"
    )
    return 0 if ours.lost == ours.duplicated == 0 and len(outcome.kills) == KILLS else 1


def fetch(url: str, directory: Path) -> None:
    """Copy every file below a URL, staged ones too: a reader's glob must leave those out by itself."""
    with closing(open_store(url, create_base=False)) as store:
        for file in store.list():
            target = directory / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(store.read_file(file.path, file.size))


if __name__ == "__main__":
    sys.exit(main())
