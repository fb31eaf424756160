"""What happens to a sink between batches and after them: fenced by its timer, ended by a rival, failed."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import partfile as pf
from partfile.bucketers.base import BucketContext
from partfile.bucketers.builtin import resolve_bucketer
from partfile.errors import ConfigError, Fenced, NotReady
from partfile.sink.coordinator import Runtime
from partfile.sink.spark.identity import QueryRun, is_active
from partfile.sink.spark.stream import SparkStream, StartedQuery
from partfile.sink.spark.write_job import by_bucket
from partfile.stores.local.store import LocalStore
from support.processes.deadline import wait_until
from support.spark.streams import (
    LONG,
    expected,
    finished,
    ids_by_duckdb,
    make_sink,
    run_without_end,
    stream,
    write_source,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Clock:
    """The wall clock, until it is told otherwise."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ms


def start(spark: SparkSession, path: Path, write: Any) -> StreamingQuery:
    writer = stream(spark, path / "source").writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(path / "checkpoint")).trigger(availableNow=True).start()


def watched(sink: pf.FileSink, query: StreamingQuery) -> StartedQuery:
    """What ``sink.start`` makes of a query."""
    driver: SparkStream = sink._spark_stream()
    return StartedQuery(driver._watch_query(query), driver, ends_itself=True)


def take_over(base: Path) -> Runtime:
    rival = Runtime(make_sink(base).settings, "numbers")
    rival.coordinator.start(lambda _position: None, 1)
    return rival


def go_on(rival: Runtime) -> None:
    """Complete a checkpoint, as only the owner of the checkpoint log can."""
    rival.coordinator.close_all(2, keep=True)
    rival.close()


@pytest.fixture
def timers() -> Callable[[], list[str]]:
    """The idle timers that began in this test; those of other tests' sinks may still be there."""
    before = set(threading.enumerate())
    return lambda: [
        thread.name for thread in set(threading.enumerate()) - before if thread.name == "partfile-idle-timer"
    ]


def test_a_driver_fenced_by_its_timer_stops(
    spark: SparkSession, tmp_path: Path, timers: Callable[[], list[str]]
) -> None:
    """Its next batch fails with Fenced, instead of beginning an epoch that fences the healthy driver."""
    write_source(tmp_path / "source", 3)
    clock = Clock()
    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=0.4)
    sink = make_sink(tmp_path / "out", rolling=rolling, clock=clock)
    rivals: list[Runtime] = []

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        rivals.append(take_over(tmp_path / "out"))
        clock.now_ms += 10**6
        while timers():
            threading.Event().wait(0.05)

    with pytest.raises(StreamingQueryException, match="Fenced"):
        start(spark, tmp_path, write).awaitTermination()
    assert len(rivals) == 1
    go_on(rivals[0])


def test_an_idle_stream_shows_its_rows_after_storage_failed(spark: SparkSession, tmp_path: Path) -> None:
    """The timer begins an epoch once it is well again; no batch comes meanwhile, and the next one goes on in it."""
    base, now, fails = tmp_path / "out", [1_000_000], [False]
    rows = write_source(tmp_path / "source", 1)
    started: list[int] = []

    class Failing(LocalStore):
        def create_file(self, path: str, data: bytes) -> None:
            if fails[0] and path.endswith("_metadata"):
                fails.append(True)
                raise NotReady("not now", path=path)
            super().create_file(path, data)

    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=0.4)
    sink = make_sink(
        base,
        rolling=rolling,
        clock=lambda: now[0],
        open_store=lambda url, _options: Failing(url),
        open_store_in_tasks=lambda url, _options: LocalStore(url),
        on_progress=lambda told: started.append(told.restore_ms > 0),
    )

    def later(holds: Callable[[], bool]) -> None:
        def passes() -> bool:
            now[0] += 10_000
            return holds()

        wait_until(passes)

    frame, checkpoint = stream(spark, tmp_path / "source"), str(tmp_path / "spark")
    with sink.start(frame, checkpoint_location=checkpoint, processingTime="0 seconds") as query:
        query.processAllAvailable()
        fails[0] = True
        later(lambda: len(fails) > 2)
        assert finished(base) == []
        fails[0] = False
        later(lambda: ids_by_duckdb(base) == expected(rows))
        rows = write_source(tmp_path / "source", 1, first=rows)
        query.processAllAvailable()
        later(lambda: ids_by_duckdb(base) == expected(rows))
        assert query.isActive
    assert sum(started) == 1, "the batch has begun an epoch of its own"
    assert ids_by_duckdb(base) == expected(rows)


def test_a_run_is_active_until_it_ends(spark: SparkSession, tmp_path: Path) -> None:
    """Only the very run that was asked about, and in whatever session of its application."""
    write_source(tmp_path / "source", 1)
    frame, checkpoint = stream(spark, tmp_path / "source"), str(tmp_path / "spark")
    runs: list[QueryRun] = []
    for _ in range(2):
        with make_sink(tmp_path / "out").start(
            frame, checkpoint_location=checkpoint, processingTime="0 seconds"
        ) as query:
            run = QueryRun(os.getpid(), str(query.query.id), str(query.query.runId))
            assert is_active(spark, run)
            assert is_active(spark.newSession(), run)
            assert not is_active(None, run)
            assert not is_active(spark, replace(run, query_id=str(uuid.uuid4())))
            assert not any(is_active(spark, before) for before in runs)
        assert not is_active(spark, run)
        runs.append(run)
    assert runs[0].query_id == runs[1].query_id
    assert runs[0].run_id != runs[1].run_id


def test_a_clean_end_does_not_take_the_sink_from_a_rival(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that lost its epoch ends by Fenced, and the other one's parts stay as they are."""
    rows = write_source(tmp_path / "source", 1)
    sink = make_sink(tmp_path / "out", rolling=LONG)
    run_without_end(sink, stream(spark, tmp_path / "source"), str(tmp_path / "checkpoint"))
    side = sink._spark_stream()
    assert side._watch is not None
    side.release()
    rival = take_over(tmp_path / "out")
    with pytest.raises(Fenced, match="not the newest any more"):
        side.finish(side._watch.query_id)
    go_on(rival)
    with make_sink(tmp_path / "out").start(
        stream(spark, tmp_path / "source"),
        checkpoint_location=str(tmp_path / "checkpoint"),
        availableNow=True,
    ):
        pass
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_second_checkpoint_location_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would take the one in the options, whatever its case, and the argument would be ignored."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source")
    with pytest.raises(ConfigError, match="besides checkpoint_location"):
        make_sink(tmp_path / "out").start(
            frame, checkpoint_location=str(tmp_path / "a"), options={"CheckpointLocation": str(tmp_path / "b")}
        )


def test_a_query_that_failed_lets_go_of_the_sink(
    spark: SparkSession, tmp_path: Path, timers: Callable[[], list[str]]
) -> None:
    """No timer goes on publishing, and nothing more is published now."""
    write_source(tmp_path / "source", 2)
    sink = make_sink(tmp_path / "out", rolling=LONG)

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1:
            raise RuntimeError("deliberate")

    query = start(spark, tmp_path, write)
    with (
        pytest.raises(StreamingQueryException, match="deliberate"),
        watched(sink, query),
    ):
        pass
    wait_until(lambda: timers() == [])
    assert finished(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["my col", "a-b", "int"])
def test_column_names_are_not_parsed_before_a_shuffle(spark: SparkSession, name: str) -> None:
    """The schema of the marked rows is passed as it is, not spelled out and parsed."""
    df = spark.createDataFrame([(1, 2), (3, 4)], "a int, b int").toDF(name, "other")
    bucketer = resolve_bucketer(lambda batch: pa.array(["x"] * len(batch)))
    rows = by_bucket(df, bucketer, BucketContext(batch_time_ms=1), 2).collect()
    assert sorted(map(tuple, rows)) == [(1, 2), (3, 4)]


def test_a_sink_used_for_another_query_after_the_first_failed(spark: SparkSession, tmp_path: Path) -> None:
    """The other query is refused, for its rows are none of this checkpoint log's.

    The first one goes on where it stood.
    """
    rows = write_source(tmp_path / "source", 3)
    sink = make_sink(tmp_path / "out", rolling=LONG)
    failed: list[int] = []

    def write(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1 and not failed:
            failed.append(batch_id)
            raise RuntimeError("deliberate")
        sink.foreach_batch(df, batch_id)

    with pytest.raises(StreamingQueryException, match="deliberate"):
        start(spark, tmp_path, write).awaitTermination()
    writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(sink.foreach_batch)
    other = writer.option("checkpointLocation", str(tmp_path / "other")).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="on_new_query"):
        other.start().awaitTermination()
    with watched(sink, start(spark, tmp_path, write)):
        pass
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_stream_without_columns_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hands no rows of it to Python, so they would be gone without a word."""
    write_source(tmp_path / "source", 1)
    writer = (
        stream(spark, tmp_path / "source").select().writeStream.foreachBatch(make_sink(tmp_path / "out").foreach_batch)
    )
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="no columns"):
        query.awaitTermination()


def test_an_older_spark_checkpoint_with_other_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A file source's offset is a number, and the same number may stand for other files than it did."""
    write_source(tmp_path / "source", 2)
    sink = make_sink(tmp_path / "out", rolling=LONG)
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")

    def put_back() -> None:
        shutil.rmtree(tmp_path / "checkpoint")
        shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")

    write_source(tmp_path / "source", 1, first=1000)
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    put_back()
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()  # the same file under the same number: a replay
    put_back()
    (tmp_path / "source" / "00002.json").rename(tmp_path / "source" / "other.json")
    with pytest.raises(StreamingQueryException, match="other offsets"):
        start(spark, tmp_path, sink.foreach_batch).awaitTermination()
