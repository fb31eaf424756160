"""The job of the flights demo without Spark: a topic of Kafka into Parquet files by day. `partfile run` runs it."""

from __future__ import annotations

import os

import pyarrow as pa

import partfile as pf

WHOLE = ("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay")
SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in WHOLE),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        *((name, pa.string()) for name in ("tailnum", "origin", "dest")),
        *((name, pa.int64()) for name in ("air_time", "distance", "hour", "minute")),
        ("time_hour", pa.timestamp("us", "UTC")),
    ]
)

job = pf.Pipeline("flights", interval_s=0.5, restart=pf.Restart(attempts=10, delay_s=1))
job.source(
    pf.KafkaSource(os.environ["FLIGHTS_BROKERS"], "flights", value=pf.JsonRows(SCHEMA)),
    dead_letters=pf.FileSink(f"{os.environ['FLIGHTS_OUTPUT']}-dead-letters", uid="dead-letters", format="json"),
)
job.sink(
    pf.FileSink(
        os.environ["FLIGHTS_OUTPUT"],
        uid="flights",
        format="parquet",
        bucketer=pf.DateTimeBucketer("time_hour", "%Y-%m-%d"),
        rolling=pf.RollingPolicy(inactivity_interval_s=5),
    )
)
