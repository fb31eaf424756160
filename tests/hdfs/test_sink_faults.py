"""A sink on HDFS while servers, tasks and drivers die: it goes on or can be started again, and nothing is lost."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException

import partfile as pf
from partfile.errors import Fenced, StoreError
from support.processes.deadline import PATIENCE_S, wait_until
from support.spark.hdfs import HeldByAZombie, hdfs_sink, ids_on_hdfs
from support.spark.streams import NOW, expected, run, stream, write_source

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from support.hdfs.cluster import HdfsCluster


AWAY_S = 20.0
DEADLINE_S = 3.0
SLACK_S = 30.0
"""Beyond the deadlines, on a busy machine. Without deadlines nothing would end while the NameNode is away."""
IMPATIENT = {"call_timeout_s": DEADLINE_S, "lease_timeout_s": DEADLINE_S}


def rows_from(first: int, count: int = 6) -> pa.RecordBatch:
    """Numbered rows in two buckets."""
    ids = list(range(first, first + count))
    return pa.RecordBatch.from_pydict({"id": ids, "bucket": [one % 2 for one in ids]})


@contextmanager
def abandoned(sink: pf.FileSink) -> Iterator[pf.LocalSink]:
    """A run that ends without an end, as by a crash: what is open stays staged."""
    out = sink.local()
    out.open()
    yield out
    out.close()


@pytest.mark.spark
def test_a_task_is_retried_while_its_first_attempt_lives_on_with_the_lease(
    spark: SparkSession, hdfs: HdfsCluster, hdfs_directory: str, tmp_path: Path
) -> None:
    """The retry leaves the part alone, the commit fences the zombie, and what the zombie writes later never counts."""
    rows, flag = write_source(tmp_path / "source", 4), tmp_path / "flag"
    base, progress, ends = f"{hdfs_directory}/out", list[pf.BatchProgress](), list[dict[str, Any]]()
    sink = hdfs_sink(hdfs, base, bucketer=HeldByAZombie(flag, row=75), on_progress=progress.append)

    def then_the_zombie(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 2:
            Path(f"{flag}.go").touch()
            wait_until(Path(f"{flag}.end").exists)
            ends.append(json.loads(Path(f"{flag}.end").read_text()))

    writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(then_the_zombie)
    query = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(**NOW).start()
    query.awaitTermination()
    run(hdfs_sink(hdfs, base), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert [one["resumed"] > 0 for one in ends] == [True], "the zombie held nothing"
    assert ends[0]["end"] != "durable"
    assert sum(one.parts_abandoned for one in progress) > 0
    assert ids_on_hdfs(hdfs, base) == expected(rows)


@pytest.mark.spark
def test_a_stream_waits_for_a_namenode_that_is_back_after_20_seconds(
    spark: SparkSession, own_hdfs: HdfsCluster, own_hdfs_directory: str, tmp_path: Path, rng: random.Random
) -> None:
    """Killed at a random instant of a batch: tasks and driver wait for it, and the query never notices."""
    rows, base = write_source(tmp_path / "source", 4), f"{own_hdfs_directory}/out"
    sink = hdfs_sink(own_hdfs, base, storage_options={"call_timeout_s": 120.0})
    timers = [
        threading.Timer(delay_s, deed)
        for delay_s, deed in ((rng.uniform(0, 0.5), own_hdfs.kill_namenode), (AWAY_S, own_hdfs.start_namenode))
    ]

    def with_a_kill(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            for timer in timers:
                timer.start()
        sink.foreach_batch(df, batch_id)

    began = time.monotonic()
    writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(with_a_kill)
    query = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(**NOW).start()
    query.awaitTermination()
    assert time.monotonic() - began > AWAY_S
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert ids_on_hdfs(own_hdfs, base) == expected(rows)


@pytest.mark.spark
def test_a_stream_whose_datanode_dies_goes_on_when_it_is_back(
    spark: SparkSession, own_hdfs: HdfsCluster, own_hdfs_directory: str, tmp_path: Path
) -> None:
    """There is nowhere to write, so the query may fail; started again, as a supervisor does, it loses nothing."""
    rows, base = write_source(tmp_path / "source", 4), f"{own_hdfs_directory}/out"
    timer = threading.Timer(5, own_hdfs.start_datanode)
    sink = hdfs_sink(own_hdfs, base)

    def with_a_kill(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and not timer.is_alive() and not timer.finished.is_set():
            own_hdfs.kill_datanode()
            timer.start()
        sink.foreach_batch(df, batch_id)

    def supervised() -> None:
        writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(with_a_kill)
        writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(**NOW).start().awaitTermination()

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            supervised()
            break
        except PySparkException:
            assert time.monotonic() < deadline
            time.sleep(1)
    assert timer.finished.is_set()
    run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert ids_on_hdfs(own_hdfs, base) == expected(rows)


def test_a_namenode_that_is_down_at_a_restore_is_named_in_time(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The error comes within the deadline and says what does not answer; when it is back, the same start works."""
    base = f"{own_hdfs_directory}/out"
    # What is to succeed may take long on a busy machine.
    patient, sink = hdfs_sink(own_hdfs, base), hdfs_sink(own_hdfs, base, storage_options=IMPATIENT)
    with abandoned(patient) as out:
        out.write(rows_from(0))
        out.checkpoint(position=6)
    own_hdfs.kill_namenode()
    began = time.monotonic()
    with pytest.raises(StoreError) as raised, sink.local():
        pass
    assert time.monotonic() - began < DEADLINE_S + SLACK_S
    assert own_hdfs.url in str(raised.value)
    assert "NameNode" in raised.value.hint
    own_hdfs.mend()
    with patient.local() as out:
        assert out.position == 6
        out.write(rows_from(6))
    assert ids_on_hdfs(own_hdfs, base) == expected(12)


def test_a_batch_in_safe_mode_waits_until_it_is_over(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The checkpoint is completed as if nothing had been."""
    base, done = f"{own_hdfs_directory}/out", list[int]()
    with hdfs_sink(own_hdfs, base, storage_options={"call_timeout_s": PATIENCE_S}).local() as out:
        out.write(rows_from(0))
        out.checkpoint(position=6)

        def batch() -> None:
            out.write(rows_from(6))
            done.append(out.checkpoint(position=12).checkpoint_id)

        with own_hdfs.safe_mode():
            thread = threading.Thread(target=batch)
            thread.start()
            thread.join(2)
            assert not done
        thread.join(PATIENCE_S)
        assert done
    assert ids_on_hdfs(own_hdfs, base) == expected(12)


def test_a_batch_in_safe_mode_without_patience_says_so(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """The error names safe mode; the next start goes on from the last completed checkpoint."""
    base = f"{own_hdfs_directory}/out"
    sink = hdfs_sink(own_hdfs, base, storage_options=IMPATIENT)
    with abandoned(sink) as out:
        out.write(rows_from(0))
        out.checkpoint(position=6)
        with own_hdfs.safe_mode():
            out.write(rows_from(6))
            with pytest.raises(StoreError, match=r"[Ss]afe mode"):
                out.checkpoint(position=12)
    with hdfs_sink(own_hdfs, base).local() as out:
        assert out.position == 6
        out.write(rows_from(6))
    assert ids_on_hdfs(own_hdfs, base) == expected(12)


def test_of_two_coordinators_the_second_fences_the_first(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """The first one, whose rows are durable and whose parts are untouched, cannot create the checkpoint after them."""
    base = f"{hdfs_directory}/out"
    with abandoned(hdfs_sink(hdfs, base, rolling=pf.RollingPolicy(on_checkpoint=True))) as first:
        first.write(rows_from(0))
        first.checkpoint(position=6)
        first.write(rows_from(1000))
        with hdfs_sink(hdfs, base).local() as second:
            assert second.position == 6
            second.write(rows_from(6))
            with pytest.raises(Fenced):
                first.checkpoint(position=12)
    assert ids_on_hdfs(hdfs, base) == Counter(range(12))
