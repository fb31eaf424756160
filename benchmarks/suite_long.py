"""A long stream with 24 parts open all the time: does batch 1 000 cost what batch 100 did? Beside it, Spark's sink."""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from figures import Figure, Report
from processes import Meter, resident_bytes
from runs import Run
from streams import HOUR, spark_session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from scale import Scale

BUCKETS = 24
ROWS_PER_BATCH = BUCKETS * 10
EARLY, LATE = 100, 1000
SHORTEST = 200
NATIVE_SHARE = 3
"""Spark's own sink is watched for a third of the batches: its curve is plain by then."""
WINDOW = 20
"""Batches to each side of the two places over which the median is taken."""

TIME_GOAL = 1.1
METADATA_GOAL = 1.05
MEMORY_GOAL = 1.1
_DAY_START_S = 1_767_225_600


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sink and its processes hold at one batch."""

    metadata_bytes: int
    """Size of the newest checkpoint's metadata."""
    state_bytes: int
    """All retained checkpoints."""
    resident: dict[str, int]
    jvm_heap_bytes: int
    """Used heap of the JVM after a collection."""
    foreign_cores: float
    """Load of other processes during the window before this batch."""


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each sink streams without a pause, partfile's until well after the late place; the rows are made on the fly."""
    del data
    late = scale.of(LATE, least=SHORTEST)
    with spark_session(work) as spark:
        report = _run_partfile(spark, work, late)
        native_ms, native_bytes = _run_native(spark, work / "native", late // NATIVE_SHARE)
    report.extra["batch_ms"]["native parquet"] = native_ms
    report.extra["metadata_bytes"]["native parquet"] = native_bytes
    return report


def _run_partfile(spark: SparkSession, work: Path, late: int) -> Report:
    """Everything but Spark's trigger and the age of the parts is a default."""
    output, meter = work / "long" / "output", Meter()
    watch = Watch(spark, output, late)
    sink = pf.FileSink(
        str(output),
        uid="long",
        format="json",
        bucketer=HOUR,
        rolling=pf.RollingPolicy(rollover_interval_s=86_400, inactivity_interval_s=86_400),
        on_progress=watch.see,
    )
    with (
        meter,
        sink.start(
            events(spark),
            checkpoint_location=str(work / "long" / "checkpoint"),
            processingTime="0 seconds",
        ) as query,
    ):
        while not watch.enough.wait(1) and query.isActive:
            pass
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        progress = query.recentProgress
    return report_of(watch, [one for one in progress if one["numInputRows"] > 0], meter, late)


def _run_native(spark: SparkSession, work: Path, batches: int) -> tuple[list[float], dict[int, int]]:
    """What each batch of Spark's own sink takes, and what it writes to its log, which it compacts every tenth time."""
    query = (
        events(spark)
        .withColumn("hour", F.hour("event_time"))
        .writeStream.partitionBy("hour")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start(str(work / "output"))
    )
    while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < batches):
        time.sleep(1)
    # It is stopped in the middle of a batch, of which Spark tells at length.
    spark.sparkContext.setLogLevel("OFF")
    query.stop()
    took_ms = [float(one["durationMs"]["triggerExecution"]) for one in query.recentProgress]
    logs = [path for path in (work / "output" / "_spark_metadata").iterdir() if path.name[0] != "."]
    return took_ms, {int(path.name.partition(".")[0]): path.stat().st_size for path in logs}


class Watch:
    """Sees every batch go by, and takes a sample after the early and after the late window."""

    def __init__(self, spark: SparkSession, output: Path, late: int) -> None:
        self._spark = spark
        self._output = output
        self._places = (EARLY, late)
        self._window = Meter()
        self.enough = threading.Event()
        self.samples: list[Sample] = []
        self.phases_ms: dict[int, dict[str, float]] = {}
        self.open_parts: dict[int, int] = {}
        self.metadata_bytes: dict[int, int] = {}

    def see(self, progress: pf.BatchProgress) -> None:
        """Called by the sink after each batch."""
        batch = progress.batch_id
        if batch is None:
            return
        self.phases_ms[batch] = {
            "write": progress.write_ms,
            "commit": progress.commit_ms,
            "publish": progress.publish_ms,
        }
        self.open_parts[batch] = progress.parts_in_progress
        metadata = self._output / "_partfile" / "long" / f"chk-{progress.checkpoint_id}" / "_metadata"
        self.metadata_bytes[batch] = metadata.stat().st_size
        if batch % 200 == 0:
            print(f"  batch {batch}", flush=True)
        if batch + WINDOW in self._places:
            self._window.start()
        if batch - WINDOW in self._places:
            self._window.stop()
            self.samples.append(self._sample(batch))
        if batch > self._places[-1] + WINDOW:
            self.enough.set()

    def _sample(self, batch: int) -> Sample:
        state = self._output / "_partfile" / "long"
        jvm: Any = self._spark._jvm  # noqa: SLF001 - PySpark has no public way to the JVM's memory
        jvm.System.gc()
        runtime = jvm.Runtime.getRuntime()
        return Sample(
            metadata_bytes=self.metadata_bytes[batch],
            state_bytes=sum(path.stat().st_size for path in state.rglob("*") if path.is_file()),
            resident=resident_bytes(),
            jvm_heap_bytes=runtime.totalMemory() - runtime.freeMemory(),
            foreign_cores=self._window.foreign_cores,
        )


def events(spark: SparkSession) -> DataFrame:
    """Ten rows an hour of one day in every batch; a source whose own cost does not grow with its history."""
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    hour = F.col("value") % BUCKETS
    return (
        ticks.option("numPartitions", 1)
        .load()
        .select(
            F.timestamp_seconds(F.lit(_DAY_START_S) + hour * F.lit(3600)).alias("event_time"),
            F.col("value").alias("user_id"),
            F.concat(F.lit("payload "), F.sha2(F.col("value").cast("string"), 256)).alias("payload"),
        )
    )


def report_of(watch: Watch, progress: list[Any], meter: Meter, late: int) -> Report:
    """Compare the two places."""
    took = {int(one["batchId"]): float(one["durationMs"]["triggerExecution"]) for one in progress}
    early_ms, late_ms = (_median(took, place) for place in (EARLY, late))
    before, after = watch.samples
    pairs = {
        "metadata": (before.metadata_bytes, after.metadata_bytes, METADATA_GOAL),
        "driver memory": (before.resident["driver"], after.resident["driver"], MEMORY_GOAL),
        "worker memory": (before.resident["worker"], after.resident["worker"], MEMORY_GOAL),
    }
    note = (
        f"{early_ms:.0f} ms and {late_ms:.0f} ms, {watch.open_parts[late]} parts open; "
        f"others' load then {before.foreign_cores:.2f} and {after.foreign_cores:.2f} cores"
    )
    figures = [Figure(f"batch {late} / batch {EARLY}", late_ms / early_ms, TIME_GOAL, "at most", note=note)]
    figures += [
        Figure(f"{name}, batch {late} / {EARLY}", new / old, goal, "at most", note=f"{old} and {new} bytes")
        for name, (old, new, goal) in pairs.items()
    ]
    run_record = Run("long stream", meter.seconds, meter.cpu_s, meter.foreign_cores, batch_ms=list(took.values()))
    extra: dict[str, Any] = {
        "batch_ms": {"partfile json": [took[batch] for batch in sorted(took)]},
        "metadata_bytes": {"partfile json": watch.metadata_bytes},
        "phases_ms": {place: _phases(watch, place) for place in (EARLY, late)},
        "resident_bytes": {EARLY: before.resident, late: after.resident},
        "jvm_heap_bytes": {EARLY: before.jvm_heap_bytes, late: after.jvm_heap_bytes},
        "state_bytes": {EARLY: before.state_bytes, late: after.state_bytes},
    }
    return Report(figures, [run_record], extra)


def _median(took: dict[int, float], place: int) -> float:
    return statistics.median(took[batch] for batch in range(place - WINDOW, place + WINDOW))


def _phases(watch: Watch, place: int) -> dict[str, float]:
    seen = [watch.phases_ms[batch] for batch in range(place - WINDOW, place + WINDOW)]
    return {name: round(statistics.median(one[name] for one in seen), 1) for name in seen[0]}
