"""The archive of the classes of Hadoop's servers, with which they start in half the time; as ``support.spark.classes``.

Usage: python -m support.hdfs.classes  (make does it, once, for ``make test-all``; it takes some 15 seconds)
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

from support.processes.server import MissingProgram, wait_until_gone

ARCHIVE = Path(sys.prefix) / "hadoop-classes.jsa"
"""Empty where this Java could make none, or where there is no Maven to fetch the servers with."""


def options() -> tuple[str, ...]:
    """What each Java of Hadoop's starts with; one that finds another Java or other jars starts as it would without."""
    usable = ARCHIVE.exists() and ARCHIVE.stat().st_size
    return (f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable") if usable else ()


def main() -> None:
    """Run both servers once; the NameNode has most of the classes, and writes the archive when it ends."""
    # Not before: the cluster asks for the options above.
    from support.hdfs.cluster import HdfsCluster  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as room:
        archive = Path(room) / ARCHIVE.name
        try:
            with HdfsCluster(Path(room) / "hdfs", java_options=(f"-XX:ArchiveClassesAtExit={archive}",)) as cluster:
                # In this order, for whichever ends last writes the archive.
                for process_id in reversed(cluster.process_ids):
                    os.kill(process_id, signal.SIGTERM)
                    wait_until_gone([process_id])
        except MissingProgram as error:
            print(f"{error}\nWithout it the tests on HDFS cannot run.")  # noqa: T201 - for make.
        if not archive.exists():
            archive.touch()
        archive.rename(ARCHIVE)


if __name__ == "__main__":
    main()
