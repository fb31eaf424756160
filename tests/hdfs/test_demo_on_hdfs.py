"""What the demo on HDFS looks at from outside: Spark's books, and a copy of everything that was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hdfs_native

from flights_hdfs import fetch
from flights_supervisor import BatchLog

if TYPE_CHECKING:
    from pathlib import Path

    from hdfs_cluster import HdfsCluster


def test_a_batch_runs_between_its_offsets_and_its_commit(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """On HDFS as on the local disk."""
    log, client = BatchLog(hdfs.url + hdfs_directory), hdfs_native.Client(hdfs.url)
    assert (log.running(), log.committed()) == (None, 0)
    client.create(f"{hdfs_directory}/offsets/.3.tmp").close()
    client.create(f"{hdfs_directory}/offsets/3").close()
    assert (log.running(), log.committed()) == (3, 0)
    client.create(f"{hdfs_directory}/commits/3").close()
    assert (log.running(), log.committed()) == (None, 4)
    assert log.typical_seconds() < 60


def test_a_copy_has_every_file_with_every_byte(hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path) -> None:
    """Hidden ones too, so that it is the reader who leaves them out."""
    client = hdfs_native.Client(hdfs.url)
    for name in ("day/part.json.gz", "day/_part.in-progress"):
        with client.create(f"{hdfs_directory}/{name}") as writer:
            writer.write(name.encode())
    fetch(hdfs.url + hdfs_directory, tmp_path / "copy")
    found = {str(path.relative_to(tmp_path / "copy")): path.read_text() for path in tmp_path.rglob("*part*")}
    assert found == {name: name for name in ("day/part.json.gz", "day/_part.in-progress")}
