"""The guide to Kafka, followed: a real broker, its program killed and started again, each record in the files once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

import partfile as pf
from support.kafka.broker import KafkaBroker, source_jars
from support.processes.command_line import told
from support.processes.deadline import wait_until
from support.repo.documents import ROOT, python_blocks
from support.spark.classes import environment

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GUIDE = "docs/GUIDES.md"
AT_ONCE = ('processingTime="1 second"', "availableNow=True")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs."""
    directory = tmp_path / "work"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def program(kafka: KafkaBroker, *changes: tuple[str, str]) -> str:
    """The guide's program, on this broker and with jars that are on this machine.

    Args:
        kafka: The broker.
        changes: Further texts of it, and what is there instead.
    """
    (block,) = [block for block in python_blocks(GUIDE) if "kafka.bootstrap.servers" in block]
    jars = ",".join(map(str, source_jars()))
    for old, new in [
        ('config("spark.jars.packages", connector)', f'config("spark.jars", {jars!r}).master("local[2]")'),
        ("localhost:9092", kafka.address),
        ("10 seconds", "1 second"),
        ("100_000", "1_000"),
        *changes,
    ]:
        assert old in block
        block = block.replace(old, new)
    return block


def started(script: str, directory: Path) -> subprocess.Popen[bytes]:
    """The program as a process of its own."""
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**os.environ, **environment()}, stdout=log, stderr=log
        )


def to_its_end(script: str, directory: Path) -> int:
    """Run the program until it ends by itself; returns its exit code."""
    return started(script, directory).wait(300)


def batches() -> list[Path]:
    """Those that Spark has noted as done."""
    return list(Path("checkpoints/orders/commits").glob("[0-9]*"))


def wait_for_batches(count: int) -> None:
    """Wait until so many are done."""
    wait_until(lambda: len(batches()) >= count, f"{count} batches are not done")


def orders(first: int, last: int) -> Iterator[str]:
    """Records."""
    return (json.dumps({"id": number, "shop": f"shop {number % 7}"}) for number in range(first, last))


def holes() -> list[tuple[int, ...]]:
    """What the guide's statement finds."""
    (statement,) = re.findall(r"```sql\n(.*?)```", (ROOT / GUIDE).read_text(), re.DOTALL)
    return duckdb.connect().execute(statement).fetchall()


def assert_each_once(count: int) -> None:
    """Each record is in the files once."""
    ids = pf.read("landing/orders").to_table()["id"].to_pylist()
    assert sorted(ids) == list(range(count))


def test_each_record_is_in_the_files_once(
    kafka: KafkaBroker, directory: Path, rng: random.Random, request: pytest.FixtureRequest
) -> None:
    """Driver and broker are killed; then Spark's checkpoint is lost, and the guide makes a new query go on."""
    rows = 2000
    kafka.produce("orders", orders(0, rows))
    for breaks_kafka in [False, True] if request.config.getoption("--long") else [True]:
        done = len(batches())
        killed = started(program(kafka), directory)
        # Two batches at least, whatever the life before has left.
        kafka.produce("orders", orders(rows, rows + 1000))
        rows += 1000
        wait_for_batches(done + 1)
        if breaks_kafka:
            kafka.kill()
            kafka.start()
        time.sleep(rng.uniform(0, 3))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert to_its_end(program(kafka, AT_ONCE), directory) == 0
    assert_each_once(rows)
    assert not holes()

    kafka.produce("orders", orders(rows, rows + 1000))
    shutil.rmtree("checkpoints")
    assert to_its_end(program(kafka, AT_ONCE), directory) == 1
    (query,) = set(re.findall(r"on_new_query='(adopt:[0-9a-f-]+)'", (directory / "log").read_text()))
    told("recover", "landing/orders", "--apply")
    (ask,) = [block for block in python_blocks(GUIDE) if "startingOffsets" not in block and "max(" in block]
    ends = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    begins = ('"earliest"', repr(ends))
    adopts = ('uid="orders"', f'uid="orders", on_new_query={query!r}')
    assert to_its_end(program(kafka, AT_ONCE, begins, adopts), directory) == 0
    assert_each_once(rows + 1000)
    assert not holes()
