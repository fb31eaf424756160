"""The Spark program of the flights demo: streams files into partfile, or into Spark's own file sink.

The demo kills this program with SIGKILL and starts it again with the same arguments. It contains nothing for that: no
handler, no clean-up, no look at what the last run left behind.
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

import partfile as pf
from flights_supervisor import MODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

COMPRESSIONS = {"json": "gzip", "parquet": "zstd"}
KEY = ["time_hour", "carrier", "flight"]
"""No two flights have the same."""
LATENESS = "60 days"
"""More than the four batches, a month, that a row and its last copy lie in: by Spark's watermark none is too late."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Stream every file of the source that has not been streamed yet, then end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sink", choices=("partfile", "spark"), required=True)
    parser.add_argument("--source", required=True, help="directory of Parquet files")
    parser.add_argument("--files-per-batch", type=int, required=True)
    parser.add_argument("--output", required=True, help="directory that the files go to")
    parser.add_argument("--checkpoint", required=True, help="Spark's checkpoint directory")
    parser.add_argument("--format", choices=sorted(COMPRESSIONS), default="json", help="format of the files")
    parser.add_argument("--mode", choices=MODES, default="start", help="sink.start or foreachBatch")
    parser.add_argument("--deduplicate", action="store_true", help="leave out rows that came before")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("partfile").setLevel(logging.INFO)  # one line a batch

    spark = (
        SparkSession.builder.master("local[2]")
        .appName(f"flights into {options.sink}")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.ui.enabled", value=False)
        .config("spark.ui.showConsoleProgress", value=False)
        .getOrCreate()
    )
    flights = (
        spark.readStream.schema(spark.read.parquet(options.source).schema)
        .option("maxFilesPerTrigger", options.files_per_batch)
        .parquet(options.source)
    )
    if options.sink == "spark":
        distinct = distinct_by_spark(flights) if options.deduplicate else flights
        write_with_spark(distinct, options.output, options.checkpoint, options.format)
    else:
        sink = make_sink(options.output, options.format, deduplicate=options.deduplicate)
        (start if options.mode == "start" else start_plain)(sink, flights, options.checkpoint)
    spark.stop()


def make_sink(output: str, format: str, *, deduplicate: bool) -> pf.FileSink:
    """One directory a day; a file stays open, whatever its format, until its day has had no flight for 5 seconds."""
    return pf.FileSink(
        output,
        uid="flights",
        format=format,
        compression=COMPRESSIONS[format],
        bucketer=pf.DateTimeBucketer("time_hour", "%Y-%m-%d"),
        rolling=pf.RollingPolicy(inactivity_interval_s=5),
        # Rows go to tasks by their days, or by their keys.
        distribution="none" if deduplicate else "hash",
        deduplicate=pf.Deduplicate(KEY, ttl="7 days") if deduplicate else None,
    )


def start(sink: pf.FileSink, flights: DataFrame, checkpoint: str) -> None:
    """Stream in a ``with`` block, which ends with every file published."""
    with sink.start(flights, checkpoint_location=checkpoint, availableNow=True) as query:
        query.awaitTermination()


def start_plain(sink: pf.FileSink, flights: DataFrame, checkpoint: str) -> None:
    """Stream as Spark's own documentation does: the sink ends with its query, and the program stops Spark at once."""
    writer = flights.writeStream.foreachBatch(sink.foreach_batch).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def distinct_by_spark(flights: DataFrame) -> DataFrame:
    """The stream without rows that came before, as Spark's own documentation does it."""
    return flights.withWatermark("time_hour", LATENESS).dropDuplicatesWithinWatermark(KEY)


def write_with_spark(flights: DataFrame, output: str, checkpoint: str, format: str) -> None:
    """The same stream into the same directories with Spark's own file sink."""
    query = (
        flights.withColumn("flight_date", F.date_format("time_hour", "yyyy-MM-dd"))
        .writeStream.format(format)
        .option("compression", COMPRESSIONS[format])
        .partitionBy("flight_date")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(output)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
