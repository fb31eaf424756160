"""What fails a query reaches its user as the sink's own error, whatever the user waits with."""

from __future__ import annotations

import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so.
from pyspark.sql.streaming.query import StreamingQuery

import partfile as pf
from partfile.errors import BucketValueError, CheckpointMismatch, ConfigError, OutcomeUnknown, PartfileError
from partfile.sink.spark.write_job import error_of_task, problem_told
from support.processes.deadline import wait_until
from support.spark.streams import active_runs, finished, stream, write_source

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from partfile.sink.spark.stream import StartedQuery


def broken_lines(spark: SparkSession, root: Path) -> DataFrame:
    """Rows whose texts hold the line separator, which a task refuses."""
    write_source(root / "source", 1)
    return stream(spark, root / "source").select(F.lit("a\nb").alias("text"))


def started(frame: DataFrame, root: Path, **trigger: Any) -> StartedQuery:
    """A query of lines."""
    return pf.FileSink(root / "out", uid="job", format="text").start(
        frame, checkpoint_location=str(root / "spark"), **trigger
    )


def wait_for_failure(query: StreamingQuery) -> None:
    """Wait until Spark has ended the query for its error."""
    wait_until(lambda: query.exception() is not None, "the query goes on")


def leave_at_once(query: StartedQuery) -> None:
    """Use the query in a block that does nothing."""
    with query:
        pass


def leave_after_failure(query: StartedQuery) -> None:
    """Use the query in a block that goes on after the failure."""
    with query:
        wait_for_failure(query)


def stop_after_failure(query: StartedQuery) -> None:
    """Stop it when it has failed."""
    wait_for_failure(query)
    query.stop()


@pytest.mark.spark
@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("wait", "trigger"),
    [
        (lambda query: query.awaitTermination(), {"availableNow": True}),
        (lambda query: query.awaitTermination(120), {"availableNow": True}),
        (lambda query: query.processAllAvailable(), {"processingTime": "0 seconds"}),
        (leave_at_once, {"availableNow": True}),
        (leave_after_failure, {"processingTime": "0 seconds"}),
        (stop_after_failure, {"processingTime": "0 seconds"}),
    ],
    ids=["await", "await with timeout", "process all", "with availableNow", "with processingTime", "stop"],
)
def test_what_a_task_refuses_is_raised(spark: SparkSession, tmp_path: Path, wait: Any, trigger: dict[str, Any]) -> None:
    """With message and hint of the task's error, from Spark's; stop raises it once."""
    query = started(broken_lines(spark, tmp_path), tmp_path, **trigger)
    with pytest.raises(ConfigError) as raised:
        wait(query)
    assert raised.value.message.startswith("Column 'text' holds the line separator")
    assert 'embedded_separator="keep"' in raised.value.hint
    assert isinstance(raised.value.__cause__, StreamingQueryException)
    query.stop()
    assert finished(tmp_path / "out") == []


@pytest.mark.spark
def test_what_a_bucketer_refuses_before_the_shuffle_is_raised(spark: SparkSession, tmp_path: Path) -> None:
    """A bucketer of the user's runs in a task of its own there, and its error arrives as well."""

    def refuse(_: object) -> Any:
        raise BucketValueError("no bucket for this day", hint="Mend it.")

    write_source(tmp_path / "source", 1)
    sink = pf.FileSink(tmp_path / "out", uid="job", bucketer=refuse, distribution="hash")
    query = sink.start(
        stream(spark, tmp_path / "source"), checkpoint_location=str(tmp_path / "spark"), availableNow=True
    )
    with pytest.raises(BucketValueError, match=r"(?s)no bucket for this day.*Mend it"):
        query.awaitTermination()


@pytest.mark.spark
def test_what_is_no_error_of_the_sink_stays_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """An expression that fails is raised as Spark raises it, also at the end of a block; stop raises nothing."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").select(F.expr("raise_error('deliberate')").cast("string").alias("text"))
    query = started(frame, tmp_path, availableNow=True)
    with pytest.raises(StreamingQueryException, match="deliberate"):
        query.awaitTermination()
    query.stop()
    with pytest.raises(StreamingQueryException, match="deliberate"):
        leave_after_failure(started(frame, tmp_path, processingTime="0 seconds"))


@pytest.mark.spark
def test_a_started_query_is_sparks_query(spark: SparkSession, tmp_path: Path) -> None:
    """All that Spark's object tells is told, and a typo is an error of Python's."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").select("id").withColumn("id", F.col("id").cast("string"))
    with started(frame, tmp_path, availableNow=True) as query:
        assert query.awaitTermination(120) is True
    assert isinstance(query, StreamingQuery)
    assert (query.id, query.runId, query.isActive) == (query.query.id, query.query.runId, False)
    assert query.lastProgress is not None
    assert not hasattr(query, "awaitTerminaton")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ({"trigger": "10 seconds"}, "not '10 seconds'"),
        ({"trigger": {"processing_time": "1 second"}}, "processing_time='1 second'"),
        ({"processingTime": "soon"}, "processingTime='soon'"),
        ({"processingTime": ""}, "processingTime=''"),
        ({"availableNow": True, "processingTime": "1 second"}, "processingTime='1 second', availableNow=True"),
        ({"availableNow": True, "trigger": {"availableNow": True}}, "besides availableNow"),
        ({"availableNow": False}, "availableNow=False"),
        ({"trigger": {"continuous": "1 second"}}, "'continuous' has no micro-batches"),
    ],
)
def test_a_trigger_that_spark_does_not_take_is_refused(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any], words: str
) -> None:
    """The error names the keyword and its value, and no query begins."""
    write_source(tmp_path / "source", 1)
    before = active_runs(spark)
    with pytest.raises(ConfigError) as raised:
        started(stream(spark, tmp_path / "source").selectExpr("'a' AS text"), tmp_path, **trigger)
    assert words in raised.value.message
    assert "availableNow=True" in raised.value.hint
    assert active_runs(spark) <= before


@pytest.mark.spark
def test_an_interval_may_be_a_timedelta(spark: SparkSession, tmp_path: Path) -> None:
    """Spark is given its milliseconds; options that are no mapping are refused."""
    write_source(tmp_path / "source", 1)
    frame = stream(spark, tmp_path / "source").selectExpr("'a' AS text")
    with started(frame, tmp_path, processingTime=timedelta(seconds=1.5)) as query:
        query.processAllAvailable()
        execution = query._jsq.streamingQuery()
        assert "1500" in execution.trigger().toString()
    with pytest.raises(ConfigError, match="options must be a mapping") as raised:
        started(frame, tmp_path, options=["maxFilesPerTrigger"])
    assert "options={" in raised.value.hint


def told_by_spark(error: Exception) -> RuntimeError:
    """What Spark tells of a worker in which ``error`` was raised."""
    try:
        with problem_told():
            raise error  # noqa: TRY301 - what the test is about
    except Exception:  # noqa: BLE001 - any
        return RuntimeError(
            f"An exception was thrown from the Python worker:\n{traceback.format_exc()} SQLSTATE: 39000"
        )


class OwnError(BucketValueError):
    """Of a bucketer of the user's."""


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("a: b.", hint="Do c."),
        BucketValueError("a"),
        OutcomeUnknown("a key service says\nseveral\n\nlines", hint="Look\nand mend.", path="day=1/part"),
        CheckpointMismatch("a", checkpoint_id=7),
    ],
)
def test_the_error_of_a_task_arrives_whole(error: PartfileError) -> None:
    """Class, message, hint, path and checkpoint, however many lines they have."""
    told = error_of_task(told_by_spark(error))
    assert type(told) is type(error)
    assert told.__dict__ == {name: value for name, value in error.__dict__.items() if name != "__notes__"}


def test_an_error_of_the_users_own_class_arrives_as_the_nearest_public_one() -> None:
    """The driver may not have the class."""
    told = error_of_task(told_by_spark(OwnError("a", hint="b")))
    assert (type(told), str(told)) == (BucketValueError, "a\nHint: b")


def test_other_failures_are_no_error_of_a_task() -> None:
    """What another library raises, also while an error of partfile's is handled, and a note that is cut off."""
    assert error_of_task(RuntimeError("Job 3 cancelled")) is None
    assert error_of_task(told_by_spark(ValueError("partfile.errors.ConfigError: a"))) is None
    assert error_of_task(RuntimeError(str(told_by_spark(ConfigError("a" * 99)))[:-60])) is None
    try:
        try:
            with problem_told():
                raise ConfigError("handled")  # noqa: TRY301 - as a task does
        except ConfigError:
            raise KeyError(1)  # noqa: B904 - as a library may
    except KeyError:
        assert error_of_task(RuntimeError(traceback.format_exc())) is None


@pytest.mark.spark
def test_a_failed_query_has_no_savepoint_but_its_error(spark: SparkSession, tmp_path: Path) -> None:
    """What the user sees is why the query failed, and no savepoint is left."""
    query = started(broken_lines(spark, tmp_path), tmp_path, processingTime="0 seconds")
    wait_for_failure(query)
    with pytest.raises(ConfigError, match="Column 'text' holds the line separator"):
        query.stop_with_savepoint(tmp_path / "savepoints")
    assert not list((tmp_path / "savepoints").glob("*"))


@pytest.mark.spark
def test_a_handled_failure_is_raised_once(spark: SparkSession, tmp_path: Path) -> None:
    """A block that has handled it ends without another."""
    with started(broken_lines(spark, tmp_path), tmp_path, availableNow=True) as query:
        with pytest.raises(ConfigError):
            query.awaitTermination()
        with pytest.raises(ConfigError) as again:
            query.awaitTermination()
    assert again.value.__cause__ is not None
    assert isinstance(again.value.__cause__.__cause__, ConfigError)
    assert isinstance(again.value.__cause__.__cause__.__cause__, PySparkException)
