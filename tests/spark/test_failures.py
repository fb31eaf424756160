"""What fails a query reaches its user as the sink's own error, whatever the user waits with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so.
from pyspark.sql.streaming.query import StreamingQuery

import partfile as pf
from partfile.errors import BucketValueError, ConfigError, OutcomeUnknown, PartfileError
from partfile.sink.spark.write_job import error_of_task
from support.processes.deadline import wait_until
from support.spark.streams import finished, stream, write_source

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
    assert raised.value.message.startswith("Column 'text' has ")
    assert 'embedded_separator="keep"' in raised.value.hint
    assert isinstance(raised.value.__cause__, StreamingQueryException)
    query.stop()
    assert finished(tmp_path / "out") == []


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
        ({"trigger": {"processing_time": "1 second"}}, "processing_time='1 second'"),
        ({"processingTime": "soon"}, "processingTime='soon'"),
        ({"processingTime": ""}, "processingTime=''"),
        ({"availableNow": True, "processingTime": "1 second"}, "processingTime='1 second', availableNow=True"),
        ({"availableNow": True, "trigger": {"availableNow": True}}, "besides availableNow"),
        ({"availableNow": False}, "availableNow=False"),
    ],
)
def test_a_trigger_that_spark_does_not_take_is_refused(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any], words: str
) -> None:
    """The error names the keyword and its value, and no query begins."""
    write_source(tmp_path / "source", 1)
    with pytest.raises(ConfigError) as raised:
        started(stream(spark, tmp_path / "source").selectExpr("'a' AS text"), tmp_path, **trigger)
    assert words in raised.value.message
    assert "availableNow=True" in raised.value.hint
    assert spark.streams.active == []


def traceback_of(last: str) -> str:
    """What Spark tells of a worker that has raised."""
    return (
        f'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "x.py"\n{last}\n'
    )


@pytest.mark.parametrize(
    ("text", "kind", "message", "hint"),
    [
        (traceback_of("partfile.errors.ConfigError: a: b.\nHint: do c."), ConfigError, "a: b.", "do c."),
        (traceback_of("partfile.errors.BucketValueError: a") + " SQLSTATE: 39000", BucketValueError, "a", ""),
        (
            traceback_of("KeyError: 1\n\nThe above exception was the direct cause of the following exception:\n")
            + traceback_of("partfile.errors.OutcomeUnknown: lost\nHint: look."),
            OutcomeUnknown,
            "lost",
            "look.",
        ),
    ],
)
def test_the_error_of_a_task_is_read_from_sparks_text(
    text: str, kind: type[PartfileError], message: str, hint: str
) -> None:
    """Name, message and hint of the last exception of the traceback."""
    told = error_of_task(RuntimeError(text))
    assert type(told) is kind
    assert (told.message, told.hint) == (message, hint)


@pytest.mark.parametrize(
    "text",
    [
        "Job 3 cancelled",
        traceback_of("ValueError: partfile.errors.ConfigError: not at the beginning"),
        traceback_of("partfile.errors.NoSuchError: a"),
        traceback_of("partfile.errors.annotations: a"),
        traceback_of(
            "partfile.errors.ConfigError: handled\n\nDuring handling of the above exception, another occurred:\n"
        )
        + traceback_of("ValueError: told"),
    ],
)
def test_other_failures_are_no_error_of_a_task(text: str) -> None:
    """The text of another library's error, or an error of ours that was handled."""
    assert error_of_task(RuntimeError(text)) is None


def test_a_sink_cannot_be_sent_to_another_process(tmp_path: Path) -> None:
    """As Spark would send a UDF that uses it; the error says where it belongs."""
    sink = pf.FileSink(tmp_path / "out", uid="job")
    with pytest.raises(ConfigError, match=r"(?s)'job' belongs to the driver.*UDFs"):
        cloudpickle.dumps(lambda: sink)  # type: ignore[no-untyped-call]
