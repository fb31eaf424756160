"""A job that reads a real Kafka: killed brokers, killed jobs, deleted and bad records."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

import partfile as pf
from partfile.errors import CheckpointMismatch, ConfigError, RecordError, SourceError
from partfile.sink.newest_state import newest_state
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.local.store import LocalStore
from support.kafka.broker import PARTITIONS, KafkaBroker
from support.processes import command_line
from support.processes.deadline import PATIENCE_S, wait_until
from support.repo.documents import ROOT, python_blocks

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROWS = pf.JsonRows({"id": "int64", "name": "string"})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests."""
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as made:
        yield made


def rows(first: int, last: int) -> list[str]:
    """Records of JSON."""
    return [json.dumps({"id": number, "name": f"é{number}", "more": [1]}) for number in range(first, last)]


def ids_in(path: Path) -> list[int]:
    """What the finished files hold, sorted."""
    if not (path / "out").exists():
        return []
    return sorted(pf.read(path / "out", schema=pa.schema({"id": pa.int64()})).to_table()["id"].to_pylist())


def job_of(path: Path, broker: KafkaBroker, topic: str, **options: Any) -> pf.Pipeline:
    """A job that writes a topic to files."""
    source = pf.KafkaSource(
        brokers=broker.address,
        topic=topic,
        value=options.pop("value", ROWS),
        begin=options.pop("begin", "earliest"),
        discover_s=options.pop("discover_s", 60.0),
    )
    made = pf.Pipeline(
        "job",
        interval_s=options.pop("interval_s", 0.1),
        restart=options.pop("restart", None),
        on_progress=options.pop("on_progress", None),
    )
    made.source(source, dead_letters=options.pop("dead_letters", None))
    if "function" in options:
        made.map_batches(options.pop("function"))
    assert not options
    return made.sink(pf.FileSink(path / "out", uid="job", format="json"))


@contextmanager
def running(job: pf.Pipeline) -> Iterator[list[Any]]:
    """Run a job in a thread, and stop it at the end; gives its result, or its error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(job.run())
        except BaseException as error:  # noqa: BLE001 - the test looks at it.
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        job.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def wait_for(path: Path, count: int, found: list[Any]) -> None:
    """Wait until a checkpoint holds so many records of Kafka."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends and not found:
        if offsets_of(path / "out") >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"{found}: {offsets_of(path / 'out')} of {count} records")


def offsets_of(base: Path, uid: str = "job") -> int:
    """How many records the newest checkpoint holds, as another process sees it."""
    checkpoints = base / "_partfile"
    if not checkpoints.exists():
        return 0
    state = newest_state(CheckpointStorage(LocalStore(str(checkpoints)), uid))
    position: Any = None if state is None else state.state.position.user_position
    return 0 if position is None else sum(position["offsets"].values())


def test_each_record_is_written_once_though_the_broker_is_killed(broker: KafkaBroker, tmp_path: Path) -> None:
    """And though the job is stopped and begun again."""
    broker.produce("first", rows(0, 1000))
    with running(job_of(tmp_path, broker, "first", restart=pf.Restart(20, 0.5))) as found:
        wait_for(tmp_path, 1000, found)
        broker.kill()
        time.sleep(1)
        broker.start()
        broker.produce("first", rows(1000, 2000))
        wait_for(tmp_path, 2000, found)
    assert not found[0].is_ended
    assert ids_in(tmp_path) == list(range(2000))
    broker.produce("first", rows(2000, 2500))
    with running(job_of(tmp_path, broker, "first")) as found:
        wait_for(tmp_path, 2500, found)
    assert ids_in(tmp_path) == list(range(2500))


def test_records_that_were_deleted_are_no_silent_jump(broker: KafkaBroker, tmp_path: Path) -> None:
    """Nor is a topic that was made anew, or another one."""
    broker.produce("short", rows(0, 30))
    with running(job_of(tmp_path, broker, "short")) as found:
        wait_for(tmp_path, 30, found)
    broker.produce("short", rows(30, 90))
    admin = AdminClient({"bootstrap.servers": broker.address})
    for deleted in admin.delete_records([TopicPartition("short", one, -1) for one in range(PARTITIONS)]).values():
        deleted.result(30)
    with pytest.raises(CheckpointMismatch, match="were deleted before they were read"):
        job_of(tmp_path, broker, "short").run()
    with pytest.raises(CheckpointMismatch, match="the newest checkpoint is of the topic 'short', and 'first'"):
        job_of(tmp_path, broker, "first").run()
    assert ids_in(tmp_path) == list(range(30))


def test_marks_of_transactions_are_no_records(broker: KafkaBroker, tmp_path: Path) -> None:
    """They stand behind the last record, also where retention has deleted it; aborted records are left out."""
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    producer.init_transactions(60)

    def transaction(first: int, last: int, end: Any) -> None:
        producer.begin_transaction()
        for value in rows(first, last):
            producer.produce("marked", value)
        producer.flush()
        end(60)

    broker.produce("marked", rows(0, 1))
    transaction(1, 50, producer.commit_transaction)
    transaction(1000, 1020, producer.abort_transaction)
    transaction(50, 60, producer.commit_transaction)
    told: list[pf.JobProgress] = []
    with running(job_of(tmp_path, broker, "marked", on_progress=told.append)) as found:
        wait_until(lambda: bool(found) or bool(told and told[-1].rows == 60 and not any(told[-1].lag.values())))
    admin = AdminClient({"bootstrap.servers": broker.address})
    for deleted in admin.delete_records([TopicPartition("marked", one, -1) for one in range(PARTITIONS)]).values():
        deleted.result(30)
    transaction(60, 90, producer.commit_transaction)
    with running(job_of(tmp_path, broker, "marked")) as found:
        time.sleep(3)
    assert isinstance(found[0], pf.JobResult), found
    assert ids_in(tmp_path) == list(range(90))


def test_records_that_are_too_many_for_one_batch_are_read_in_pieces(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With checkpoints between them, and failures; the end of a partition comes behind its last record."""
    monkeypatch.setattr("partfile.pipeline.kafka._BYTES_AT_ONCE", 500)
    broker.produce("pieces", rows(0, 600))
    sizes: list[int] = []

    def fail_at_times(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        time.sleep(0.02)
        if len(sizes) in {7, 20}:
            raise OSError("deliberate")
        return batch

    job = job_of(tmp_path, broker, "pieces", function=fail_at_times, restart=pf.Restart(2, 0), interval_s=0.01)
    with running(job) as found:
        wait_for(tmp_path, 600, found)
    assert found[0].restarts == 2
    assert ids_in(tmp_path) == list(range(600))
    assert max(sizes) <= 20


def test_a_partition_that_has_lost_its_first_records_is_no_silent_jump(broker: KafkaBroker, tmp_path: Path) -> None:
    """It was made while the job stood still, and so was the loss."""
    broker.produce("loses", rows(0, 30))
    with running(job_of(tmp_path, broker, "loses")) as found:
        wait_for(tmp_path, 30, found)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for made in admin.create_partitions([NewPartitions("loses", PARTITIONS + 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": broker.address})
    time.sleep(1)
    for value in rows(30, 40):
        producer.produce("loses", value, partition=PARTITIONS)
    producer.flush()
    for deleted in admin.delete_records([TopicPartition("loses", PARTITIONS, 5)]).values():
        deleted.result(30)
    with pytest.raises(
        CheckpointMismatch, match=r"is to be read from the offset 0, and its first record has the offset 5"
    ):
        job_of(tmp_path, broker, "loses").run()


def test_a_job_ends_though_the_brokers_do_not_answer(broker: KafkaBroker, tmp_path: Path) -> None:
    """By a signal or stop(), with a last checkpoint, before and after it has reached them; new partitions wait."""
    broker.produce("down", rows(0, 30))
    with running(job_of(tmp_path, broker, "down", discover_s=0.2)) as found:
        wait_for(tmp_path, 30, found)
        broker.kill()
        time.sleep(4)
        began = time.monotonic()
    took_s = time.monotonic() - began
    try:
        assert isinstance(found[0], pf.JobResult), found
        with running(job_of(tmp_path, broker, "down")) as found:
            time.sleep(2)
            began = time.monotonic()
        assert isinstance(found[0], pf.JobResult), found
        assert max(took_s, time.monotonic() - began) < 10
    finally:
        broker.start()
    assert ids_in(tmp_path) == list(range(30))


def test_a_record_that_is_no_row_is_named(broker: KafkaBroker, tmp_path: Path) -> None:
    """With its place; nothing of its batch counts. Read as bytes it is a row as any other."""
    broker.produce("bad", [*rows(0, 5), "no json", *rows(5, 9)])
    with pytest.raises(
        RecordError, match=r"the record at offset \d+ of partition \d of 'bad' is no row: it is no JSON"
    ):
        job_of(tmp_path, broker, "bad").run()
    with running(job_of(tmp_path / "raw", broker, "bad", value=pf.RawBytes())) as found:
        wait_for(tmp_path / "raw", 10, found)
    written = pf.read(tmp_path / "raw" / "out").to_table()
    assert written.num_rows == 10
    assert set(written.column_names) == {"key", "value", "partition", "offset", "timestamp"}


DEAD_LETTERS_JOB = """
    import sys
    import partfile as pf

    path, brokers = sys.argv[1:]
    source = pf.KafkaSource(brokers, "dead", value=pf.JsonRows({"id": "int64"}))
    dead_letters = pf.FileSink(path + "/dead", uid="dead", format="json")
    job = pf.Pipeline("job", interval_s=0.05, on_progress=lambda done: print(done.rows, flush=True))
    job.source(source, dead_letters=dead_letters).sink(pf.FileSink(path + "/out", uid="job", format="json"))
    job.run()
"""


def test_dead_letters_are_written_once_though_the_job_is_killed(
    broker: KafkaBroker, tmp_path: Path, rng: random.Random
) -> None:
    """At any instant, beside the rows; each with its place and what is wrong with it."""
    every = [json.dumps({"id": number}) if number % 3 else f"bad {number}" for number in range(3000)]
    program = tmp_path / "job.py"
    program.write_text(dedent(DEAD_LETTERS_JOB))
    for at in range(0, 3000, 500):
        broker.produce("dead", every[at : at + 500])
        process = subprocess.Popen(
            [sys.executable, str(program), str(tmp_path), broker.address], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(rng.randint(1, 12)):
            process.stdout.readline()
        time.sleep(rng.random() / 10)
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()
    dead_letters = pf.FileSink(tmp_path / "dead", uid="dead", format="json")
    with running(job_of(tmp_path, broker, "dead", dead_letters=dead_letters)) as found:
        wait_for(tmp_path, 3000, found)
    assert isinstance(found[0], pf.JobResult), found
    assert ids_in(tmp_path) == [number for number in range(3000) if number % 3]
    dead = [json.loads(line) for one in (tmp_path / "dead").rglob("part-*.json") for line in one.open()]
    values = sorted(base64.b64decode(one["value"]).decode() for one in dead)
    assert values == sorted(f"bad {number}" for number in range(0, 3000, 3))
    assert {one["problem"].split(":")[0] for one in dead} == {"it is no JSON"}
    assert {one["topic"] for one in dead} == {"dead"}
    assert len({(one["partition"], one["offset"]) for one in dead}) == 1000


def test_dead_letters_have_a_uid_of_their_own(broker: KafkaBroker, tmp_path: Path) -> None:
    """Else one log would have two writers, and rows would be passed over."""
    with pytest.raises(ConfigError, match="dead_letters has the uid of the rows, 'job'"):
        job_of(tmp_path, broker, "dead", dead_letters=pf.FileSink(tmp_path / "dead", uid="job")).run()


def test_where_a_job_began_at_the_newest_records_outlasts_a_failure(broker: KafkaBroker, tmp_path: Path) -> None:
    """Though it has no row yet: those that come while it is down count."""

    def fail(_rows: object) -> object:
        raise OSError("deliberate")

    broker.produce("news", rows(0, 50))
    with running(job_of(tmp_path, broker, "news", begin="latest", function=fail)) as found:
        ends = time.monotonic() + PATIENCE_S
        while not (tmp_path / "out" / "_partfile").exists() and time.monotonic() < ends:
            time.sleep(0.05)
        wait_for(tmp_path, 50, found)
        broker.produce("news", rows(50, 60))
        while not found and time.monotonic() < ends:
            time.sleep(0.05)
    assert isinstance(found[0], OSError), found
    with running(job_of(tmp_path, broker, "news", begin="latest")) as found:
        wait_for(tmp_path, 60, found)
    assert ids_in(tmp_path) == list(range(50, 60))


def test_lag_is_told(broker: KafkaBroker, tmp_path: Path) -> None:
    """By partition; it is what the client knows."""
    broker.produce("lags", rows(0, 100))
    told: list[pf.JobProgress] = []
    job = job_of(tmp_path, broker, "lags", on_progress=told.append)
    with running(job) as found:
        wait_for(tmp_path, 100, found)
    assert told[-1].lag == {str(one): 0 for one in range(PARTITIONS)}
    assert sum(told[0].lag.values()) == 100
    assert told[-1].rows == 100


def test_a_topic_that_is_not_there_is_told(broker: KafkaBroker, tmp_path: Path) -> None:
    """So is a broker that does not answer."""
    with pytest.raises(SourceError, match="the topic 'nowhere' cannot be read at"):
        job_of(tmp_path, broker, "nowhere").run()


def test_new_partitions_are_read_from_their_first_record(broker: KafkaBroker, tmp_path: Path) -> None:
    """Also where the job began at the latest records."""
    broker.produce("grows", rows(0, 20))
    admin = AdminClient({"bootstrap.servers": broker.address})
    with running(job_of(tmp_path, broker, "grows", begin="latest", discover_s=0.5)) as found:
        time.sleep(2)
        for made in admin.create_partitions([NewPartitions("grows", PARTITIONS + 3)]).values():
            made.result(30)
        broker.produce("grows", rows(20, 300))
        wait_for(tmp_path, 300, found)
    assert ids_in(tmp_path) == list(range(20, 300))


def test_the_guide_runs_as_it_stands(broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the broker of the test, until it is told to stop."""
    records, program = (
        block.replace("localhost:9092", broker.address).replace("interval_s=10", "interval_s=0.2")
        for block in python_blocks("docs/PIPELINE.md")
        if "localhost:9092" in block
    )
    (query,) = re.findall(r'duckdb\.sql\(\\"(.*)\\"\)', (ROOT / "docs" / "PIPELINE.md").read_text())
    monkeypatch.chdir(tmp_path)
    exec(records, {})  # noqa: S102 - the guide's own program.
    (tmp_path / "orders.py").write_text(program)
    command = subprocess.Popen(
        [sys.executable, "-m", "partfile", "run", "orders.py"], stdout=subprocess.PIPE, text=True
    )
    ends = time.monotonic() + PATIENCE_S
    while offsets_of(tmp_path / "orders", "orders") < 1001 and time.monotonic() < ends:
        assert command.poll() is None
        time.sleep(0.2)
    command.send_signal(signal.SIGINT)
    told, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0
    assert told.startswith("orders: 999 rows, 1 dead letter, ")
    assert "position           topic orders, 3 partitions, 0 records waiting\n" in command_line.told("status", "orders")
    days = duckdb.execute(query).fetchall()
    assert [(str(day), count) for day, count, _ in days] == [(f"2026-01-0{day}", 333) for day in (1, 2, 3)]
    assert sum(price for _, _, price in days) == sum(number / 4 for number in range(1000))
    (dead,) = [json.loads(line) for one in Path("dead-letters").glob("part-*.json") for line in one.open()]
    assert base64.b64decode(dead["value"]) == b"this is no order"
    assert dead["topic"] == "orders"
