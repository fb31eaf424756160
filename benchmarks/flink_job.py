"""Runs Flink's SQL file sink, inside Flink's own Python environment: one JVM, one job after the other.

Reads a request a line, as JSON: ``source`` (a directory of CSV files), ``output``, ``format`` (json or csv) and
``checkpoint_ms``. Answers each with a line of JSON: ``seconds``, the job's own run time as Flink tells it, which
leaves out what starting its cluster takes. Knows nothing of partfile, which is not installed there.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

PARALLELISM = 2
COLUMNS = "event_time TIMESTAMP(6), user_id BIGINT, country STRING, url STRING, payload STRING, amount DOUBLE"
NAMES = "event_time, user_id, country, url, payload, amount"


def run(source: str, output: str, format: str, checkpoint_ms: int) -> float:
    """Copy the rows into hourly partitions; returns the run time in seconds."""
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
    done = tables.execute_sql(copy)
    done.wait()
    client: Any = done.get_job_client()
    return float(client.get_job_execution_result().result().get_net_runtime()) / 1000


def main() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"seconds": run(**request)}), flush=True)


if __name__ == "__main__":
    main()
