"""A topic of Kafka into JSON lines, beside Quix Streams and Bytewax, which read the same broker; and idle checkpoints.

CPU seconds of the whole process, the threads of its client among them. Ours commits rows and offsets in one step each
second; that of Quix commits its files before its offsets each second; that of Bytewax commits nothing.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import partfile as pf
from environments import BYTEWAX, QUIX
from figures import Report, figure_of_rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic import JsonValue

    from scale import Scale

ROWS = 1_000_000
PARTITIONS = 3
FREE = 1000
"""One row in so many has no price, and is left out."""
IDLE_CHECKPOINTS = 200
SCHEMA = {"id": "int64", "customer": "string", "price": "float64", "at": "string"}
TOPIC = "orders"


class _Costs(NamedTuple):
    ours_s: float
    quix_s: float
    bytewax_s: float
    idle_ms: float
    """Wall time of a checkpoint of a job that has nothing to do."""


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round reads the whole topic by each of the three; the first round of a process is dropped."""
    del data  # made on the fly
    from support.kafka.broker import KafkaBroker  # noqa: PLC0415 - from a directory that run.py has added

    report, rounds, rows = Report(), list[_Costs](), scale.of(ROWS, 200_000)
    with KafkaBroker(work / "broker") as broker:
        _produce(broker.address, rows)
        for number in range(scale.rounds + 1):
            own = work / str(number)
            own.mkdir()
            found = _round(broker.address, own, rows)
            if number:
                rounds.append(found)
            speeds = ", ".join(f"{rows / one / 1000:.0f} k" for one in found[:3])
            print(f"  rows a CPU second: partfile, Quix, Bytewax {speeds}; idle {found.idle_ms:.1f} ms", flush=True)
    last = rounds[-1]
    note = "{:.0f} k, {:.0f} k and {:.0f} k rows a CPU second".format(*(rows / one / 1000 for one in last[:3]))
    for title, ratios, goal, kind, of in (
        ("pipeline: Kafka to JSON lines, speed / Quix", [one.quix_s / one.ours_s for one in rounds], 5.0, 1, note),
        (
            "pipeline: Kafka to JSON lines, speed / Bytewax",
            [one.bytewax_s / one.ours_s for one in rounds],
            5.0,
            1,
            note,
        ),
        ("pipeline: checkpoint of an idle job, ms", [one.idle_ms for one in rounds], 50.0, 0, "local disk"),
    ):
        report.figures.append(figure_of_rounds(title, ratios, goal, "at least" if kind else "at most", of))
    return report


def _produce(brokers: str, rows: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 50})
    for number in range(rows):
        price = 0.0 if number % FREE == 0 else number % 10_000 / 100 + 1
        row = {
            "id": number,
            "customer": f"customer {number % 9973}",
            "price": price,
            "at": f"2026-11-{1 + number % 28}",
        }
        while True:
            try:
                producer.produce(TOPIC, json.dumps(row), partition=number % PARTITIONS)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()


def _round(brokers: str, work: Path, rows: int) -> _Costs:
    kept = rows - (rows + FREE - 1) // FREE
    quix = QUIX.answer("quix_kafka.py", brokers, TOPIC, work / "quix", kept)
    bytewax = BYTEWAX.answer("bytewax_kafka.py", brokers, TOPIC, work / "bytewax.json")
    for name, written in (("Quix", quix["written"]), ("Bytewax", bytewax["written"])):
        if written != kept:
            raise SystemExit(f"{name} has written {written} rows of {kept}")
    return _Costs(
        ours_s=_ours_s(brokers, work / "ours", rows, kept),
        quix_s=quix["cpu_s"],
        bytewax_s=bytewax["cpu_s"],
        idle_ms=_idle_ms(work / "idle"),
    )


def _ours_s(brokers: str, directory: Path, rows: int, kept: int) -> float:
    def all_are_read(done: pf.JobProgress) -> None:
        if done.rows == kept:
            job.stop()

    job = pf.Pipeline("orders", interval_s=1, on_progress=all_are_read)
    job.source(pf.KafkaSource(brokers, TOPIC, value=pf.JsonRows(SCHEMA)))
    job.map_batches(_with_price).sink(pf.FileSink(directory, uid="orders", format="json"))
    began = time.process_time()
    job.run()
    took_s = time.process_time() - began
    written = sum(1 for path in directory.glob("part-*") for _ in path.open("rb"))
    if written != kept:
        raise SystemExit(f"partfile has written {written} of {rows} rows")
    return took_s


def _with_price(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pc.field("price") > 0)


class _Idle:
    """A source that has no rows, and ends after some reads.

    Args:
        reads: So many.
    """

    position: JsonValue = 1
    lag: dict[str, int] = {}  # noqa: RUF012 - always empty.

    def __init__(self, reads: int) -> None:
        self.left = reads

    @property
    def is_ended(self) -> bool:
        """Whether all reads are done."""
        return self.left == 0

    def open(self, _position: JsonValue, _job: str, _dead_letters: object) -> Any:
        """Itself."""
        return self

    def read(self, timeout_s: float) -> None:
        """Wait for rows that do not come."""
        self.left -= 1
        time.sleep(timeout_s)

    def confirm(self, position: JsonValue) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def _idle_ms(directory: Path) -> float:
    times_s: list[float] = []
    note: Callable[[object], None] = lambda _done: times_s.append(time.perf_counter())  # noqa: E731
    interval_s = 0.001
    job = pf.Pipeline("idle", interval_s=interval_s, on_progress=note).source(_Idle(IDLE_CHECKPOINTS))
    job.sink(pf.FileSink(directory, uid="idle", format="json")).run()
    return ((times_s[-2] - times_s[0]) / (len(times_s) - 2) - interval_s) * 1000
