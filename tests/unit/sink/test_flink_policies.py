"""Scenarios of Flink's suites about names, counters and rolling policies, each under its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest
from harness import Harness

import partfile as pf
from partfile.sink.policies import PartProgress, RollingPolicy

if TYPE_CHECKING:
    from pathlib import Path


def test_t_b10_the_counter_goes_on_from_the_union_maximum(tmp_path: Path) -> None:
    """After a restore with another number of subtasks every counter starts beyond the highest of the old ones."""
    job = Harness(tmp_path, 2, max_part_bytes=7)
    job.write("a@000", subtask=0)
    job.write("a@001", "a@002", "a@003", subtask=1)
    job.checkpoint()
    highest = job.coordinator.state.max_count
    assert highest == 1
    job.restore(3)
    for subtask in range(3):
        job.write("a@004", subtask=subtask)
    job.checkpoint()
    names = {path.name.split(".")[0] for path in tmp_path.rglob("*.in-progress")}
    chain = job.coordinator.state.position.chain
    assert names == {f"_part-{chain}-{subtask}-{highest + 1}" for subtask in range(3)}


def test_t_b13_a_bucket_that_comes_back_takes_a_new_name(tmp_path: Path) -> None:
    """A bucket that was closed and left the state does not overwrite its first part when it gets rows again."""
    job = Harness(tmp_path, idle_ms=2)
    for now_ms in (3, 10):
        job.at(now_ms)
        job.write("test1@x")
        job.at(now_ms + 4)
        job.checkpoint()
    assert sorted(job.finished()) == ["test1/part-0-0.txt", "test1/part-0-1.txt"]
    assert not job.coordinator.state.open


def test_t_b26_the_default_policy() -> None:
    """Size, inactivity and age decide as in the reference vectors."""
    policy = RollingPolicy(max_part_bytes=10, inactivity_interval_s=0.004, rollover_interval_s=0.011)
    assert not policy.should_roll_on_event(PartProgress(6, 1, 1, 1))
    assert policy.should_roll_on_event(PartProgress(12, 2, 1, 2))
    assert not policy.should_roll_on_time(PartProgress(6, 1, 3, 3), 5)
    assert policy.should_roll_on_time(PartProgress(6, 1, 3, 3), 7)
    assert policy.should_roll_on_time(PartProgress(6, 1, 3, 19), 20)
    assert not policy.should_roll_on_checkpoint(PartProgress(9, 1, 3, 3))


def test_t_b29_a_policy_of_the_users_own(tmp_path: Path) -> None:
    """A subclass with its own hooks is asked on rows, checkpoints and time."""

    class TwoRows(RollingPolicy):
        def should_roll_on_event(self, part: PartProgress) -> bool:
            return part.rows >= 2

        def should_roll_on_checkpoint(self, part: PartProgress) -> bool:
            return part.rows == 1

        def should_roll_on_time(self, part: PartProgress, now_ms: int) -> bool:
            return now_ms - part.last_write_ms >= 10

    job = Harness(tmp_path, rolling=TwoRows())
    job.write("a@1", "a@2", "a@3")
    assert job.counts() == (1, 1, 0, 0)
    job.checkpoint()
    assert job.counts() == (0, 0, 2, 0)
    job.write("a@4", "a@5")
    job.checkpoint()
    assert job.counts() == (1, 0, 2, 0)
    job.at(10)
    job.checkpoint()
    assert job.counts() == (0, 0, 3, 0)


@pytest.mark.parametrize(("columnar", "count"), [("per_checkpoint", 6), ("staged", 2)])
def test_t_b30_t_b31_a_bulk_format_rolls_at_every_checkpoint(tmp_path: Path, columnar: str, count: int) -> None:
    """Parquet cannot be cut, so each checkpoint finishes its files, unless they are staged; each file is whole."""
    sink = pf.FileSink(tmp_path, uid="job", format="parquet", columnar=columnar, bucketer=pf.HiveBucketer("k"))
    with sink.local() as out:
        for number in range(3):
            out.write(pa.RecordBatch.from_pydict({"k": [1, 2], "v": [number, number + 10]}))
            out.checkpoint()
    files = sorted(tmp_path.glob("k=*/*.parquet"))
    assert len(files) == count
    assert sorted(value for path in files for value in pa.parquet.read_table(path).column("v").to_pylist()) == [
        0,
        1,
        2,
        10,
        11,
        12,
    ]


def test_t_b32_prefix_and_suffix(tmp_path: Path) -> None:
    """All affixes are the user's: of finished, in-progress and pending files."""
    naming = pf.PartNaming(
        part_prefix="prefix", part_suffix=".ext", in_progress_prefix=".", in_progress_suffix=".tmp", pending_suffix=".p"
    )
    job = Harness(tmp_path, naming=naming)
    job.write("a@1")
    job.checkpoint()
    assert [path.name.startswith(".prefix-") and path.name.endswith(".tmp") for path in tmp_path.glob("a/.*")] == [True]
    job.restore()
    assert list(job.finished()) == ["a/prefix-0-0.ext"]


def test_t_b33_the_base_path_bucket_is_the_base_itself(tmp_path: Path) -> None:
    """Without a bucketer files lie directly below the base."""
    with pf.FileSink(tmp_path, uid="job", format="text", bucketer=pf.BasePathBucketer()).local() as out:
        out.write(pa.RecordBatch.from_pydict({"row": ["x"]}))
    assert len(list(tmp_path.glob("part-*"))) == 1
