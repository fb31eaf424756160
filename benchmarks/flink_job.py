"""Runs Flink's SQL file sink, inside Flink's own Python environment: one JVM, one job after the other.

Reads a request a line, as JSON: ``source`` (a directory of CSV files), ``output``, ``format`` (json or csv) and
``checkpoint_ms``. Answers each with a line of JSON: ``seconds`` by the wall clock, from handing the job in to its end,
and ``net_seconds``, the job's run time as Flink tells it, which leaves out what starting its local cluster takes. Knows
nothing of partfile, which is not installed there.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

PARALLELISM = 2
COLUMNS = "event_time TIMESTAMP(6), user_id BIGINT, country STRING, url STRING, payload STRING, amount DOUBLE"
NAMES = "event_time, user_id, country, url, payload, amount"


def run(source: str, output: str, format: str, checkpoint_ms: int) -> dict[str, float]:
    """Copy the rows into hourly partitions; returns how long it took."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = tables.get_config()
    settings.set("parallelism.default", str(PARALLELISM))
    settings.set("execution.checkpointing.interval", f"{checkpoint_ms} ms")
    tables.execute_sql(
        f"CREATE TABLE arrivals ({COLUMNS}) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{source}', 'format' = 'csv', 'csv.null-literal' = '')"
    )
    tables.execute_sql(
        f"CREATE TABLE landing ({COLUMNS}, bucket BIGINT) PARTITIONED BY (bucket) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{output}', 'format' = '{format}')"
    )
    copy = f"INSERT INTO landing SELECT {NAMES}, EXTRACT(HOUR FROM event_time) FROM arrivals"  # noqa: S608 - our own
    began_s = time.monotonic()
    done = tables.execute_sql(copy)
    done.wait()
    seconds = time.monotonic() - began_s
    client: Any = done.get_job_client()
    net_ms = client.get_job_execution_result().result().get_net_runtime()
    return {"seconds": seconds, "net_seconds": float(net_ms) / 1000}


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(run(**request)), flush=True)


if __name__ == "__main__":
    main()
