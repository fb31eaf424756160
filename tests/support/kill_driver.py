"""A driver process of its own, to be killed: streams a source into a sink and says on a pipe what it is doing.

    python kill_driver.py '{"base": ..., "source": ..., "checkpoint": ..., "master": ..., ...}'

Prints ``begin N`` and ``end N`` for each batch, ``done`` at the end, ``fenced`` if another driver has taken over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_support import Once, build_session, make_sink, stream

from partfile.filesystems.faults import StopAt, intercept
from partfile.filesystems.local import LocalStore
from partfile.filesystems.posix import PosixCalls

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def say(text: str) -> None:
    """One line to whoever watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def sink_options(job: dict[str, Any]) -> dict[str, Any]:
    """Options of the sink, with the faults the job asks for."""
    options = dict(job.get("options", {}))
    if "once" in job:
        options["bucketer"] = Once(Path(job["flag"]), job["once"], job["row"])
    if "stop_at" in job:
        stop = StopAt(job["stop_at"])
        options["open_store"] = lambda url, _options: LocalStore(url, calls=intercept(PosixCalls(), stop))
    return options


def main() -> None:
    """Run one job to its end."""
    job = json.loads(sys.argv[1])
    spark = build_session(job.get("master", "local[2]"), **job.get("spark", {}))
    sink = make_sink(Path(job["base"]), **sink_options(job))

    def batch(df: DataFrame, batch_id: int) -> None:
        say(f"begin {batch_id}")
        sink.foreach_batch(df.repartition(job["repartition"]) if "repartition" in job else df, batch_id)
        say(f"end {batch_id}")

    writer = stream(spark, Path(job["source"]), job.get("files", 1)).writeStream.foreachBatch(batch)
    query = writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        if "Fenced" not in str(error):
            raise
        say("fenced")
        return
    sink._stream.finish(str(query.id))
    say("done")


if __name__ == "__main__":
    main()
