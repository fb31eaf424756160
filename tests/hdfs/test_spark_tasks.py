"""What Spark's tasks have of HDFS: a client of their own process, the RPC port alone, no secret of the driver's."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hdfs_native
import pytest

import partfile as pf
from support.spark.hdfs import hdfs_sink, ids_on_hdfs
from support.spark.openers import NotingOpener
from support.spark.streams import expected, run, run_without_end, stream, write_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from support.hdfs.cluster import HdfsCluster


pytestmark = pytest.mark.spark
TESTS = Path(__file__).parents[1]
SECRET = "a-delegation-token-of-the-drivers"  # noqa: S105 - HDFS has never heard of it


class Trap:
    """A port that takes connections and counts them."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Count until closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def trap() -> Iterator[Trap]:
    listening = Trap()
    thread = threading.Thread(target=listening.serve, daemon=True)
    thread.start()
    try:
        yield listening
    finally:
        listening.close()
        thread.join()


def test_each_worker_makes_one_client_after_the_fork_and_keeps_it(
    hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path
) -> None:
    """The daemon that forks the workers has a client already: theirs is another one, made once, used by every task."""
    rows, opener = write_source(tmp_path / "source", 4), NotingOpener(tmp_path / "log")
    job = {
        "base": f"{hdfs.url}{hdfs_directory}/out",
        "source": str(tmp_path / "source"),
        "checkpoint": str(tmp_path / "spark"),
        "opener_log": opener.log,
        "spark": {"spark.python.daemon.module": "support.programs.daemon_with_client"},
    }
    environment = {
        **os.environ,
        "PARTFILE_TEST_STORE": json.dumps([hdfs.url, {}]),
        "PYTHONPATH": f"{TESTS}:{os.environ['PYTHONPATH']}",
    }
    command = [sys.executable, str(TESTS / "support" / "programs" / "kill_driver.py"), json.dumps(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/out") == expected(rows)
    notes = opener.notes
    assert all(note["inherited"] for note in notes)
    for worker, group in groupby(sorted(notes, key=lambda note: int(note["process"])), lambda note: note["process"]):
        used = list(group)
        assert [note["made_in"] for note in used] == [worker] * len(used)
        assert len({tuple(note["clients"]) for note in used}) == 1
        assert len(used[0]["clients"]) == 1
    # Two stores a task; with a worker for each task none would have been used twice.
    assert max(sum(note["process"] == one["process"] for note in notes) for one in notes) > 2


def test_a_task_never_calls_webhdfs(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path
) -> None:
    """Executors may have the RPC port alone: what they know of the web server is wrong here, and nothing fails.

    Between two runs every open part gets a tail, which the driver cuts: it alone has the right address.
    """
    write_source(tmp_path / "source", 2)
    opener, base, checkpoint = NotingOpener(tmp_path / "log"), f"{hdfs_directory}/out", str(tmp_path / "spark")
    with trap() as listening:
        sink = hdfs_sink(
            hdfs,
            base,
            cut="truncate",
            storage_options={"config": {"dfs.namenode.http-address": listening.address}},
            open_store_in_tasks=opener,
        )
        run_without_end(sink, stream(spark, tmp_path / "source"), checkpoint)
        assert append_to_staged(hdfs, base, b"a tail that no checkpoint vouches for") > 0
        rows = write_source(tmp_path / "source", 2, first=60)
        run(sink, stream(spark, tmp_path / "source"), checkpoint)
        assert listening.connections == 0
    assert {tuple(note["options"]) for note in opener.notes} == {("config",)}
    assert ids_on_hdfs(hdfs, base) == expected(rows)


@pytest.mark.fault("D18")
def test_a_secret_reaches_neither_tasks_nor_logs_nor_checkpoints(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor any repr or error, whatever is wrong with the option."""
    rows, opener = write_source(tmp_path / "source", 2), NotingOpener(tmp_path / "log")
    secret = {"delegation_token": SECRET, "ca_file": None}
    with caplog.at_level(logging.DEBUG):
        sink = hdfs_sink(hdfs, f"{hdfs_directory}/out", storage_options=secret, open_store_in_tasks=opener)
        run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert ids_on_hdfs(hdfs, f"{hdfs_directory}/out") == expected(rows)
    assert {tuple(note["options"]) for note in opener.notes} == {()}
    shown = [repr(sink), repr(sink.settings), caplog.text, *metadata(hdfs, hdfs_directory)]
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize(
    "options",
    [
        {"storage_options": SECRET},
        {"storage_options": {"delegation_token": SECRET}, "hash_partitions": 2},
        {"storage_options": {"delegation_token": [SECRET]}},
        {"storage_options": {"delegation_tokn": SECRET}},
    ],
)
def test_an_error_shows_no_secret(options: dict[str, Any]) -> None:
    """Neither its message nor the chain of errors behind it."""
    with pytest.raises(pf.ConfigError) as raised, pf.FileSink("hdfs://nowhere:1/out", uid="u", **options).local():
        pass
    error: BaseException | None = raised.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def append_to_staged(hdfs: HdfsCluster, base: str, data: bytes) -> int:
    """Write on in every part in progress, as a zombie might; returns how many there are."""
    client = hdfs_native.Client(hdfs.url)
    staged = [one.path for one in client.list_status(base, recursive=True) if one.path.endswith(".in-progress")]
    for path in staged:
        with client.append(path) as writer:
            writer.write(data)
    return len(staged)


def metadata(hdfs: HdfsCluster, directory: str) -> list[str]:
    """Every byte of the sink's own files."""
    client = hdfs_native.Client(hdfs.url)
    paths = [status.path for status in client.list_status(directory, recursive=True) if not status.isdir]
    texts = [client.read(path).read().decode() for path in paths if "/_partfile/" in path and "_marker" not in path]
    assert texts
    return texts
