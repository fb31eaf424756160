"""Readers on HDFS: valid lengths, pending parts, open files, forks, a NameNode that does not answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal

import hdfs_native
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import NotApplied, NotReady
from partfile.readers.cut_files import CutFiles
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import new_part
from support.processes.deadline import PATIENCE_S
from support.programs.clean_forks import CleanForks
from support.sinks.life_cycle import continue_to, long_sink
from support.spark.hdfs import hdfs_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from partfile.stores.base import Cut, PartHandle
    from support.hdfs.cluster import HdfsCluster


# Readers on HDFS: files published with a sidecar end at their valid length, whatever lies behind it.

SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.string())])


@pytest.fixture
def base(hdfs: HdfsCluster, hdfs_directory: str) -> str:
    """Two buckets with one whole and one cut file each, and a staged one; rows 0 to 7 count."""
    url = hdfs.url + hdfs_directory
    with HdfsStore(url, HdfsOptions()) as store:
        for number, bucket in enumerate(("bucket=a b", "bucket=c%#é")):
            for name, tail in (("whole.json", b""), ("cut.json", b'{"id": 99}\n{"id"')):
                handle = new_part(bucket, name)
                with_tail = store.create(handle)
                first = 4 * number + (2 if tail else 0)
                with_tail.write(b"".join(b'{"id": %d}\n' % row for row in (first, first + 1)))
                valid = with_tail.persist()
                with_tail.write(tail)
                with_tail.persist()
                with_tail.close()
                store.publish(valid, "valid-length")
        staged = store.create(new_part("bucket=a b", "staged.json"))
        staged.write(b'{"id": 100}\n')
        staged.persist()
        staged.close()
    return url


def test_the_dataset_ends_at_the_valid_length(base: str) -> None:
    """partfile.read: every row that counts, once, with its bucket."""
    found = pf.read(base, schema=SCHEMA).to_table().to_pylist()
    assert sorted((row["id"], row["bucket"]) for row in found) == [
        (number, "a b" if number < 4 else "c%#é") for number in range(8)
    ]


def test_the_file_system_shows_what_counts(base: str) -> None:
    """The fsspec wrapper: no sidecar, no staged file, sizes and bytes as far as they count."""
    shown = pf.valid_length_filesystem(base)
    files = shown.find(shown.base)
    assert sorted(name.rpartition("/")[2] for name in files) == ["cut.json", "cut.json", "whole.json", "whole.json"]
    for name in files:
        assert shown.cat_file(name).count(b"\n") == 2
        assert shown.size(name) == len(shown.cat_file(name))


@pytest.mark.spark
def test_a_data_frame_ends_at_the_valid_length(
    base: str, hdfs: HdfsCluster, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """partfile.read_spark: Spark reads whole files by itself, and the executors cut the others, without a secret."""
    travelling = []

    def rows(files: CutFiles, *arguments: Any) -> DataFrame:
        travelling.append(files)
        return rows_of_files(files, *arguments)

    rows_of_files = CutFiles.rows
    monkeypatch.setattr(CutFiles, "rows", rows)
    options = {"http_address": hdfs.http_address, "delegation_token": "secret", "call_timeout_s": 50.0}
    frame = pf.read_spark(spark, base, format="json", schema="id long, bucket string", storage_options=options)
    assert [files.storage_options for files in travelling] == [{"call_timeout_s": 50.0}]
    found = frame.collect()
    assert sorted((row.id, row.bucket) for row in found) == [
        (number, "a b" if number < 4 else "c%#é") for number in range(8)
    ]


# What readers of HDFS do after a fork, with a file that is open, and before a NameNode that does not answer.

ID_SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.int64())])
BLOCK_BYTES = 1 << 20
DEADLINE_S = 2.0
SLACK_S = 30.0
"""Beyond the deadline, on a busy machine. Without a deadline nothing would end while the NameNode is away."""

FORKING = """
import os, sys
import partfile as pf
base = sys.argv[1]
shown, dataset = pf.valid_length_filesystem(base), pf.read(base)
(name, *_) = shown.find(shown.base)
file = shown.open(name)
half = file.read(1)
known = shown.info(name), dataset.to_table().num_rows, half + file.read()
file.seek(1)
if os.fork() == 0:
    rest = shown.open(name).read(1) + file.read()
    assert (shown.info(name), dataset.to_table().num_rows, rest) == known
    assert pf.read(base).count_rows() == known[1] == 6
    os._exit(17)
code = os.waitstatus_to_exitcode(os.wait()[1])
assert code == 17, code
assert dataset.to_table().num_rows == 6
"""


def write_rows(cluster: HdfsCluster, base: str) -> str:
    """Six rows in finished files; returns the URL of their base path."""
    with hdfs_sink(cluster, base).local() as out:
        out.write(pa.RecordBatch.from_pydict({"id": list(range(6)), "bucket": [number % 2 for number in range(6)]}))
    return cluster.url + base


def assert_ends_in_time(work: Callable[[], object]) -> None:
    """The call raises at its deadline."""
    began = time.monotonic()
    with pytest.raises(NotApplied, match=f"has not answered within {DEADLINE_S:g} s"):
        work()
    assert time.monotonic() - began < DEADLINE_S + SLACK_S


def test_a_forked_child_reads_through_what_it_inherited(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A file system, a dataset and an open file made before the fork; nothing waits for threads of the parent's."""
    url = write_rows(hdfs, f"{hdfs_directory}/out")
    subprocess.run([sys.executable, "-c", FORKING, url], check=True, timeout=PATIENCE_S)


def test_an_open_file_ends_in_an_error_where_its_closed_blocks_end(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """Whether its first writer holds it, one who appends, or it was renamed meanwhile; once closed it is read whole."""
    client, path = hdfs_native.Client(hdfs.url), f"{hdfs_directory}/part-0.txt"
    content = b"x" * BLOCK_BYTES + b"end"
    behind = pf.valid_length_filesystem(hdfs.url + hdfs_directory).fs
    options = hdfs_native.WriteOptions(block_size=BLOCK_BYTES)
    with client.create(path, options) as writer:
        writer.write(content)
        writer.hsync()
        opened = behind.open(path)
        assert opened.read(BLOCK_BYTES) == content[:BLOCK_BYTES]
        for position in (BLOCK_BYTES, BLOCK_BYTES + 2):
            opened.seek(position)
            with pytest.raises(
                NotReady,
                match=rf"{path}' was open when a reader saw {BLOCK_BYTES} bytes of it, and it has {len(content)}",
            ):
                opened.read(1)
    assert behind.cat_file(path) == content
    with client.append(path) as writer:
        with pytest.raises(NotReady, match=path):
            behind.cat_file(path)
        client.rename(path, f"{path}.moved")
        with pytest.raises(NotReady, match="moved since"):
            opened.read(1)
        client.rename(f"{path}.moved", path)
    assert behind.cat_file(path) == content


def test_a_namenode_that_does_not_answer_ends_a_read_in_time(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Looking, listing, opening and scanning say so within the deadline; a file is never taken for absent."""
    url = write_rows(own_hdfs, f"{own_hdfs_directory}/out")
    options = {"call_timeout_s": DEADLINE_S}
    dataset = pf.read(url, schema=ID_SCHEMA, storage_options=options)
    shown = pf.valid_length_filesystem(url, options)
    name = shown.find(shown.base)[0]
    own_hdfs.pause_namenode()
    for work in (
        lambda: shown.exists(name),
        lambda: shown.fs.exists(name),
        lambda: shown.find(shown.base),
        lambda: shown.fs.open(name),
        lambda: pf.read(url, storage_options=options),
        lambda: pf.read(url, include="pending", storage_options=options),
        dataset.to_table,
        lambda: list(dataset.to_batches()),
    ):
        assert_ends_in_time(work)
    own_hdfs.mend()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))


def test_a_datanode_that_does_not_answer_ends_a_scan_in_time(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The bytes have a deadline too; when it goes on, the same dataset is read."""
    dataset = pf.read(
        write_rows(own_hdfs, f"{own_hdfs_directory}/out"),
        schema=ID_SCHEMA,
        storage_options={"call_timeout_s": DEADLINE_S},
    )
    own_hdfs.pause_datanode()
    assert_ends_in_time(dataset.to_table)
    own_hdfs.mend()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))


def test_a_scan_waits_for_a_namenode_that_restarts(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """Whether the dataset was made before it was killed, or is made meanwhile by a client that was never connected."""
    url = write_rows(own_hdfs, f"{own_hdfs_directory}/out")
    dataset = pf.read(url, schema=ID_SCHEMA)
    own_hdfs.kill_namenode()
    timer = threading.Timer(2, own_hdfs.start_namenode)
    timer.start()
    assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(6))
    assert timer.finished.is_set()
    own_hdfs.kill_namenode()
    timer = threading.Timer(2, own_hdfs.start_namenode)
    timer.start()
    assert pf.read(url, storage_options={"call_timeout_s": PATIENCE_S}).count_rows() == 6
    assert timer.finished.is_set()


# Pending parts on HDFS are read at their valid length, by whatever name and with whatever tail each has by then.

Stage = Literal["open", "in-progress", "pending", "cut", "finished"]
TEXT = pa.schema({"value": pa.string()})
VALID_BYTES = 2 * len("row-0000\n")
"""Of each of the two parts of ``hdfs.life.seed``, which have a tail."""


class StoppedAt(HdfsStore):
    """A store that comes so far with a part and no further."""

    def __init__(self, url: str, options: HdfsOptions, stage: Stage) -> None:
        super().__init__(url, options)
        self._stage = stage

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Publish up to the staging file."""
        if self._stage == "finished":
            super().publish(handle, cut)
            return
        if self._stage == "in-progress":
            self._access.fence(handle.path_of(handle.in_progress))
        if self._stage in {"pending", "cut"}:
            self._access.move(handle.path_of(handle.in_progress), handle.path_of(handle.pending))
            self._access.fence(handle.path_of(handle.pending))
        if self._stage == "cut":
            self._cut_pending(handle, cut)
        raise NotApplied(f"stopped at {self._stage}: {handle.name}")


def sink_up_to(stage: Stage, cluster: HdfsCluster, base: str, cut: str) -> pf.FileSink:
    """The sink of ``hdfs.life``, which publishes up to a staging file."""
    options = HdfsOptions(http_address=cluster.http_address)

    def opened(url: str, _options: Any) -> HdfsStore:
        return StoppedAt(url, options, stage)

    return long_sink(cluster.url + base, cut=cut, open_store=opened)  # type: ignore[arg-type]


def values(dataset: ds.Dataset) -> list[str]:
    return sorted(dataset.to_table()["value"].to_pylist())


def numbered(count: int) -> list[str]:
    return [f"row-{number:04d}" for number in range(count)]


def parts_below(cluster: HdfsCluster, base: str) -> dict[str, int]:
    """Every file of parts with its length; its path is absolute."""
    found = hdfs_native.Client(cluster.url).list_status(base, recursive=True)
    return {status.path: status.length for status in found if not status.isdir and "/bucket=" in status.path}


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    """Processes without a client of this one's."""
    with CleanForks("support.hdfs.life") as clean:
        yield clean


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", ["truncate", "rewrite", "valid-length"])
def test_pending_parts_are_read_at_every_stage(
    cut: str, hdfs: HdfsCluster, hdfs_directory: str, forks: CleanForks
) -> None:
    """In progress and pending with tails, cut, finished.

    A dataset of each staging file gives its rows at all later ones.

    Of a part that a dead writer or a zombie holds open HDFS shows no byte; that is an error, and neither missing data
    nor fewer rows.
    """
    base, url = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/out"
    assert forks.run("seed", url=url, http_address=hdfs.http_address, cut=cut) == -signal.SIGKILL
    datasets = []
    stages: tuple[Stage, ...] = ("open", "in-progress", "pending", "cut", "finished")
    for staging_file in stages:
        sink_up_to(staging_file, hdfs, base, cut).local().open().close()
        lengths = parts_below(hdfs, base)
        if staging_file in {"in-progress", "pending"}:
            assert sorted(path.rpartition(".")[2] for path in lengths) == [staging_file, staging_file]
            assert min(lengths.values()) > VALID_BYTES, "there is no tail"
        assert values(pf.read(url, schema=TEXT)) == (numbered(4) if staging_file == "finished" else [])
        datasets.append(pf.read(url, include="pending", schema=TEXT))
        if staging_file == "open":
            with pytest.raises(NotReady, match=r"/_part-.*\.in-progress' was open .* saw 0 bytes"):
                datasets[0].to_table()
        else:
            assert [values(dataset) for dataset in datasets] == [numbered(4)] * len(datasets), staging_file
    continue_to(sink_up_to("finished", hdfs, base, cut), 12)
    assert values(pf.read(url, include="pending")) == values(pf.read(url)) == numbered(12)
    assert [values(dataset) for dataset in datasets] == [numbered(4)] * len(datasets)
