"""A Spark driver that starts a sink, and prints the error with which it is refused as one line of JSON.

Usage: refused_driver.py ROOT classic|connect start|plain
"""

from __future__ import annotations

import json
import re
import sys

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import partfile as pf


def main() -> None:
    """Start the query, and tell how it went."""
    root, session, way = sys.argv[1:]
    builder = SparkSession.builder
    builder = builder.remote("local[1]") if session == "connect" else builder.master("local[1]")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    sink = pf.FileSink(f"{root}/out", uid="job", format="text")
    told: dict[str, str] = {}
    try:
        if way == "start":
            sink.start(frame, checkpoint_location=f"{root}/spark")
        else:
            writer = frame.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", f"{root}/spark")
            writer.start().awaitTermination()
    except pf.PartfileError as error:
        told = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
    except StreamingQueryException as error:
        found = re.search(r"^partfile\.errors\.(\w+): (.*)\nHint: (.*)", str(error), re.MULTILINE)
        if found is None:
            raise
        told = dict(zip(("kind", "message", "hint"), found.groups(), strict=True))
    finally:
        print(json.dumps(told))  # noqa: T201 - the answer.
        spark.stop()


if __name__ == "__main__":
    main()
