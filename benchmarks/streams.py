"""Runs one stream into one sink and measures it."""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from machine import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from places import Place

Kind = Literal["json", "parquet"]
HOUR = pf.DateTimeBucketer("event_time", "%Y-%m-%dT%H")
_PHASES = ("restore_ms", "write_ms", "commit_ms", "publish_ms")


@dataclass(slots=True)
class Run:
    """One measured run of one stream."""

    case: str
    seconds: float = 0.0
    """From the start of the query to its clean end, with everything published."""
    cpu_s: float = 0.0
    foreign_cores: float = 0.0
    files: int = 0
    bytes: int = 0
    batch_ms: list[float] = field(default_factory=list)
    """Spark's own figure for each batch that had rows (triggerExecution), in milliseconds."""
    phases_ms: dict[str, float] = field(default_factory=dict)
    """Medians over the batches of what partfile says about itself."""


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
        .config("spark.sql.streaming.numRecentProgressUpdates", 5000)
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


def run_partfile(case: str, stream: DataFrame, place: Place, **options: Any) -> Run:
    """Write JSON lines into hourly buckets with partfile, with every default but the bucketer and ``options``."""
    output, checkpoint = place.fresh(case)
    progress: list[pf.BatchProgress] = []
    sink = pf.FileSink(
        output,
        uid="bench",
        format="json",
        bucketer=HOUR,
        on_progress=progress.append,
        storage_options=place.storage_options,
        **options,
    )
    run, meter = Run(case), Meter()
    with meter, sink.start(stream, checkpoint_location=checkpoint, trigger={"availableNow": True}) as query:
        query.awaitTermination()
    run.batch_ms = batch_ms(query.recentProgress)
    batches = [one for one in progress if one.batch_id is not None]
    run.phases_ms = {name: round(statistics.median(getattr(one, name) for one in batches), 1) for name in _PHASES}
    return with_outcome(run, meter, place.sizes(output, ".json"))


def run_native(case: str, stream: DataFrame, place: Place, kind: Kind) -> Run:
    """Write into hourly partitions with Spark's own file sink, the hour computed in the cheapest way there is."""
    output, checkpoint = place.fresh(case)
    run, meter = Run(case), Meter()
    with meter:
        query = (
            stream.withColumn("hour", F.hour("event_time"))
            .writeStream.format(kind)
            .partitionBy("hour")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(output)
        )
        query.awaitTermination()
    run.batch_ms = batch_ms(query.recentProgress)
    return with_outcome(run, meter, place.sizes(output, f".{kind}"))


def batch_ms(progress: list[Any]) -> list[float]:
    """Spark's own figure for each batch that had rows, in milliseconds."""
    return [float(one["durationMs"]["triggerExecution"]) for one in progress if one["numInputRows"] > 0]


def with_outcome(run: Run, meter: Meter, sizes: list[int]) -> Run:
    """The run with what was measured and the sizes of the files it left."""
    run.seconds, run.cpu_s, run.foreign_cores = meter.seconds, meter.cpu_s, meter.foreign_cores
    run.files, run.bytes = len(sizes), sum(sizes)
    return run


def _names(files: int) -> str:
    return ",".join(f"{number:05}" for number in range(files))
