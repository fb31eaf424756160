"""However a query ends, the sink ends with it: what is open is published, or kept, or left to the next start."""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import partfile as pf
from partfile.errors import NotReady
from partfile.stores.local.store import LocalStore
from support.processes.deadline import PATIENCE_S, wait_until
from support.spark.streams import NOW, expected, finished, ids_by_duckdb, make_sink, stream, write_source

if TYPE_CHECKING:
    from collections import Counter

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


pytestmark = [pytest.mark.spark, pytest.mark.slow]

TESTS = Path(__file__).parents[1]


def start(spark: SparkSession, path: Path, write: Any, name: str = "spark", **trigger: Any) -> StreamingQuery:
    """Start plain ``foreachBatch``."""
    writer = stream(spark, path / "source").writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", str(path / name)).trigger(**(trigger or NOW)).start()


def hidden(base: Path) -> list[Path]:
    """The data files that no reader sees: staging files and pending parts."""
    # Not by Path.rglob, which fails over a directory that the sink takes away meanwhile.
    files = [Path(folder, name) for folder, _, names in os.walk(base) for name in names]
    return [path for path in files if path.name.startswith(("_", ".")) and "_partfile" not in path.parts]


def test_a_query_that_ends_by_itself_leaves_finished_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Plain foreachBatch with ``availableNow``: every row is visible once the sink has ended, and nothing is hidden."""
    rows = write_source(tmp_path / "source", 4)
    sink = make_sink(tmp_path / "out")
    sink.finish()
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert hidden(tmp_path / "out") == []


def test_a_query_that_is_stopped_ends_cleanly(spark: SparkSession, tmp_path: Path) -> None:
    """Plain ``query.stop()``, while the query waits for data."""
    rows = write_source(tmp_path / "source", 2)
    sink = make_sink(tmp_path / "out")
    written = threading.Event()

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1:
            written.set()

    query = start(spark, tmp_path, write, processingTime="0 seconds")
    assert written.wait(PATIENCE_S)
    sink.finish()
    assert finished(tmp_path / "out") == []
    query.stop()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert hidden(tmp_path / "out") == []


def test_a_stop_amid_a_batch_leaves_its_rows_to_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    """The batch was not completed: what completed before it is visible, and the next run writes it again."""
    write_source(tmp_path / "source", 2)
    sink, begun = make_sink(tmp_path / "out"), threading.Event()

    def asleep(batches: Any) -> Any:
        # A task that a stop has to cancel.
        threading.Event().wait(600)
        yield from batches

    def write(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            begun.set()
            df.sparkSession.range(1).mapInArrow(asleep, "id long").collect()
        sink.foreach_batch(df, batch_id)

    query = start(spark, tmp_path, write)
    assert begun.wait(PATIENCE_S)
    query.stop()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(30)
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(60)
    assert hidden(tmp_path / "out") == []


def test_a_query_that_fails_in_a_later_batch_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It lets go of the sink; the next run publishes what completed checkpoints hold, and goes on."""
    rows = write_source(tmp_path / "source", 4)
    sink = make_sink(tmp_path / "out")

    def write(df: DataFrame, batch_id: int) -> None:
        if batch_id == 2:
            raise RuntimeError("deliberate")
        sink.foreach_batch(df, batch_id)

    query = start(spark, tmp_path, write)
    with pytest.raises(StreamingQueryException, match="deliberate"):
        query.awaitTermination()
    sink.finish()
    assert finished(tmp_path / "out") == []
    assert sink._spark_stream()._runtime is None
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert hidden(tmp_path / "out") == []


def test_a_session_that_goes_on_ends_each_of_two_queries(spark: SparkSession, tmp_path: Path) -> None:
    """As in a notebook: two sinks at the same time, then each query again with a sink of the next cell."""
    bases = [tmp_path / "one", tmp_path / "other"]
    for first in (0, 90):
        wanted = expected(write_source(tmp_path / "source", 3, first=first))
        queries = [start(spark, tmp_path, make_sink(base).foreach_batch, f"spark {base.name}") for base in bases]
        for query in queries:
            query.awaitTermination()
        # Without a word of ours: the end comes by itself, while the session goes on.
        wait_until(partial(all_show, bases, wanted))


def all_show(bases: list[Path], wanted: Counter[int]) -> bool:
    return all(ids_by_duckdb(base) == wanted and hidden(base) == [] for base in bases)


def test_a_run_that_follows_at_once_takes_the_sink_over(spark: SparkSession, tmp_path: Path) -> None:
    """The end of the run before it finds a later run, or is done before it; each row is there once."""
    sink, rows = make_sink(tmp_path / "out"), 0
    for _ in range(4):
        rows = write_source(tmp_path / "source", 1, first=rows)
        start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert hidden(tmp_path / "out") == []


def test_parts_are_kept_for_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    """``on_stop="keep"`` holds for plain foreachBatch as well."""
    rows = write_source(tmp_path / "source", 2)
    sink = make_sink(tmp_path / "out", on_stop="keep")
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert finished(tmp_path / "out") == []
    rows = write_source(tmp_path / "source", 1, first=rows)
    sink = make_sink(tmp_path / "out")
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert len(finished(tmp_path / "out")) == 3


def test_an_end_that_fails_is_told_and_mended_by_the_next_run(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Storage refuses to publish: the log says so, ``finish`` raises it, and nothing is lost."""
    rows, refuses = write_source(tmp_path / "source", 2), [True]

    class Refusing(LocalStore):
        def publish(self, *args: Any, **options: Any) -> Any:
            if refuses[0]:
                raise NotReady("over the quota")
            return super().publish(*args, **options)

    sink = make_sink(tmp_path / "out", open_store=lambda url, _options: Refusing(url))
    with caplog.at_level(logging.WARNING, "partfile"):
        start(spark, tmp_path, sink.foreach_batch).awaitTermination()
        with pytest.raises(NotReady, match="3 parts not published"):
            sink.finish()
    assert "3 parts not published" in caplog.text
    refuses[0] = False
    rows = write_source(tmp_path / "source", 1, first=rows)
    start(spark, tmp_path, sink.foreach_batch).awaitTermination()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_query_that_is_refused_takes_no_clean_end_away(spark: SparkSession, tmp_path: Path) -> None:
    """Another query comes to the sink of one that runs, and fails; the first one ends cleanly all the same."""
    rows = write_source(tmp_path / "source", 1)
    sink, written = make_sink(tmp_path / "out"), threading.Event()

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        written.set()

    query = start(spark, tmp_path, write, processingTime="0 seconds")
    assert written.wait(PATIENCE_S)
    with pytest.raises(StreamingQueryException, match="is another one"):
        start(spark, tmp_path, sink.foreach_batch, "other").awaitTermination()
    query.stop()
    wait_until(partial(all_show, [tmp_path / "out"], expected(rows)))


@pytest.mark.parametrize("how", ["stop", "finish"])
def test_what_hears_of_progress_may_end_the_sink(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """The timer reports while it holds the sink; nothing waits for itself."""
    rows = write_source(tmp_path / "source", 1)
    reports: list[Any] = []
    ended = threading.Event()

    def told(progress: Any) -> None:
        reports.append(progress)
        if progress.batch_id is None and not ended.is_set():
            query.stop() if how == "stop" else sink.finish()
            ended.set()

    rolling = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=0.5)
    sink = make_sink(tmp_path / "out", on_progress=told, rolling=rolling)
    frame = stream(spark, tmp_path / "source")
    query = sink.start(frame, checkpoint_location=str(tmp_path / "spark"), processingTime="0 seconds")
    assert ended.wait(PATIENCE_S)
    query.stop()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_batch_function_may_ask_for_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """Also while another thread stops the query: then Spark waits for that very function."""
    rows = write_source(tmp_path / "source", 1)
    sink, written, go_on = make_sink(tmp_path / "out"), threading.Event(), threading.Event()

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        written.set()
        go_on.wait(PATIENCE_S)
        sink.finish()

    query = start(spark, tmp_path, write, processingTime="0 seconds")
    assert written.wait(PATIENCE_S)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    wait_until(lambda: not query.isActive)
    go_on.set()
    stopping.join(PATIENCE_S)
    assert not stopping.is_alive()
    sink.finish()
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_stop_that_spark_gives_up_leaves_the_end_to_the_watch(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint was to end the query, and its batch takes longer than Spark waits."""
    rows = write_source(tmp_path / "source", 2)
    sink, began, go_on = make_sink(tmp_path / "out"), threading.Event(), threading.Event()
    driver: Any = sink._spark_stream()
    really = driver.foreach_batch

    def slow(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            began.set()
            go_on.wait(PATIENCE_S)
        really(df, batch_id)

    driver.foreach_batch = slow
    spark.conf.set("spark.sql.streaming.stopTimeout", "1000")
    try:
        query = sink.start(stream(spark, tmp_path / "source"), checkpoint_location=str(tmp_path / "spark"))
        assert began.wait(PATIENCE_S)
        with pytest.raises(Exception, match=r"(?i)timeout"):
            query.stop_with_savepoint(tmp_path / "saved")
    finally:
        spark.conf.unset("spark.sql.streaming.stopTimeout")
        go_on.set()
    query.awaitTermination()
    query.finish()
    assert hidden(tmp_path / "out") == []
    assert set(ids_by_duckdb(tmp_path / "out")) <= set(range(rows))
    assert len(ids_by_duckdb(tmp_path / "out")) >= 30


def test_a_forked_child_asks_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """At its exit it would wait for the parent's query, over the parent's connection to the JVM."""
    write_source(tmp_path / "source", 1)
    sink, written = make_sink(tmp_path / "out"), threading.Event()

    def write(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        written.set()

    query = start(spark, tmp_path, write, processingTime="0 seconds")
    assert written.wait(PATIENCE_S)
    child = multiprocessing.get_context("fork").Process(target=sink.finish)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    assert query.awaitTermination(1) is False
    query.stop()
    sink.finish()
    assert len(finished(tmp_path / "out")) == 3


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.spark.streams import build_session, make_sink, stream, NOW
spark = build_session()
sink = make_sink({base!r}, format={format!r})
writer = stream(spark, Path({source!r})).writeStream.foreachBatch(sink.foreach_batch)
query = writer.option("checkpointLocation", {checkpoint!r}).trigger(**NOW).start()
query.awaitTermination()
{last}
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("format", ["json", "parquet"])
@pytest.mark.parametrize("last", ["", "spark.stop()", "sys.exit(3)", "raise KeyError('of the program')"])
def test_a_program_that_exits_at_once_waits_for_the_end(tmp_path: Path, format: str, last: str) -> None:
    """Also where it stops Spark first, whose jobs would have encoded the staging files."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    program = PROGRAM.format(
        tests=str(TESTS),
        base=str(base),
        format=format,
        source=str(tmp_path / "source"),
        checkpoint=str(tmp_path / "spark"),
        last=last,
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == {"": 0, "spark.stop()": 0, "sys.exit(3)": 3}.get(last, 1), done.stderr
    if format == "json":
        assert ids_by_duckdb(base) == expected(rows), done.stderr
    else:
        found = sorted(number for path in finished(base) for number in pq.ParquetFile(path).read()["id"].to_pylist())
        assert found == list(range(rows)), done.stderr
    assert hidden(base) == []
