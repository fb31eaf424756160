"""A driver on Spark Connect that starts a sink in both ways. It prints each refusal as a line of JSON.

Usage: refused_driver.py ROOT
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import partfile as pf

TRIES = 12


def main() -> None:
    """Start the queries, and tell how it went."""
    (root,) = sys.argv[1:]
    spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    one, other = (pf.FileSink(f"{root}/out", uid="job", format="text") for _ in range(2))
    try:
        try:
            one.start(frame, checkpoint_location=f"{root}/spark")
        except pf.PartfileError as error:
            print(json.dumps({"way": "start", "said": str(error)}))  # noqa: T201 - the answer.
        writer = frame.writeStream.foreachBatch(other.foreach_batch).option("checkpointLocation", f"{root}/spark")
        try:
            started(writer).awaitTermination()
        except StreamingQueryException as error:
            print(json.dumps({"way": "plain", "said": str(error)}))  # noqa: T201 - likewise.
    finally:
        spark.stop()


def started(writer: Any) -> Any:
    """Start a query. Spark waits ten seconds for the worker of its function, which is too short on a busy machine."""
    for left in reversed(range(TRIES)):
        try:
            return writer.start()
        except PySparkException as error:
            if "failed to connect back" not in str(error) or not left:
                raise
    raise AssertionError


if __name__ == "__main__":
    main()
