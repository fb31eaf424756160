"""Exactly once without Spark, shown: the flights of 2013 from a real Kafka through SIGKILLs, compared row by row.

Run it with ``make demo-pipeline``. The job is killed three times and the broker once, while a producer sends rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from confluent_kafka import Producer

from flights import KILLS, begin, clean
from flights_reader import compare, files_below, hidden_below
from flights_source import AIRPORTS, BATCHES
from support.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flights_source import FlightsSource

_PAUSE_S = 0.3
"""After each batch: the rows take half a minute, so that kills fall between them."""
_BROKER_DOWN_S = 2.0
_PATIENCE_S = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if nothing was lost or duplicated and every kill hit a running job."""
    directory, source, rng, _ = begin(arguments, __doc__.splitlines()[0], Path("artifacts/demo-pipeline"))
    output = directory / "partfile"
    with KafkaBroker(directory / "broker") as broker:
        sender = _Sender(source, broker.address)
        environment = {**os.environ, "FLIGHTS_BROKERS": broker.address, "FLIGHTS_OUTPUT": str(output)}
        job = _Job(environment, directory / "job.log")
        sender.start()
        *job_kills, broker_kill = rng.sample(range(2, BATCHES - 2), KILLS + 1)
        for batch in sorted([*job_kills, broker_kill]):
            sender.wait_for(batch)
            time.sleep(rng.random())
            if batch == broker_kill:
                print(f"batch {batch} of {BATCHES}: the broker is killed", flush=True)
                broker.kill()
                time.sleep(_BROKER_DOWN_S)
                broker.start()
            else:
                job.kill(f"batch {batch} of {BATCHES}")
        sender.join()
        _wait_for(output, sum(source.batch_rows))
        job.end()
    clean(output, "--idle-for", "0s")  # No lock tells that a job in plain Python has ended.
    found, files, hidden = compare(source.csv, output, "parquet"), files_below(output, "parquet"), hidden_below(output)
    print(
        f"demo-pipeline: rows={found.rows} lost={found.lost} duplicated={found.duplicated} files={files.count} "
        f"kills={job.kills} broker_kills=1 hidden={hidden}"
    )
    return 0 if found.lost == found.duplicated == hidden == 0 and job.kills == KILLS else 1


class _Sender(threading.Thread):
    """Sends the rows to the topic, a partition an airport, batch by batch.

    Args:
        source: The rows.
        brokers: Where to.
    """

    def __init__(self, source: FlightsSource, brokers: str) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._producer = Producer(
            {"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        )
        self._sent = threading.Condition()
        self._batches = 0

    def run(self) -> None:
        """Send all of them, each once."""
        for batch in range(BATCHES):
            for partition, airport in enumerate(AIRPORTS):
                for row in pq.read_table(self._source.files / f"{batch:03}-{airport}.parquet").to_pylist():
                    row["time_hour"] = row["time_hour"].isoformat()
                    self._send(json.dumps(row), partition)
            self._producer.flush()
            with self._sent:
                self._batches = batch + 1
                self._sent.notify_all()
            time.sleep(_PAUSE_S)

    def _send(self, record: str, partition: int) -> None:
        while True:
            try:
                self._producer.produce("flights", record, partition=partition, on_delivery=_check)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def wait_for(self, batch: int) -> None:
        """Wait until so many batches are sent."""
        with self._sent:
            if not self._sent.wait_for(lambda: self._batches >= batch, _PATIENCE_S):
                raise SystemExit(f"the producer has stopped at batch {self._batches}")


def _check(error: object, _record: object) -> None:
    if error is not None:
        raise SystemExit(f"a record was not taken: {error}")


@dataclass(slots=True)
class _Job:
    """The process of the job, begun again after each kill."""

    environment: dict[str, str]
    log: Path
    kills: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        command = [sys.executable, "-m", "partfile", "run", str(Path(__file__).with_name("flights_job.py"))]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def kill(self, when: str) -> None:
        """SIGKILL it, and begin it again."""
        if self.process.poll() is not None:
            raise SystemExit(f"the job has ended by itself, see {self.log}")
        self.process.kill()
        self.process.wait()
        self.kills += 1
        print(f"{when}: the job is killed, and begun again", flush=True)
        self._begin()

    def end(self) -> None:
        """Let it take its last checkpoint."""
        self.process.terminate()
        if self.process.wait(_PATIENCE_S) != 0:
            raise SystemExit(f"the job has failed, see {self.log}")


def _wait_for(output: Path, rows: int) -> None:
    """Wait until a checkpoint holds so many rows, as ``partfile status`` says it."""
    ends = time.monotonic() + _PATIENCE_S
    command = [sys.executable, "-m", "partfile", "status", str(output), "--json"]
    while time.monotonic() < ends:
        done = subprocess.run(command, capture_output=True, check=False)
        if done.stdout:
            position = json.loads(done.stdout)["sinks"][0]["position"]
            if position is not None and sum(position["offsets"].values()) == rows:
                return
        time.sleep(1)
    raise SystemExit(f"the job has not read {rows} rows within {_PATIENCE_S:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
