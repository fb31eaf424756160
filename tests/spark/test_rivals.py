"""Rivals on one history: two drivers at once, and a task attempt that writes after another has won."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import Fenced
from partfile.sink.coordinator import Runtime
from partfile.sink.spark.write_job import run_write_job
from partfile.sink.states import SubtaskSnapshot
from support.processes.deadline import wait_until
from support.spark.drivers import STREAMS, Driver, copy_checkpoint
from support.spark.streams import Once, expected, finished, ids_by_duckdb, make_sink, run, stream, write_source
from support.spark.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


# Run two drivers at once, and stop one of them anywhere: one history.

STOPS = (110, 150, 211, 280, 333)
"""Storage calls of a driver; one of them in every run, all with ``--long``."""


def start_driver(root: Path, checkpoint: str = "spark", **job: Any) -> Driver:
    """A driver whose stream, checkpoint and output are below one directory."""
    fixed = {"base": str(root / "out"), "source": str(root / "source"), "checkpoint": str(root / checkpoint)}
    return Driver(fixed | job)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.fault("D9")
@pytest.mark.drawn(1)
@pytest.mark.parametrize("more", STREAMS.values(), ids=STREAMS)
def test_two_drivers_on_one_uid_make_one_history(tmp_path: Path, more: dict[str, Any]) -> None:
    """A second driver takes over in the middle: the first one is fenced, and every row is there once."""
    rows = write_source(tmp_path / "source", 12, rows_a_file=20)
    with Watcher(tmp_path / "out"):
        first = start_driver(tmp_path, **more)
        assert first.wait_for("end 2") is not None
        os.kill(first.process.pid, signal.SIGSTOP)
        copy_checkpoint(tmp_path / "spark", tmp_path / "copy")
        second = start_driver(tmp_path, checkpoint="copy", **more)
        assert second.wait_for("end") is not None
        os.kill(first.process.pid, signal.SIGCONT)
        assert second.finish() == "done"
        assert first.finish() == "fenced"
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.fault("D10")
def test_a_driver_stopped_at_a_storage_call_is_fenced_later(
    tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGSTOP before a storage call of the driver, three batches by another one, SIGCONT: one linear history.

    Sampled here on real Spark; at more calls, or all with ``--long``, in tests/faults/test_two_coordinators.py.
    """
    for one in chosen(len(STOPS), 1):
        stop_and_let_another_go_on(tmp_path / str(one), STOPS[one - 1])


def stop_and_let_another_go_on(root: Path, stop_at: int) -> None:
    root.mkdir()
    rows = write_source(root / "source", 12, rows_a_file=20)
    with Watcher(root / "out"):
        first = start_driver(root, stop_at=stop_at)
        wait_until_stopped(first.process.pid)
        copy_checkpoint(root / "spark", root / "copy")
        second = start_driver(root, checkpoint="copy")
        for _ in range(3):
            assert second.wait_for("end") is not None
        os.kill(first.process.pid, signal.SIGCONT)
        assert second.finish() == "done"
        assert first.finish() == "fenced"
    assert ids_by_duckdb(root / "out") == expected(rows)


def wait_until_stopped(pid: int) -> None:
    status = Path(f"/proc/{pid}/stat")
    wait_until(lambda: status.read_text().rsplit(")", 1)[1].split()[0] == "T", "the driver never reached that call")


# A task attempt that goes on writing after another has won and its batch is committed.

ROWS_A_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def let_it_write(flag: Path) -> dict[str, Any]:
    """Give the zombie its sign, wait until it is through, and return how it went."""
    Path(f"{flag}.go").touch()
    end = Path(f"{flag}.end")
    wait_until(end.exists, "the zombie does not come to an end")
    outcome: dict[str, Any] = json.loads(end.read_text())
    return outcome


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("cut", ["auto", "rewrite"])
@pytest.mark.fault("D3")
def test_a_zombie_that_writes_after_the_commit_changes_nothing(spark: SparkSession, tmp_path: Path, cut: str) -> None:
    """Its parts were open across batches and hold rows of it already: neither finished files nor later ones change."""
    rows = write_source(tmp_path / "source", 5)
    base, flag = tmp_path / "out", tmp_path / "flag"
    sink = make_sink(base, bucketer=Once(flag, "zombie", row=75), cut=cut)
    outcomes: list[dict[str, Any]] = []

    def then_the_zombie(df: DataFrame, batch_id: int) -> None:
        sink.foreach_batch(df, batch_id)
        if batch_id == 2:
            outcomes.append(let_it_write(flag))

    spark.conf.set(ROWS_A_BATCH, 10)
    try:
        with Watcher(base):
            writer = stream(spark, tmp_path / "source").writeStream.foreachBatch(then_the_zombie)
            writer = writer.option("checkpointLocation", str(tmp_path / "spark")).trigger(availableNow=True)
            writer.start().awaitTermination()
            finish(spark, base, tmp_path, flag)
    finally:
        spark.conf.unset(ROWS_A_BATCH)
    assert ids_by_duckdb(base) == expected(rows)
    # It holds its lock, so the coordinator has published a copy and taken the name from its file.
    assert [outcome["end"].partition(":")[0] for outcome in outcomes] == ["LeaseUnavailable"]


@pytest.mark.spark
@pytest.mark.fault("D9")
def test_a_driver_whose_answers_a_rival_deletes_is_fenced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks have written their answers beside a checkpoint that is to be; the rival deletes one with that id."""
    write_source(tmp_path / "source", 1, rows_a_file=20)
    sink = make_sink(tmp_path / "out", inline_threshold_bytes=0, retained_checkpoints=1)

    def then_a_rival_goes_on(*arguments: Any) -> Any:
        acknowledged = run_write_job(*arguments)
        monkeypatch.undo()
        rival = Runtime(sink.settings, "numbers")
        rival.coordinator.start(lambda _position: None, 0)
        for _ in range(3):
            triggered = rival.coordinator.trigger(0)
            rival.coordinator.complete(triggered, [SubtaskSnapshot(subtask=0)], rival.coordinator.state.position)
        rival.close()
        return acknowledged

    monkeypatch.setattr("partfile.sink.spark.stream.run_write_job", then_a_rival_goes_on)
    with pytest.raises(Fenced, match="another coordinator has taken over"):
        run(sink, stream(spark, tmp_path / "source"), str(tmp_path / "spark"))


def finish(spark: SparkSession, base: Path, root: Path, flag: Path) -> None:
    """Publish what is open: the next run of the query, with its clean end."""
    sink = make_sink(base, bucketer=Once(flag, "zombie", row=75))
    options: dict[str, Any] = {"checkpoint_location": str(root / "spark"), "trigger": {"availableNow": True}}
    with sink.start(stream(spark, root / "source"), **options) as query:
        query.awaitTermination()
    assert finished(base)
