"""Scenarios of Flink's suites, each under its id, as far as they make sense here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.parquet
import pytest

import partfile as pf
from partfile.errors import CommitConflict, ConfigError
from partfile.sink.policies import PartProgress, RollingPolicy
from support.sinks.harness import Harness

if TYPE_CHECKING:
    from pathlib import Path


# Scenarios of Flink's suites, each under its id, as far as they make sense here.
#
# Two rules differ and show in the numbers: a restored part is never appended to but published at its valid length, and
# publishing needs no notification, since the coordinator itself publishes once a checkpoint is complete.


def test_t_a01_t_b01_open_and_close_without_a_row(tmp_path: Path) -> None:
    """A run without any row leaves no part file and no error."""
    job = Harness(tmp_path)
    job.checkpoint()
    job.crash()
    with pf.FileSink(tmp_path, uid="other", format="text", on_used_base="accept").local():
        pass
    assert job.counts() == (0, 0, 0, 0)


def test_t_a02_parts_become_finished_in_the_order_of_their_checkpoints(tmp_path: Path) -> None:
    """Each completed checkpoint publishes what rolled up to it, and nothing that came later."""
    job = Harness(tmp_path, idle_ms=100)
    job.write("test1", "test2")
    assert job.counts() == (2, 0, 0, 0)
    job.at(101)
    job.abort()
    assert job.counts() == (0, 2, 0, 0)
    job.write("test3", "test4")
    job.at(202)
    job.checkpoint()
    assert job.counts() == (0, 0, 4, 0)


def test_t_a03_state_transitions_and_restore(tmp_path: Path) -> None:
    """What a checkpoint vouches for is finished after a restore; what came later stays as it was, for the cleaner."""
    job = Harness(tmp_path, idle_ms=100)
    job.write("test1", "test2")
    job.at(101)
    job.write("test3")
    job.checkpoint()
    assert job.counts() == (1, 0, 2, 0)
    job.restore()
    assert job.counts() == (0, 0, 3, 0)
    job.write("test4")
    job.restore()
    assert job.counts() == (1, 0, 3, 0)
    assert set(job.finished().values()) == {"test1\n", "test2\n", "test3\n"}


@pytest.mark.parametrize(("before", "after"), [(2, 2), (3, 2), (2, 3)], ids=["T-A04", "T-A05", "T-A06"])
def test_t_a04_to_t_a06_rescaling_publishes_every_committed_row(tmp_path: Path, before: int, after: int) -> None:
    """Restored with as many, fewer or more subtasks: committed parts are finished, uncommitted ones stay staged."""
    job = Harness(tmp_path, before)
    for subtask in range(before):
        job.write(f"test{subtask}", subtask=subtask)
    job.checkpoint()
    job.write("uncommitted", subtask=before - 1)
    assert job.counts() == (before + 1, 0, 0, 0)
    job.restore(after)
    assert job.counts() == (1, 0, before, 0)
    for subtask in range(after):
        job.write("test6", subtask=subtask)
    job.checkpoint()
    assert job.counts() == (1 + after, 0, before, 0)
    names = [path.name for path in tmp_path.rglob("test6/_part*")]
    assert len({name.split(".")[0] for name in names}) == after


def test_t_a07_the_rollover_interval_closes_an_aged_part(tmp_path: Path) -> None:
    """A part that is old enough is published although rows keep coming; the next row opens another."""
    job = Harness(tmp_path, age_ms=100)
    job.write("test1")
    job.at(99)
    job.write("test1")
    job.checkpoint()
    assert job.counts() == (1, 0, 0, 0)
    job.at(101)
    job.write("test1")
    job.checkpoint()
    assert job.counts() == (0, 0, 1, 0)
    job.write("test1")
    job.checkpoint()
    assert job.counts() == (1, 0, 1, 0)


def test_t_a08_text_without_buckets_keeps_the_order_of_rows(tmp_path: Path) -> None:
    """20 rows into one file below the base itself come out in order."""
    rows = [f"message #{number}" for number in range(20)]
    with pf.FileSink(tmp_path, uid="job", format="text").local() as out:
        out.write(pa.RecordBatch.from_pydict({"row": rows}))
    (path,) = tmp_path.glob("part-*-0-0.txt")
    assert path.read_text().splitlines() == rows


def test_t_a12_custom_buckets(tmp_path: Path) -> None:
    """A function of the row names four buckets, each with one part file."""
    job = Harness(tmp_path)
    job.write(*[f"{number % 4}@{number}" for number in range(20)])
    job.checkpoint()
    job.restore()
    assert sorted(job.finished()) == ["0/part-0-0.txt", "1/part-0-1.txt", "2/part-0-2.txt", "3/part-0-3.txt"]


def test_t_a13_idle_buckets_are_closed_and_busy_ones_stay_open(tmp_path: Path) -> None:
    """After six minutes the two buckets without rows for five are finished, the other two go on."""
    job = Harness(tmp_path, idle_ms=300_000)
    for now_ms, buckets in ((0, 4), (120_000, 2), (360_000, 2)):
        job.at(now_ms)
        job.write(*[f"{number % buckets}@{number}" for number in range(20)])
        job.checkpoint()
    assert job.counts() == (2, 0, 2, 0)
    assert sorted(name.split("/")[0] for name in job.finished()) == ["2", "3"]


@pytest.mark.fault("F6")
def test_t_a15_to_t_a20_a_foreign_file_under_a_final_name_is_never_replaced(tmp_path: Path) -> None:
    """Names come from the committed counter, not from probing; if one is taken, we stop and replace nothing."""
    job = Harness(tmp_path, max_part_bytes=1)
    job.write("a@1")
    job.checkpoint()
    chain = job.coordinator.state.position.chain
    foreign = tmp_path / "a" / f"part-{chain}-0-1.txt"
    foreign.write_text("not ours")
    job.write("a@2")
    with pytest.raises(CommitConflict, match=foreign.name):
        job.checkpoint()
    assert foreign.read_text() == "not ours"
    foreign.unlink()
    job.restore()
    assert job.finished() == {"a/part-0-0.txt": "a@1\n", "a/part-0-1.txt": "a@2\n"}


@pytest.mark.parametrize("base", ["gopher://host/x", "hdfs://nn/x"])
def test_t_a24_an_unknown_scheme_is_refused(base: str) -> None:
    """A URL that no store serves is refused by name, before anything is written."""
    with pytest.raises(ConfigError, match=base.split(":", maxsplit=1)[0]):
        pf.FileSink(base, uid="job", format="text").local().open()


def test_t_b03_a_restored_part_is_cut_and_published_never_appended_to(tmp_path: Path) -> None:
    """Rows after the checkpoint are cut off; the rows that come again go to a new part."""
    job = Harness(tmp_path, max_part_bytes=10)
    job.write("test1@1")
    job.checkpoint()
    job.write("test1@2", "test1@3")
    assert job.counts() == (1, 1, 0, 0)
    job.restore()
    assert job.finished() == {"test1/part-0-0.txt": "test1@1\n"}
    job.write("test1@4", "test1@5", "test1@6")
    job.checkpoint()
    assert job.finished() == {"test1/part-0-0.txt": "test1@1\n", "test1/part-0-1.txt": "test1@4\ntest1@5\n"}


@pytest.mark.fault("D15")
def test_t_b04_a_skipped_checkpoint_publishes_with_the_next_one(tmp_path: Path) -> None:
    """Checkpoint 1 completes, 2 is aborted, 3 completes: parts appear in order, those of 2 with 3."""
    job = Harness(tmp_path, max_part_bytes=10, idle_ms=100)
    job.write("t@1____", "t@2____", "t@3____")
    job.checkpoint()
    assert sorted(job.finished()) == ["t/part-0-0.txt"]
    job.write("t@4____", "t@5____", "t@6____")
    job.abort()
    assert sorted(job.finished()) == ["t/part-0-0.txt"]
    job.write("t@7____")
    job.at(101)
    job.checkpoint()
    assert [job.finished()[f"t/part-0-{n}.txt"].split() for n in range(1, 4)] == [
        ["t@3____", "t@4____"],
        ["t@5____", "t@6____"],
        ["t@7____"],
    ]


def test_t_b06_close_never_publishes(tmp_path: Path) -> None:
    """Letting go of an operator leaves its parts staged; only a checkpoint publishes."""
    job = Harness(tmp_path, max_part_bytes=2)
    job.write("test1", "test2")
    job.checkpoint()
    assert job.counts() == (0, 0, 2, 0)
    job.write("test4")
    job.crash()
    assert job.counts() == (1, 0, 2, 0)


def test_t_b08_scale_in_publishes_the_parts_of_both_subtasks(tmp_path: Path) -> None:
    """Two subtasks' parts of one bucket are both finished after a restore with one subtask."""
    job = Harness(tmp_path, 2)
    job.write("test1@0", subtask=0)
    job.write("test1@1", "test2@1", subtask=1)
    job.checkpoint()
    job.restore(1)
    assert sorted(job.finished()) == ["test1/part-0-0.txt", "test1/part-1-0.txt", "test2/part-1-1.txt"]


def test_t_b09_t_b30_roll_on_checkpoint(tmp_path: Path) -> None:
    """With on_checkpoint every checkpoint finishes what was written since the last one."""
    job = Harness(tmp_path, rolling=RollingPolicy(on_checkpoint=True))
    job.write("test1@1")
    job.checkpoint()
    job.write("test1@2", "test1@3")
    assert job.counts() == (1, 0, 1, 0)
    job.checkpoint()
    assert job.finished() == {"test1/part-0-0.txt": "test1@1\n", "test1/part-0-1.txt": "test1@2\ntest1@3\n"}


# Scenarios of Flink's suites about names, counters and rolling policies, each under its id.


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
def test_t_b30_t_b31_a_bulk_format_rolls_at_every_checkpoint(
    tmp_path: Path, columnar: Literal["staged", "per_checkpoint"], count: int
) -> None:
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
