"""Runs one stream into one sink on Spark, partfile's or Spark's own, and measures it."""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from partfile.sink.settings import SinkSettings
from processes import Meter
from runs import Run, with_outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from places import Place

Kind = Literal["json", "parquet"]
Columnar = Literal["staged", "per_checkpoint"]
HOUR = pf.DateTimeBucketer("event_time", "%Y-%m-%dT%H")
NOT_STAGED = "this version of FileSink has no option columnar='staged'"
_PHASES = ("restore_ms", "write_ms", "commit_ms", "publish_ms")


@contextmanager
def spark_session(work: Path, config: Mapping[str, str | int] | None = None) -> Iterator[SparkSession]:
    """Spark on two local cores, quiet, with enough memory that it never spills."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("partfile benchmarks")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(work / "spark"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.streaming.numRecentProgressUpdates", 12_000)
        .config("spark.ui.enabled", value=False)
        .config("spark.ui.showConsoleProgress", value=False)
    )
    session = builder.config(map=dict(config or {})).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def read_files(spark: SparkSession, source: Path, files_per_batch: int, files: int | None = None) -> DataFrame:
    """A stream over a directory of Parquet files, or over the first ``files`` of them."""
    pattern = str(source / "*.parquet") if files is None else f"{source}/{{{_names(files)}}}.parquet"
    schema = spark.read.parquet(str(source / "00000.parquet")).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(pattern)


def can_stage() -> bool:
    """Whether FileSink knows columnar parts that stay open over checkpoints."""
    return "columnar" in SinkSettings.model_fields


def columnar(how: Columnar) -> dict[str, Any]:
    """The option of FileSink that writes columnar files in one way; nothing where there is but one way."""
    return {"columnar": how} if can_stage() else {}


def run_partfile(
    case: str, stream: DataFrame, place: Place, *, format: Kind = "json", bucketer: pf.Bucketer = HOUR, **options: Any
) -> Run:
    """Write into buckets, hourly ones if nothing else is said, with every default but what is given."""
    output, checkpoint = place.fresh(case)
    progress: list[pf.BatchProgress] = []
    sink = pf.FileSink(
        output,
        uid="bench",
        format=format,
        bucketer=bucketer,
        on_progress=progress.append,
        storage_options=place.storage_options,
        **options,
    )
    run, meter = Run(case), Meter()
    with (
        meter,
        sink.start(stream, checkpoint_location=checkpoint, availableNow=True) as query,
    ):
        query.awaitTermination()
    batches = [one for one in progress if one.batch_id is not None]
    run.phases_ms = {name: round(statistics.median(getattr(one, name) for one in batches), 1) for name in _PHASES}
    return with_outcome(_with_batches(run, query.query), meter, place.sizes(output, f".{format}"))


def run_native(case: str, stream: DataFrame, place: Place, kind: Kind, bucket: Column | None = None) -> Run:
    """Write with Spark's own file sink, partitioned by the hour, computed in the cheapest way, or by ``bucket``."""
    key = F.hour("event_time") if bucket is None else bucket
    output, checkpoint = place.fresh(case)
    writer = stream.withColumn("bucket", key).writeStream.format(kind).partitionBy("bucket").option("path", output)
    return run_query(case, writer, checkpoint, lambda: place.sizes(output, f".{kind}"))


def run_query(case: str, writer: DataStreamWriter, checkpoint: str, sizes: Callable[[], list[int]] = list) -> Run:
    """Run a query of Spark's until everything that was there is written.

    Args:
        case: Its name.
        writer: The query.
        checkpoint: Spark's checkpoint.
        sizes: Asked for the sizes of the files once it has ended.
    """
    run, meter = Run(case), Meter()
    with meter:
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    return with_outcome(_with_batches(run, query), meter, sizes())


def _with_batches(run: Run, query: StreamingQuery) -> Run:
    # A sink that reads nothing has no input rows, and a trigger that found nothing to do has added no batch.
    batches: list[Any] = [one for one in query.recentProgress if "addBatch" in one["durationMs"]]
    run.batch_ms = [float(one["durationMs"]["triggerExecution"]) for one in batches]
    run.rows = sum(int(one["numInputRows"]) for one in batches)
    return run


def _names(files: int) -> str:
    return ",".join(f"{number:05}" for number in range(files))
