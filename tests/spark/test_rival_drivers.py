"""Run two drivers at once, and stop one of them anywhere: one history."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driver_process import Driver, copy_checkpoint
from spark_support import expected, ids_by_duckdb, write_source
from watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark
STOPS = (110, 150, 211, 280, 333)
"""Storage calls of a driver; one of them in every run, all with ``--long``."""


def start_driver(root: Path, checkpoint: str = "spark", **job: Any) -> Driver:
    """A driver whose stream, checkpoint and output are below one directory."""
    fixed = {"base": str(root / "out"), "source": str(root / "source"), "checkpoint": str(root / checkpoint)}
    return Driver(fixed | job)


@pytest.mark.fault("D9")
def test_two_drivers_on_one_uid_make_one_history(tmp_path: Path) -> None:
    """A second driver takes over in the middle: the first one is fenced, and every row is there once."""
    rows = write_source(tmp_path / "source", 30, rows_a_file=20)
    with Watcher(tmp_path / "out"):
        first = start_driver(tmp_path)
        assert first.wait_for("end 2") is not None
        os.kill(first.process.pid, signal.SIGSTOP)
        copy_checkpoint(tmp_path / "spark", tmp_path / "copy")
        second = start_driver(tmp_path, checkpoint="copy")
        assert second.wait_for("end") is not None
        os.kill(first.process.pid, signal.SIGCONT)
        assert second.finish() == "done"
        assert first.finish() == "fenced"
    assert ids_by_duckdb(tmp_path / "out") == expected(rows)


@pytest.mark.fault("D10")
def test_a_driver_stopped_at_a_storage_call_is_fenced_later(
    tmp_path: Path, chosen: Callable[[int, int], list[int]]
) -> None:
    """SIGSTOP before a storage call of the driver, three batches by another one, SIGCONT: one linear history.

    Sampled here on real Spark; at more calls, or all with ``--long``, in tests/crash/test_two_coordinators.py.
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


def wait_until_stopped(pid: int, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        assert time.monotonic() < deadline, "the driver never reached that call"
        time.sleep(0.05)
