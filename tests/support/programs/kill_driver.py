"""A driver process of its own, to be killed: streams a source into a sink and says on a pipe what it is doing.

    python kill_driver.py '{"base": ..., "source": ..., "checkpoint": ..., "master": ..., ...}'

Prints ``begin N`` and ``end N`` for each batch, ``done`` at the end, ``fenced`` if another driver has taken over. A job
with ``standby`` gets everything ready that needs no sink, and begins when it reads a line, which says what takes the
place of the same in the job. One with ``savepoint_dir`` says ``saving`` after ``savepoint_after`` batches, and at its
end ``saved PATH``.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CloudPickleSerializer

import partfile as pf
from partfile.errors import Fenced
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import StopAt, intercept
from support.spark.openers import FaultyEncodes, NotingOpener, ReadsNoted
from support.spark.streams import LONG, Once, build_session, make_sink, stream, widen

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from partfile.sink.spark.stream import StartedQuery


_LONGEST_BATCH_S = 240


def say(text: str) -> None:
    """One line to the process that watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def sink_options(job: dict[str, Any]) -> dict[str, Any]:
    """Options of the sink, with the faults the job asks for."""
    options = dict(job.get("options", {}))
    if "opener_log" in job:
        options["open_store_in_tasks"] = NotingOpener(Path(job["opener_log"]))
    if "once" in job:
        options["bucketer"] = Once(Path(job["flag"]), job["once"], job["row"])
    if "encodes" in job:
        options["open_store_in_tasks"] = FaultyEncodes(Path(job["flag"]), job["encodes"])
    if "reads_log" in job:
        options["open_store_in_tasks"] = ReadsNoted(Path(job["reads_log"]))
    if "deduplicate" in job:
        options["deduplicate"] = pf.Deduplicate(job["deduplicate"])
    if "max_part_bytes" in job:
        options["rolling"] = LONG.model_copy(update={"max_part_bytes": job["max_part_bytes"]})
    if "stop_at" in job:
        stop = StopAt(job["stop_at"])
        options["open_store"] = lambda url, _options: LocalStore(url, calls=intercept(PosixCalls(), stop))
    return options


def warm_up(spark: SparkSession) -> None:
    """Start Python workers, and load what every batch needs."""

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import partfile.sink.spark.write_job  # noqa: F401, PLC0415 - in the worker

        yield from batches

    spark.range(2, numPartitions=2).mapInArrow(load, "id long").collect()


def note_closures(log: Path) -> None:
    """Append everything that is pickled for tasks to a file."""
    really: Any = CloudPickleSerializer.dumps

    def dumps(serializer: CloudPickleSerializer, thing: Any) -> bytes:
        pickled: bytes = really(serializer, thing)
        with log.open("ab") as file:
            file.write(pickled)
        return pickled

    CloudPickleSerializer.dumps = dumps  # type: ignore[method-assign]


def end_by_savepoint(query: StartedQuery, ended: threading.Semaphore, job: dict[str, Any]) -> None:
    """Take a savepoint as soon as some batches have ended, and none later."""
    for _ in range(job["savepoint_after"]):
        assert ended.acquire(timeout=_LONGEST_BATCH_S)
    say("saving")
    say(f"saved {query.stop_with_savepoint(job['savepoint_dir'])}")


def main() -> None:
    """Run one job to its end."""
    job = json.loads(sys.argv[1])
    if "closures" in job:
        note_closures(Path(job["closures"]))
    spark = build_session(job.get("master", "local[2]"), **job.get("spark", {}))
    if job.get("standby"):
        warm_up(spark)
        job |= json.loads(sys.stdin.readline())
    sink = make_sink(job["base"], **sink_options(job))

    driver: Any = sink._spark_stream()
    really = driver.foreach_batch
    ended = threading.Semaphore(0)

    def batch(df: DataFrame, batch_id: int) -> None:
        say(f"begin {batch_id}")
        rows = df.repartition(job["repartition"]) if "repartition" in job else df
        really(widen(rows, job["wide_bytes"]) if "wide_bytes" in job else rows, batch_id)
        say(f"end {batch_id}")
        ended.release()

    driver.foreach_batch = batch
    source = stream(spark, Path(job["source"]), job.get("files", 1))
    query = sink.start(source, checkpoint_location=job["checkpoint"], availableNow=True)
    if "savepoint_dir" in job:
        end_by_savepoint(query, ended, job)
        return
    try:
        query.awaitTermination()
    except Fenced:
        say("fenced")
        return
    query.finish()
    say("done")


if __name__ == "__main__":
    main()
