"""Real Spark streams into files: exactly once, few files, whatever the partitions do."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from pyspark.errors.exceptions.base import PySparkException

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError, UnsupportedTypeError
from support.spark.streams import (
    BUCKETS,
    SCHEMA,
    Once,
    active_runs,
    expected,
    finished,
    ids_by_duckdb,
    make_sink,
    run,
    run_without_end,
    stream,
    write_source,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


# A real Spark stream into local files: exactly once, few files, whatever the partitions do.

NOW = {"availableNow": True}


def run_to_the_end(
    spark: SparkSession, sink: pf.FileSink, root: Path, source: str = "source", checkpoint: str = "spark"
) -> None:
    """Stream everything that is there, with a clean end."""
    frame = stream(spark, root / source)
    with sink.start(frame, checkpoint_location=str(root / checkpoint), trigger=NOW) as query:
        query.awaitTermination()


def run_function(spark: SparkSession, function: Any, root: Path, checkpoint: str = "spark") -> None:
    """Stream everything that is there through a foreachBatch function, and do not wait for the end of its sink."""
    writer = stream(spark, root / "source").writeStream.foreachBatch(function)
    writer.option("checkpointLocation", str(root / checkpoint)).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.spark
def test_many_batches_become_few_files_that_every_reader_reads(spark: SparkSession, tmp_path: Path) -> None:
    """Six batches of two partitions leave one part a bucket and partition at most; three readers see each row once."""
    rows = write_source(tmp_path / "source", 6)
    base = tmp_path / "out"
    run_to_the_end(spark, make_sink(base), tmp_path)
    assert ids_by_duckdb(base) == expected(rows)
    assert sorted(row.id for row in spark.read.json(str(base)).collect()) == list(range(rows))
    dataset = pyarrow.dataset.dataset(base, format="json", partitioning="hive")
    assert sorted(dataset.to_table().column("id").to_pylist()) == list(range(rows))
    assert len(finished(base)) <= 2 * BUCKETS


@pytest.mark.slow
@pytest.mark.spark
def test_hash_distribution_leaves_one_file_a_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """With distribution="hash" each bucket is open in one subtask alone, by a Spark key and by a Python bucketer."""
    rows = write_source(tmp_path / "source", 4)
    for name, bucketer in (("column", pf.HiveBucketer("bucket")), ("python", Once(tmp_path / "flag", "nothing", -1))):
        base = tmp_path / name
        run_to_the_end(
            spark,
            make_sink(base, distribution="hash", hash_partitions=3, bucketer=bucketer),
            tmp_path,
            checkpoint=f"c-{name}",
        )
        assert ids_by_duckdb(base) == expected(rows)
        assert len(finished(base)) == BUCKETS


@pytest.mark.spark
def test_a_process_that_just_ends_leaves_parts_that_the_next_run_publishes(spark: SparkSession, tmp_path: Path) -> None:
    """It loses nothing: its parts stay staged, and a later run finalizes and publishes them."""
    write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    run_without_end(make_sink(base), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert finished(base) == []
    rows = write_source(tmp_path / "source", 1, first=90)
    run_to_the_end(spark, make_sink(base), tmp_path)
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.spark
@pytest.mark.fault("K9", "D5")
def test_a_replayed_batch_is_recognised(spark: SparkSession, tmp_path: Path) -> None:
    """Spark forgets that a batch was committed and sends it again: it is skipped, and the stream goes on."""
    write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    progress: list[pf.BatchProgress] = []
    run_to_the_end(spark, make_sink(base), tmp_path)
    forget_commit(tmp_path / "spark", 2)
    rows = write_source(tmp_path / "source", 2, first=90)
    run_to_the_end(spark, make_sink(base, on_progress=progress.append), tmp_path)
    assert next((one.batch_id, one.replayed) for one in progress if one.batch_id is not None) == (2, True)
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.spark
@pytest.mark.parametrize("sinks", ["one sink", "a sink a call"])
def test_a_second_call_in_one_batch_fails_the_query(spark: SparkSession, tmp_path: Path, sinks: str) -> None:
    """A batch split into two DataFrames loses no row in silence, whatever the job group and the number of sinks."""
    write_source(tmp_path / "source", 1)
    base = tmp_path / "out"
    kept = make_sink(base)

    def split(df: DataFrame, batch_id: int) -> None:
        df.sparkSession.sparkContext.setJobGroup("the user's", "own")
        for part in ("id % 2 = 0", "id % 2 = 1"):
            (kept if sinks == "one sink" else make_sink(base)).foreach_batch(df.where(part), batch_id)

    # The next run repeats the batch: its first call is a repetition, its second none.
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"(?s)a second time.*unionByName"):
            run_function(spark, split, tmp_path)
    assert {row % 2 for row in ids_by_duckdb(base)} == {0}


@pytest.mark.spark
@pytest.mark.parametrize("place", ["out", "out/checkpoint", "file:{root}/out/day=1/c"])
def test_a_checkpoint_of_spark_where_readers_look_is_refused(spark: SparkSession, tmp_path: Path, place: str) -> None:
    """Readers would count its files as rows; below a hidden directory they do not."""
    write_source(tmp_path / "source", 1)
    location = place.format(root=tmp_path) if ":" in place else str(tmp_path / place)
    frame = stream(spark, tmp_path / "source")
    with pytest.raises(ConfigError, match=r"(?s)checkpoint_location=.* lies visibly below the base"):
        make_sink(tmp_path / "out").start(frame, checkpoint_location=location)
    assert not (tmp_path / "out").exists()
    hidden = str(tmp_path / "out" / "_partfile" / "spark")
    with make_sink(tmp_path / "out").start(frame, checkpoint_location=hidden, trigger=NOW) as query:
        query.awaitTermination()
    assert len(finished(tmp_path / "out")) > 0


@pytest.mark.spark
def test_a_checkpoint_of_spark_in_a_home_directory_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Spark would make a directory called ~."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source")
    with pytest.raises(ConfigError, match=r"checkpoint_location='~/c' begins with ~"):
        make_sink(tmp_path / "out").start(frame, checkpoint_location="~/c")


@pytest.mark.spark
@pytest.mark.parametrize("place", ["_partfile", "_partfile/numbers", "_partfile/numbers/spark"])
def test_a_checkpoint_of_spark_among_those_of_the_sink_is_refused(
    spark: SparkSession, tmp_path: Path, place: str
) -> None:
    """Spark's files would lie among the sink's; the hint names a place that is hidden as well."""
    write_source(tmp_path / "source", 1)
    sink = make_sink(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"(?s)among the sink's own checkpoints.*checkpoint_location='.*out/_spark'"):
        sink.start(stream(spark, tmp_path / "source"), checkpoint_location=f"{tmp_path}/out/{place}")
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_a_driver_without_pandas_names_the_command(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark needs it for Python functions, and says so in the middle of the first batch otherwise."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"(?s)[Pp]andas.*pip install 'partfile\[spark\]'"):
        make_sink(tmp_path / "out").start(frame, checkpoint_location=str(tmp_path / "spark"))
    assert not (tmp_path / "spark").exists()


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    for path in (checkpoint / "commits").glob(f"*{batch_id}*"):
        path.unlink()


@pytest.mark.spark
@pytest.mark.fault("D6")
def test_the_same_batch_with_other_offsets_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A batch id whose offsets changed behind our back is neither skipped nor written."""
    write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    run_to_the_end(spark, make_sink(base), tmp_path)
    checkpoint = tmp_path / "spark"
    forget_commit(checkpoint, 2)
    offsets = checkpoint / "offsets" / "2"
    text = offsets.read_text()
    assert json.loads(text.splitlines()[2])["logOffset"] == 2
    offsets.write_text(text.replace('"logOffset":2', '"logOffset":1'))
    (checkpoint / "offsets" / ".2.crc").unlink(missing_ok=True)
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        run_to_the_end(spark, make_sink(base), tmp_path)


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault("D8")
@pytest.mark.parametrize("copied", [True, False])
def test_the_batch_of_a_repartitioned_checkpoint_is_no_gap(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, copied: bool
) -> None:
    """Spark copies its last entry and runs no batch; an entry with a time of its own is a batch that the sink lacks."""
    base, checkpoint = tmp_path / "out", tmp_path / "spark"

    def go_on() -> None:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        try:
            run(make_sink(base), stream(spark, tmp_path / "source").dropDuplicates(["id"]), str(checkpoint))
        finally:
            spark.conf.unset("spark.sql.streaming.stateStore.providerClass")

    write_source(tmp_path / "source", 2)
    go_on()
    spark._streamingCheckpointManager.repartition(str(checkpoint), 3)
    entry = checkpoint / "offsets" / "2"
    assert entry.read_text().splitlines()[2:] == (checkpoint / "offsets" / "1").read_text().splitlines()[2:]
    if not copied:
        entry.write_text(re.sub(r'"batchTimestampMs":\d+', '"batchTimestampMs":1', entry.read_text()))
        (checkpoint / "offsets" / ".2.crc").unlink()
    rows = write_source(tmp_path / "source", 1, first=60)
    if copied:
        go_on()
        assert "batch 2 was never run" in caplog.text
        assert caplog.text.count("was never run") == 1
        assert ids_by_duckdb(base) == expected(rows)
    else:
        with pytest.raises(CheckpointMismatch, match="the batches between would be missing"):
            go_on()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.fault("D7")
def test_a_lost_spark_checkpoint_is_refused_and_can_be_adopted(spark: SparkSession, tmp_path: Path) -> None:
    """A new query on a used uid is refused with the way out in the message; adopting works and retires the old one."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    run_to_the_end(spark, make_sink(base), tmp_path)
    old = json.loads((tmp_path / "spark" / "metadata").read_text())["id"]
    shutil.copytree(tmp_path / "spark", tmp_path / "old-spark")
    shutil.rmtree(tmp_path / "spark")
    rows = write_source(tmp_path / "second", 2, first=rows)
    with pytest.raises(CheckpointMismatch, match=f"on_new_query='adopt:{old}'"):
        run_to_the_end(spark, make_sink(base), tmp_path, source="second")
    # Spark keeps what it has noted of a query's beginning, whatever the next start says.
    assert not (tmp_path / "spark").exists()
    assert ids_by_duckdb(base) == expected(90)
    run_to_the_end(spark, make_sink(base, on_new_query=f"adopt:{old}"), tmp_path, source="second")
    assert ids_by_duckdb(base) == expected(rows)
    write_source(tmp_path / "source", 1, first=5000)
    with pytest.raises(CheckpointMismatch, match="replaced"):
        run_to_the_end(spark, make_sink(base), tmp_path, checkpoint="old-spark")
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.spark
def test_a_mistaken_query_does_not_fence_the_healthy_one(spark: SparkSession, tmp_path: Path) -> None:
    """A second query on the uid, while the first one runs, is refused before it takes a checkpoint.

    The first one goes on.
    """
    base, sink, rows = tmp_path / "out", make_sink(tmp_path / "out"), write_source(tmp_path / "source", 4)
    write_source(tmp_path / "other", 1, first=9000)
    refused = []

    def healthy(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1:
            before = sorted(path.name for path in (base / "_partfile" / "numbers").iterdir())
            with pytest.raises(CheckpointMismatch, match="is another one") as caught:
                run_to_the_end(spark, make_sink(base), tmp_path, source="other", checkpoint="mistaken")
            refused.append(caught)
            assert sorted(path.name for path in (base / "_partfile" / "numbers").iterdir()) == before

    run_function(spark, healthy, tmp_path)
    assert refused
    run_to_the_end(spark, sink, tmp_path)
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.spark
@pytest.mark.fault("D8")
def test_an_empty_batch_without_partitions_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A batch with no partition at all is a checkpoint that carries every open part."""
    rows = write_source(tmp_path / "source", 5)
    base, sink = tmp_path / "out", make_sink(tmp_path / "out")

    def sometimes_empty(df: DataFrame, batch_id: int) -> None:
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), SCHEMA)
        sink.foreach_batch(empty if batch_id in {1, 3} else df, batch_id)

    run_function(spark, sometimes_empty, tmp_path)
    run_to_the_end(spark, make_sink(base), tmp_path)
    kept = [row for row in range(rows) if row // 30 not in {1, 3}]
    assert ids_by_duckdb(base) == Counter(kept)
    assert len(finished(base)) <= 2 * BUCKETS


@pytest.mark.slow
@pytest.mark.spark
def test_open_parts_follow_a_changing_number_of_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """From 4 partitions to 2 to 7: open parts are carried and dealt out again, no row is lost or doubled."""
    rows = write_source(tmp_path / "source", 6)
    base, sink = tmp_path / "out", make_sink(tmp_path / "out")
    run_function(spark, lambda df, n: sink.foreach_batch(df.repartition([4, 4, 2, 2, 7, 7][n]), n), tmp_path)
    run_to_the_end(spark, make_sink(base), tmp_path)
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.drawn
@pytest.mark.spark
@pytest.mark.parametrize("deed", ["raise", "kill"])
@pytest.mark.fault("D1", "D4")
def test_a_task_that_fails_once_is_retried_without_a_trace(spark: SparkSession, tmp_path: Path, deed: str) -> None:
    """A task that raises, or whose worker is killed, in the middle of a batch: the retry's rows count, once."""
    rows = write_source(tmp_path / "source", 5)
    base = tmp_path / "out"
    progress: list[pf.BatchProgress] = []
    bucketer = Once(tmp_path / "flag", deed, row=75)
    run_to_the_end(spark, make_sink(base, bucketer=bucketer, on_progress=progress.append), tmp_path)
    assert (tmp_path / "flag").exists()
    assert ids_by_duckdb(base) == expected(rows)
    assert sum(one.parts_abandoned for one in progress) > 0


@pytest.mark.spark
def test_a_sink_object_is_used_again_after_its_query_failed(spark: SparkSession, tmp_path: Path) -> None:
    """The next run of the query on the same object restores and goes on."""
    rows = write_source(tmp_path / "source", 4)
    base, sink, poison = tmp_path / "out", make_sink(tmp_path / "out"), [True]

    def poisoned(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 1 and poison.pop():
            raise RuntimeError("deliberate failure after the batch")

    with pytest.raises(PySparkException, match="deliberate"):
        run_function(spark, poisoned, tmp_path)
    run_to_the_end(spark, sink, tmp_path)
    assert ids_by_duckdb(base) == expected(rows)


@pytest.mark.slow
@pytest.mark.spark
def test_kept_parts_are_resumed_after_a_clean_stop(spark: SparkSession, tmp_path: Path) -> None:
    """With on_stop="keep" a restart appends to the parts of the run before, so that restarts make no files."""
    base = tmp_path / "out"
    for first in (0, 60, 120):
        rows = write_source(tmp_path / "source", 2, first=first)
        run_to_the_end(spark, make_sink(base, on_stop="keep"), tmp_path)
        assert finished(base) == []
    run_to_the_end(spark, make_sink(base, on_stop="publish"), tmp_path)
    rows = write_source(tmp_path / "source", 1, first=180)
    run_to_the_end(spark, make_sink(base), tmp_path)
    assert ids_by_duckdb(base) == expected(rows)
    assert len(finished(base)) <= 4 * BUCKETS


# A real Spark stream to a file system of fsspec: exactly once, although every part rolls at each checkpoint.


@pytest.mark.slow
@pytest.mark.spark
def test_a_stream_through_a_failing_task_is_read_exactly_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks reach ``dir`` by its URL; a task that fails leaves nothing visible; the start says what is weaker."""
    rows = write_source(tmp_path / "source", 3)
    base = tmp_path / "out"
    url = f"dir::file://{base}"
    with caplog.at_level(logging.WARNING, "partfile"):
        sink = make_sink(url, bucketer=Once(tmp_path / "flag", "raise", 40))
        run_without_end(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))
    assert "every part rolls at each checkpoint" in caplog.text
    assert ids_by_duckdb(base) == expected(rows)
    before = finished(base)
    rows = write_source(tmp_path / "source", 2, first=rows)
    run(
        make_sink(url, bucketer=Once(tmp_path / "flag", "raise", 40)),
        stream(spark, tmp_path / "source"),
        str(tmp_path / "spark"),
    )
    assert ids_by_duckdb(base) == expected(rows)
    assert set(before) < set(finished(base))


@pytest.mark.spark
def test_the_memory_of_a_process_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """What a task wrote there would be gone with it, so no batch begins."""
    write_source(tmp_path / "source", 1)
    with pytest.raises(ConfigError, match="other processes"):
        run(make_sink("memory://out"), stream(spark, tmp_path / "source"), str(tmp_path / "spark"))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("expression", "options", "told"),
    [
        ("map(1, 'a')", {}, "UnsupportedTypeError: .*Column 'odd' .*a map key of type int32"),
        ("parse_json('1')", {}, "UnsupportedTypeError: .*Column 'odd' .*variant"),
        ("interval 1 day", {"format": "orc"}, "UnsupportedTypeError: .*Column 'odd' .*duration"),
        ("1", {"bucketer": pf.HiveBucketer("day")}, "ConfigError: .*column 'day'.*the columns are .*odd"),
        ("1", {"bucketer": pf.HiveBucketer("day"), "distribution": "hash"}, "ConfigError: .*column 'day'"),
        ("1", {"bucketer": pf.DateTimeBucketer(column="odd")}, "ConfigError: .*'odd'"),
        ("make_interval(1)", {}, "UnsupportedTypeError: .*Column 'odd' has the type interval"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_a_job(
    spark: SparkSession,
    tmp_path: Path,
    expression: str,
    options: dict[str, Any],
    told: str,
) -> None:
    """Start refuses them and begins no query; foreach_batch refuses them, and runs no job. Neither makes a file."""
    before = active_runs(spark)
    write_source(tmp_path / "source", 1)
    base = tmp_path / "out"
    sink = make_sink(base, **{"bucketer": None, **options})
    frame = stream(spark, tmp_path / "source").selectExpr("*", f"{expression} as odd")
    error, words = told.split(": ")
    with pytest.raises(getattr(pf, error), match=f"(?s){words}"):
        sink.start(frame, checkpoint_location=str(tmp_path / "started"), trigger=NOW)
    assert active_runs(spark) <= before
    query = frame.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", str(tmp_path / "plain"))
    with pytest.raises(PySparkException, match=f"(?s){told}"):
        query.trigger(availableNow=True).start().awaitTermination()
    # A job begins only after the restore, which makes the sink's directory.
    assert not base.exists()


@pytest.mark.spark
@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_a_column_that_spark_hands_no_rows_of_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """By its name, with the call that renames it; no query begins."""
    before = active_runs(spark)
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").withColumnRenamed("id", name)
    with pytest.raises(ConfigError, match=r"(?s)called 'a.b'.*withColumnRenamed\('a.b', 'a_b'\)"):
        make_sink(tmp_path / "out").start(frame, checkpoint_location=str(tmp_path / "spark"), trigger=NOW)
    assert active_runs(spark) <= before


@pytest.mark.spark
def test_columns_that_differ_in_capitals_alone_are_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """Spark refuses them with the first batch, beside its checkpoint; a session that tells them apart writes both."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").selectExpr("*", "id as ID")
    sink = make_sink(tmp_path / "out", format="json")
    with pytest.raises(ConfigError, match=r"(?s)two columns are called 'ID'.*toDF\('id', 'bucket', 'ID_2'\)"):
        sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger=NOW)
    assert not (tmp_path / "spark").exists()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        run(sink, frame, str(tmp_path / "spark"))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert finished(tmp_path / "out")


@pytest.mark.spark
def test_timestamps_with_and_without_a_zone_pass_the_check(spark: SparkSession, tmp_path: Path) -> None:
    """Both are written."""
    write_source(tmp_path / "source", 1)
    source = stream(spark, tmp_path / "source")
    sink = make_sink(tmp_path / "out", format="parquet")
    timed = source.selectExpr("*", "timestamp'2024-01-01 00:00:00' as at", "timestamp_ntz'2024-01-01 00:00:00' as wall")
    with sink.start(timed, checkpoint_location=str(tmp_path / "spark"), trigger=NOW):
        pass
    assert finished(tmp_path / "out")


@pytest.mark.spark
@pytest.mark.parametrize(
    "odd", ["interval '1' month", "interval '1-2' year to month", "make_interval(1)", "array(interval '1' month)"]
)
def test_types_of_which_spark_hands_over_no_rows_are_refused_before_a_job(
    spark: SparkSession, tmp_path: Path, odd: str
) -> None:
    """By the column's name, with the cast that mends it; no query begins."""
    before = active_runs(spark)
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").selectExpr("*", f"{odd} as odd")
    sink = make_sink(tmp_path / "out")
    with pytest.raises(UnsupportedTypeError, match=r"'odd' has the type .*interval.*\n.*cast\('string'\)"):
        sink.start(frame, checkpoint_location=str(tmp_path / "spark"), trigger=NOW)
    assert active_runs(spark) <= before
    assert not (tmp_path / "spark").exists()


@pytest.mark.spark
def test_what_is_no_stream_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A DataFrame of a batch, and one of another library's, are told what to use."""
    sink = make_sink(tmp_path / "out")
    for frame, words in ((spark.range(3), "a DataFrame that is no stream"), (pyarrow.table({"id": [1]}), "a Table")):
        with pytest.raises(ConfigError, match=f"(?s)not {words}.*sink.local"):
            sink.start(frame, checkpoint_location=str(tmp_path / "spark"))
    assert not (tmp_path / "out").exists()


# Hive-style buckets are the very directories that Spark's own partitionBy makes.

TEXTS = [
    "plain",
    "a b",
    "x/y",
    "é",
    "100%",
    "a=b",
    "q?",
    "#",
    "'",
    '"',
    "*",
    ":",
    "[",
    "]",
    "{",
    "}",
    "^",
    "\\",
    "\x7f",
    "\n",
    "",
]


@pytest.mark.slow
@pytest.mark.spark
def test_partition_directories_equal_sparks_own(spark: SparkSession, tmp_path: Path) -> None:
    """For texts, numbers, booleans, dates, timestamps, decimals and nulls, row by row."""
    rows = spark.createDataFrame([(number, text) for number, text in enumerate([*TEXTS, None])], "n int, text string")
    frame = rows.selectExpr(
        "n",
        "text",
        "IF(n % 5 = 0, NULL, n * -1) AS whole",
        "n % 2 = 0 AS truth",
        "date_add(DATE'1969-12-25', n) AS day",
        "timestamp_micros(n * 1000500) AS instant",
        "CAST(n * 1.25 AS decimal(10,3)) AS price",
    )
    for column in ("text", "whole", "truth", "day", "instant", "price"):
        spark_base, our_base = tmp_path / f"spark-{column}", tmp_path / f"ours-{column}"
        two = frame.select("n", column)
        two.coalesce(1).write.partitionBy(column).json(str(spark_base))
        with pf.FileSink(our_base, uid="u", bucketer=pf.HiveBucketer(column)).local() as out:
            out.write(two.toArrow())
        assert rows_by_directory(our_base) == rows_by_directory(spark_base), column


def rows_by_directory(base: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in finished(base):
        if path.suffix == ".json":
            rows = path.read_text().replace(" ", "").splitlines()
            found.setdefault(path.parent.name, set()).update(rows)
    return found


# The inline threshold of a sink holds in Spark's tasks as on the driver.


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.item("ST-08", "ST-09")
@pytest.mark.parametrize(("threshold", "files"), [(0, 3), (1 << 20, 0)])
def test_the_threshold_decides_what_tasks_send(spark: SparkSession, tmp_path: Path, threshold: int, files: int) -> None:
    """Above it each task's state goes to a file of the checkpoint, beside the driver's; below it there is no file."""
    rows = write_source(tmp_path / "source", 2)
    base = tmp_path / "out"
    sink = make_sink(base, inline_threshold_bytes=threshold, retained_checkpoints=9)
    frame = stream(spark, tmp_path / "source", files=2)
    with sink.start(frame, checkpoint_location=str(tmp_path / "spark"), availableNow=True):
        pass
    assert len(list((base / "_partfile" / "numbers" / "chk-2").glob("*.state"))) == files
    assert ids_by_duckdb(base) == expected(rows)
