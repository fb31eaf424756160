"""Savepoints of Spark streams: stopped, moved, resumed with other partitions, taken while the stream goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.errors import CheckpointMismatch, ConfigError, PartfileError, RecoveryRefused, StoreError
from support.sinks.recovery import recover_all
from support.spark.streams import expected, finished, ids_by_duckdb, make_sink, stream, write_source
from support.spark.watcher import Watcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import partfile as pf


pytestmark = [pytest.mark.spark, pytest.mark.slow]
NOW = {"availableNow": True}


def run(spark: SparkSession, sink: pf.FileSink, root: Path, partitions: int) -> None:
    """Stream everything that is there, with a clean end."""
    frame = stream(spark, root / "source").repartition(partitions)
    with sink.start(frame, checkpoint_location=str(root / "spark"), trigger=NOW) as query:
        query.awaitTermination()


def stop_after_everything(spark: SparkSession, sink: pf.FileSink, root: Path, partitions: int) -> str:
    """Stream everything that is there, then end with a savepoint."""
    frame = stream(spark, root / "source").repartition(partitions)
    query = sink.start(frame, checkpoint_location=str(root / "spark"), trigger=NOW)
    query.awaitTermination()
    where: str = query.stop_with_savepoint(root / "savepoints")
    return where


@pytest.mark.item("SP-13", "SP-23", "SP-26")
def test_the_example_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A stream stopped in the middle, its savepoint moved, resumed with seven partitions instead of three.

    In small: a third of its files.
    """
    small = "import sys, savepoint; savepoint.FILES, savepoint.FILES_BEFORE = 8, 3; sys.exit(savepoint.main())"
    done = subprocess.run(
        [sys.executable, "-c", small, "--output", str(tmp_path / "work")],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1] == "savepoint: lost=0 duplicated=0"


@pytest.mark.item("SP-07", "SP-13", "SP-14", "SP-23")
@pytest.mark.parametrize(("before", "after"), [(1, 8), (8, 1), (3, 2), (2, 5)])
def test_another_number_of_partitions(spark: SparkSession, tmp_path: Path, before: int, after: int) -> None:
    """Onto a fresh base path, from a copy that was moved: every row once over both, nothing left staged."""
    middle = write_source(tmp_path / "source", 2)
    where = stop_after_everything(spark, make_sink(tmp_path / "out"), tmp_path, before)
    assert ids_by_duckdb(tmp_path / "out") == expected(middle)
    moved = shutil.move(where, tmp_path / "moved")
    rows = write_source(tmp_path / "source", 2, first=middle)
    run(spark, make_sink(tmp_path / "fresh", restore_from=moved), tmp_path, after)
    assert ids_by_duckdb(tmp_path / "out") + ids_by_duckdb(tmp_path / "fresh") == expected(rows)
    assert not list(tmp_path.glob("*/**/*.in-progress"))


@pytest.mark.item("SP-13")
def test_the_same_base_goes_on_after_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped with a savepoint and started again on it, with and without the option: one history, no row twice."""
    rows = 0
    options: dict[str, Any] = {}
    with Watcher(tmp_path / "out"):
        for _ in range(3):
            rows = write_source(tmp_path / "source", 1, first=rows)
            where = stop_after_everything(spark, make_sink(tmp_path / "out", **options), tmp_path, 2)
            assert ids_by_duckdb(tmp_path / "out") == expected(rows)
            options = {"restore_from": where}
    rows = write_source(tmp_path / "source", 1, first=rows)
    run(spark, make_sink(tmp_path / "out"), tmp_path, 2)
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    write_source(tmp_path / "source", 1, first=rows)
    with pytest.raises(Exception, match="has checkpoints of its own"):
        run(spark, make_sink(tmp_path / "out", **options), tmp_path, 2)
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


@pytest.mark.item("SP-26", "SP-01")
def test_a_savepoint_between_two_batches(spark: SparkSession, tmp_path: Path) -> None:
    """The query goes on; without a Spark job everything so far is published; the savepoint outlives what follows."""
    rows = write_source(tmp_path / "source", 4)
    sink = make_sink(tmp_path / "out", savepoint_dir=tmp_path / "savepoints")
    taken: list[tuple[str, int, int]] = []
    with pytest.raises(PartfileError, match="no query that runs"):
        sink.savepoint()

    def with_a_savepoint(df: Any, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1:
            jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
            where = sink.savepoint()
            assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == jobs
            taken.append((where, ids_by_duckdb(tmp_path / "out").total(), len(finished(tmp_path / "out"))))

    writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(with_a_savepoint)
    writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True).start().awaitTermination()
    ((where, published, _files),) = taken
    assert published == 60
    run(spark, make_sink(tmp_path / "out"), tmp_path, 1)
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
    assert (Path(where) / "_metadata").exists()
    # Spark's own checkpoint is two batches further: going on from the savepoint elsewhere would lose their rows.
    write_source(tmp_path / "source", 1, first=rows)
    with pytest.raises(CheckpointMismatch, match="is complete only up to batch"):
        run(spark, make_sink(tmp_path / "fresh", restore_from=where), tmp_path, 1)
    assert finished(tmp_path / "fresh") == []


@pytest.mark.item("SP-04", "SP-06")
def test_a_query_goes_on_when_its_savepoint_cannot_be_made(spark: SparkSession, tmp_path: Path) -> None:
    """No directory, or one that cannot be written: an error before the stop, and the query is still active."""
    rows = write_source(tmp_path / "source", 1)
    (tmp_path / "file").write_text("x")
    sink = make_sink(tmp_path / "out")
    trigger = {"processingTime": "0 seconds"}
    frame = stream(spark, tmp_path / "source")
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger=trigger) as query:
        query.processAllAvailable()
        with pytest.raises(ConfigError, match="savepoint_dir"):
            query.stop_with_savepoint()
        with pytest.raises((ConfigError, StoreError), match="file"):
            query.stop_with_savepoint(tmp_path / "file")
        assert query.isActive
        assert query.savepoint(tmp_path / "savepoints")
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


@pytest.mark.item("SP-14")
def test_a_later_stream_is_refused_by_the_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """The error holds the command that goes back, which names the parts; so does that of a plain sink on this log."""
    write_source(tmp_path / "source", 1)
    where = stop_after_everything(spark, make_sink(tmp_path / "out"), tmp_path, 2)
    write_source(tmp_path / "source", 1, first=30)
    run(spark, make_sink(tmp_path / "out"), tmp_path, 2)
    with pytest.raises(RecoveryRefused, match=r"(?s)partfile recover .*/out --uid numbers --restore-from"):
        make_sink(tmp_path / "out", restore_from=where).local().open()
    with pytest.raises(RecoveryRefused, match=r"(?s)later parts hold rows .*part-"):
        recover_all(tmp_path / "out", restore_from=where)


@pytest.mark.item("SP-13")
def test_a_query_that_wrote_nothing_saves_only_its_own_state(spark: SparkSession, tmp_path: Path) -> None:
    """Stopped before a batch came: its own last state is saved; that of another query is neither saved nor fenced."""
    rows = write_source(tmp_path / "source", 1)
    run(spark, make_sink(tmp_path / "out"), tmp_path, 1)

    def started(checkpoint: str, base: str = "out") -> Any:
        frame, trigger = stream(spark, tmp_path / "source"), {"processingTime": "1 hour"}
        return make_sink(tmp_path / base).start(frame, checkpoint_location=str(tmp_path / checkpoint), trigger=trigger)

    query = started("spark")
    query.processAllAvailable()
    assert (Path(query.stop_with_savepoint(tmp_path / "savepoints")) / "_metadata").exists()
    checkpoints = sorted(tmp_path.glob("out/_partfile/numbers/chk-*"))
    # A query that has begun elsewhere; a new one is refused by the start.
    started("other", "elsewhere").stop()
    with pytest.raises(PartfileError, match="another query"):
        started("other").stop_with_savepoint(tmp_path / "savepoints")
    assert sorted(tmp_path.glob("out/_partfile/numbers/chk-*")) == checkpoints
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


def test_a_checkpoint_log_is_written_by_spark_or_by_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    """Their positions mean nothing to each other: rows would be skipped or written twice."""
    rows = write_source(tmp_path / "source", 1)
    where = stop_after_everything(spark, make_sink(tmp_path / "out"), tmp_path, 1)
    for sink in (make_sink(tmp_path / "out"), make_sink(tmp_path / "fresh", restore_from=where)):
        with pytest.raises(CheckpointMismatch, match="written by Spark query"):
            sink.local().open()
    plain = make_sink(tmp_path / "plain").local().open()
    plain.write(pa.RecordBatch.from_pydict({"id": [1], "bucket": [1]}), position=1)
    taken = plain.stop_with_savepoint(tmp_path / "savepoints")
    write_source(tmp_path / "source", 1, first=rows)
    with pytest.raises(Exception, match="written by plain Python"):
        run(spark, make_sink(tmp_path / "fresh", restore_from=taken), tmp_path, 1)
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)
