"""The sink without Spark, and the checkpoints that it takes by itself."""

from __future__ import annotations

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import ConfigError, Fenced, PartfileError, PartMissing
from support.sinks.harness import Harness
from support.sinks.life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    finished_files,
    long_sink,
    make_sink,
    rows_of,
    run_to_the_end,
    staged_files,
)
from support.sinks.recovery import recover_all

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.progress import BatchProgress


# The sink without Spark, as a user of plain Python sees it.

KEEP = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)


def test_the_position_goes_with_the_rows(tmp_path: Path) -> None:
    """What was told with the last rows before a checkpoint comes back; what came later does not."""
    out = make_sink(tmp_path).local().open()
    out.write(batch(0, 2), position={"offset": 2})
    out.checkpoint()
    out.write(batch(2, 2), position={"offset": 4})
    out.close()
    with make_sink(tmp_path).local() as again:
        assert again.position == {"offset": 2}
    assert rows_of(finished_files(tmp_path)) == {"row-0000": 1, "row-0001": 1}


def test_leaving_by_an_error_publishes_nothing_new(tmp_path: Path) -> None:
    """An exception in the with block leaves what was checkpointed, and not the rows after it."""

    def fail() -> None:
        with make_sink(tmp_path).local() as out:
            out.write(batch(0, 2), position=2)
            out.checkpoint()
            out.write(batch(2, 2), position=4)
            raise RuntimeError("deliberate")

    with pytest.raises(RuntimeError, match="deliberate"):
        fail()
    run_to_the_end(make_sink(tmp_path), 2)
    assert_exactly_once(tmp_path, 2)


def test_kept_parts_go_on_in_the_next_run(tmp_path: Path) -> None:
    """With on_stop="keep" a part stays open over restarts and takes their rows; nothing is visible until it rolls."""
    for run in range(3):
        with make_sink(tmp_path, on_stop="keep", rolling=KEEP).local() as out:
            assert out.position == (2 * run or None)
            out.write(batch(2 * run, 2), position=2 * run + 2)
        assert finished_files(tmp_path) == {}
        assert len(staged_files(tmp_path)) == 2
    with make_sink(tmp_path, rolling=KEEP).local() as out:
        out.write(batch(6, 2), position=8)
    assert_exactly_once(tmp_path, 8)
    assert len(finished_files(tmp_path)) == 2


def test_a_kept_part_that_was_touched_is_left_alone(tmp_path: Path) -> None:
    """Kept parts must have exactly their valid length; one that grew is cut and published, and rows go to a new one."""
    with make_sink(tmp_path, on_stop="keep", rolling=KEEP).local() as out:
        out.write(batch(0, 2), position=2)
    for name in staged_files(tmp_path):
        with (tmp_path / name).open("ab") as file:
            file.write(b"torn garb")
    told: list[BatchProgress] = []
    with make_sink(tmp_path, rolling=KEEP, on_progress=told.append).local() as out:
        out.write(batch(2, 2), position=4)
    assert_exactly_once(tmp_path, 4)
    assert len(finished_files(tmp_path)) == 4
    assert [one.parts_abandoned for one in told] == [2]


def test_a_second_process_fences_the_first(tmp_path: Path) -> None:
    """The older sink learns at its next checkpoint that it is fenced, and is closed."""
    first = make_sink(tmp_path).local().open()
    first.write(batch(0, 2), position=2)
    run_to_the_end(make_sink(tmp_path), 4)
    with pytest.raises(Fenced, match="Only one query or process") as raised:
        first.checkpoint()
    assert raised.value.hint.endswith(f": partfile status {tmp_path} --uid life")
    assert_exactly_once(tmp_path, 4)


@pytest.mark.fault("D11")
def test_independent_writers_share_a_uid_by_their_index(tmp_path: Path) -> None:
    """Each subtask index has checkpoints of its own, so several processes write side by side."""
    sinks = [make_sink(tmp_path).local(subtask_index=index).open() for index in range(3)]
    for index, out in enumerate(sinks):
        out.write(batch(index, 1), position=index)
        out.checkpoint()
    for out in sinks:
        out.finish()
    assert_exactly_once(tmp_path, 3)


def test_progress_is_told_for_each_checkpoint(tmp_path: Path) -> None:
    """The callback gets rows, bytes and parts by state; one that raises harms nothing."""
    seen: list[BatchProgress] = []

    def note(progress: BatchProgress) -> None:
        seen.append(progress)
        raise RuntimeError("deliberate")

    with make_sink(tmp_path, on_progress=note, rolling=KEEP).local() as out:
        out.write(batch(0, 3))
        out.checkpoint()
    assert [(one.rows, one.parts_in_progress, one.parts_finished) for one in seen] == [(3, 2, 0), (0, 0, 2)]
    assert seen[0].bytes == 27


@pytest.mark.fault("F13")
def test_open_parts_are_capped(tmp_path: Path) -> None:
    """Beyond the cap the least recently used part is rolled, so open files are bounded whatever the data."""
    job = Harness(tmp_path, max_open_parts=2)
    job.write("a@1", "b@1", "a@2", "c@1")
    assert job.counts() == (2, 1, 0, 0)
    job.checkpoint()
    assert list(job.finished()) == ["b/part-0-1.txt"]


def test_each_schema_has_an_open_part_of_its_own(tmp_path: Path) -> None:
    """Rows of two schemas in turn do not roll each other's parts."""
    with pf.FileSink(tmp_path, uid="u", format="json", rolling=KEEP).local() as out:
        for number in range(3):
            out.write(pa.RecordBatch.from_pydict({"a": [number]}))
            out.write(pa.RecordBatch.from_pydict({"a": [number], "b": ["x"]}))
            out.checkpoint()
    contents = sorted(path.read_text() for path in tmp_path.glob("part-*.json"))
    assert contents == [
        '{"a":0,"b":"x"}\n{"a":1,"b":"x"}\n{"a":2,"b":"x"}\n',
        '{"a":0}\n{"a":1}\n{"a":2}\n',
    ]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_parts_go_on_over_checkpoints_and_crashes(tmp_path: Path, compression: str) -> None:
    """One member or frame a checkpoint: a part cut at any checkpoint decompresses to whole rows."""
    options: dict[str, Any] = {"uid": "u", "format": "text", "compression": compression, "rolling": KEEP}
    out = pf.FileSink(tmp_path, **options).local().open()
    for number in range(4):
        out.write(pa.RecordBatch.from_pydict({"row": [f"row {number}"]}))
        if number < 3:
            out.checkpoint()
    out.close()
    with pf.FileSink(tmp_path, **options).local():
        pass
    (path,) = tmp_path.glob("part-*")
    with pa.input_stream(str(path), compression=compression) as stream:
        assert stream.read() == b"row 0\nrow 1\nrow 2\n"


def test_a_consumer_may_move_published_files(tmp_path: Path) -> None:
    """Once a checkpoint is marked as published no restart looks for its files again (R5)."""
    run_to_the_end(make_sink(tmp_path), 6)
    for name in finished_files(tmp_path):
        (tmp_path / name).unlink()
    run_to_the_end(make_sink(tmp_path), 12)
    assert rows_of(finished_files(tmp_path)) == {f"row-{number:04d}": 1 for number in range(6, 12)}


def test_a_part_that_is_gone_can_be_given_up_on_purpose(tmp_path: Path) -> None:
    """``--accept-missing`` is the way out of a part that is gone for good; all other rows stay."""
    out = make_sink(tmp_path, rolling=KEEP).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    (tmp_path / staged_files(tmp_path)[0]).unlink()
    with pytest.raises(PartMissing, match=re.escape(f"partfile recover {tmp_path} --uid ")):
        make_sink(tmp_path).local().open()
    recover_all(tmp_path, accept_missing=True)
    with make_sink(tmp_path).local() as again:
        assert again.position == 4
    assert rows_of(finished_files(tmp_path)) == {"row-0001": 1, "row-0003": 1}


def test_carried_state_is_written_again_into_its_own_checkpoint(tmp_path: Path) -> None:
    """Whatever its size, a checkpoint names only files of its own directory (R11), so older ones can be deleted."""
    rows = pa.RecordBatch.from_pydict({"row": [f"bucket-{number:03d}@x" for number in range(100)]})
    job = Harness(tmp_path, buckets_per_staging_file=None)
    job.operators[0].write(rows)
    job.checkpoint()
    for _ in range(4):
        job.checkpoint()
    checkpoints = sorted((tmp_path / "_partfile" / "job").glob("chk-*"))
    assert len(checkpoints) == 2
    for checkpoint in checkpoints:
        files = {path.name for path in checkpoint.glob("*.state")}
        assert files
        assert all(f"{checkpoint.name}/{name}" in (checkpoint / "_metadata").read_text() for name in files)
    job.restore()
    assert len(job.finished()) == 100


@pytest.mark.fault("H3")
def test_nothing_is_deleted_that_a_crash_left(tmp_path: Path) -> None:
    """Writers and restores delete only names of parts just published: orphans stay for the cleaner (R6)."""
    out = make_sink(tmp_path).local().open()
    out.write(batch(0, 2))
    orphans = staged_files(tmp_path)
    out.close()
    run_to_the_end(make_sink(tmp_path))
    assert staged_files(tmp_path) == orphans
    assert_exactly_once(tmp_path)


# Checkpoints that a LocalSink takes by itself: when, with which position, and what happens when one fails.


class Clock:
    """A clock that stands still unless the test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        """The time."""
        return self.now_ms


class SlowPolicy(pf.RollingPolicy):
    """Deciding about a part at a checkpoint takes longer than any interval."""

    clock: Clock

    def should_roll_on_checkpoint(self, part: pf.PartProgress) -> bool:
        """Time passes."""
        self.clock.now_ms += 100_000
        return super().should_roll_on_checkpoint(part)


class Progress(list["BatchProgress"]):
    """What a sink reports."""

    @property
    def ids(self) -> list[int]:
        """The ids of the checkpoints."""
        return [one.checkpoint_id for one in self]


@pytest.mark.item("LT-03", "CC-08")
def test_checkpoints_are_taken_when_the_interval_is_over(tmp_path: Path) -> None:
    """The write that finds it over ends with a checkpoint, which holds its rows and its position; others do not."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=60).open()
    for number, time in enumerate((0, 59_999, 60_000, 119_999, 120_000), start=1):
        clock.now_ms = 1_000_000 + time
        out.write(batch(2 * number - 2, 2), position=2 * number)
    assert told.ids == [2, 3]
    assert [one.rows for one in told] == [6, 4]
    assert out.position == 10
    out.close()
    assert continue_to(make_sink(tmp_path), 12) == 10
    assert_exactly_once(tmp_path, 12)


@pytest.mark.item("CC-08")
def test_a_checkpoint_that_was_asked_for_puts_the_periodic_one_off(tmp_path: Path) -> None:
    """There is always the whole interval between two."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=60).open()
    clock.now_ms += 40_000
    out.checkpoint()
    for time, ids in ((30_000, [2]), (29_999, [2]), (1, [2, 3])):
        clock.now_ms += time
        out.poll()
        assert told.ids == ids
    out.close()


@pytest.mark.item("LT-04", "CC-08")
def test_the_interval_counts_from_the_end_of_a_slow_checkpoint(tmp_path: Path) -> None:
    """One that takes longer than the interval is not followed by the next at once."""
    clock = Clock()
    rolling = SlowPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6, clock=clock)
    out = make_sink(tmp_path, clock=clock, rolling=rolling).local(checkpoint_interval_s=60).open()
    out.write(batch(0, 1), position=1)
    clock.now_ms += 60_000
    assert out.poll() is not None
    clock.now_ms += 59_999
    assert out.poll() is None
    clock.now_ms += 1
    assert out.poll() is not None
    out.close()


def test_without_an_interval_nothing_is_taken_unasked(tmp_path: Path) -> None:
    """Neither writing nor polling takes a checkpoint, however long it has been, and no position is needed."""
    clock, told = Clock(), Progress()
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local().open()
    clock.now_ms += 10**9
    out.write(batch(0, 2))
    assert out.poll() is None
    assert told == []
    out.close()


def test_rows_behind_the_position_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next run goes on from the position, and would write them again; a later position covers them."""
    with pf.FileSink(tmp_path, uid="u").local() as out:
        out.write(pa.table({"id": [1]}), position=1)
        out.write(pa.table({"id": [2]}))
        out.checkpoint(position=2)
        out.write(pa.table({"id": [3]}))
        out.write(pa.table({"id": [4]}), position=4)
        out.write(pa.table({"id": pa.array([], "int64")}))
        out.checkpoint()
        assert not caplog.text
        out.write(pa.table({"id": [5]}))
        out.checkpoint()
        out.checkpoint()
    assert caplog.text.count("rows were written without a position after position=4") == 1
    with pf.FileSink(tmp_path / "counted", uid="u").local() as out:
        out.write(pa.table({"id": [1]}))
        out.checkpoint()
    assert caplog.text.count("without a position") == 1


def test_a_write_without_a_position_is_refused(tmp_path: Path) -> None:
    """A checkpoint after it would say that the input stands where it stood before; nothing is written, it goes on."""
    clock = Clock()
    with long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60) as out:
        with pytest.raises(ConfigError, match="write needs a position"):
            out.write(batch(0, 2))
        out.write(batch(0, 2), position=2)
    assert_exactly_once(tmp_path, 2)


def test_a_periodic_checkpoint_that_is_fenced_closes_the_sink(tmp_path: Path) -> None:
    """As one that was asked for: the rows since the last one do not count here, and the rival goes on."""
    clock = Clock()
    out = long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60).open()
    out.write(batch(0, 2), position=2)
    rival = long_sink(tmp_path).local().open()
    clock.now_ms += 60_000
    with pytest.raises(Fenced):
        out.write(batch(2, 2), position=4)
    with pytest.raises(PartfileError, match="closed"):
        out.poll()
    assert rival.position is None
    rival.close()
    run_to_the_end(make_sink(tmp_path))
    assert_exactly_once(tmp_path)


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), "60", True, 10**10])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, interval: Any) -> None:
    """The error names it; nothing is opened."""
    with pytest.raises(ConfigError, match="checkpoint_interval_s is"):
        make_sink(tmp_path / "out").local(checkpoint_interval_s=interval)
    assert not (tmp_path / "out").exists()


@pytest.mark.item("SS-03")
def test_an_offset_that_is_moved_on_in_place_is_not_the_position(tmp_path: Path) -> None:
    """A position is kept as it was passed, and given out as it is kept: rows not written yet never count as written."""
    clock = Clock()
    out = long_sink(tmp_path, clock=clock).local(checkpoint_interval_s=60).open()
    offset: Any = {"at": [4]}
    out.write(batch(0, 4), position=offset)
    offset["at"][0] = 8
    clock.now_ms += 60_000
    assert out.poll()
    assert out.position == {"at": [4]}
    given: Any = out.position
    given["at"][0] = 9
    assert out.position == {"at": [4]}
    out.checkpoint(offset)
    offset["at"][0] = 12
    out.close()
    with long_sink(tmp_path).local() as again:
        assert again.position == {"at": [8]}


@pytest.mark.item("CC-08")
@pytest.mark.fault("T1")
def test_a_clock_that_is_set_back_puts_nothing_off_for_long(tmp_path: Path) -> None:
    """An hour back: the next checkpoint comes one interval later, by the new time, and so do those after it."""
    clock, told = Clock(), Progress()
    clock.now_ms = 10_000_000
    out = long_sink(tmp_path, clock=clock, on_progress=told.append).local(checkpoint_interval_s=10).open()
    out.write(batch(0, 1), position=1)
    clock.now_ms += 10_000
    assert out.poll()
    clock.now_ms -= 3_600_000
    out.write(batch(1, 1), position=2)
    taken = len(told)
    for _ in range(3):
        clock.now_ms += 10_000
        out.write(batch(2, 1), position=3)
    assert len(told) >= taken + 2
    out.close()


@pytest.mark.parametrize("call", ["write", "checkpoint", "poll", "savepoint", "stop_with_savepoint", "finish"])
def test_a_call_while_another_thread_is_in_one_is_refused_and_disturbs_nothing(tmp_path: Path, call: str) -> None:
    """The thread that was first writes on, and each of its rows comes once; later another thread may take over."""
    hold, is_in, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def clock() -> int:
        if hold.is_set():
            is_in.set()
            assert may_go_on.wait(60)
        return 1_000_000

    given: dict[str, tuple[Any, ...]] = {"write": (batch(4, 4),), "savepoint": (tmp_path / "s",)}
    with long_sink(tmp_path / "out", clock=clock).local() as out, ThreadPoolExecutor(2) as pool:
        hold.set()
        first = pool.submit(out.write, batch(0, 4))
        assert is_in.wait(60)
        with pytest.raises(PartfileError, match=r"(?s)another thread is using this LocalSink.*subtask_index=N"):
            getattr(out, call)(*given.get(call, ()))
        hold.clear()
        may_go_on.set()
        first.result(60)
        pool.submit(out.checkpoint, 4).result(60)
        pool.submit(out.write, batch(4, 4)).result(60)
    assert_exactly_once(tmp_path / "out", 8)
    assert not (tmp_path / "s").exists()


def test_a_block_that_is_left_while_another_thread_writes_closes_after_it(tmp_path: Path) -> None:
    """The end is refused; no file is closed under the write, and the next run begins at the last checkpoint."""
    hold, is_in, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def clock() -> int:
        if hold.is_set():
            is_in.set()
            assert may_go_on.wait(60)
        return 1_000_000

    def leave() -> None:
        with out:
            out.checkpoint(0)
            hold.set()
            writes.append(pool.submit(out.write, batch(0, 4)))
            assert is_in.wait(60)
            hold.clear()

    writes: list[Future[None]] = []
    out = long_sink(tmp_path, clock=clock).local()
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(leave)
        assert is_in.wait(60)
        with pytest.raises(TimeoutError):
            left.result(0.5)
        may_go_on.set()
        assert writes[0].result(60) is None
        with pytest.raises(PartfileError, match="another thread is using this LocalSink"):
            left.result(60)
    assert continue_to(long_sink(tmp_path), 8) == 0
    assert_exactly_once(tmp_path, 8)
