"""A Spark driver that starts a sink, and prints the error with which it is refused as one line of JSON.

Usage: refused_driver.py ROOT classic|connect start|plain
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import partfile as pf


def refusal_in(error: BaseException) -> pf.PartfileError:
    """The sink's error among those that were handled when this one was raised."""
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, pf.PartfileError):
            return error
    raise error


def main() -> None:
    """Start the query, and tell how it went."""
    root, session, way = sys.argv[1:]
    builder = SparkSession.builder
    builder = builder.remote("local[1]") if session == "connect" else builder.master("local[1]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    sink = pf.FileSink(f"{root}/out", uid="job", format="text")
    try:
        if way == "start":
            sink.start(frame, checkpoint_location=f"{root}/spark")
        else:
            frame.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", f"{root}/spark").start()
    except Exception as error:  # noqa: BLE001 - raised again if it has none of ours
        # Spark Connect raises its own error while it handles the sink's, and a terminal shows both.
        told = error if isinstance(error, pf.PartfileError) else refusal_in(error)
        print(json.dumps({"kind": type(told).__name__, "message": told.message, "hint": told.hint}))  # noqa: T201 - the answer.
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
