"""The sink without Spark, as a user of plain Python sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from harness import Harness
from life_cycle import assert_exactly_once, batch, finished_files, make_sink, rows_of, run_to_the_end, staged_files

import partfile as pf
from partfile.errors import Fenced, PartMissing

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.progress import BatchProgress

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
    with make_sink(tmp_path, rolling=KEEP).local() as out:
        out.write(batch(2, 2), position=4)
    assert_exactly_once(tmp_path, 4)
    assert len(finished_files(tmp_path)) == 4


def test_a_second_process_fences_the_first(tmp_path: Path) -> None:
    """The older sink learns at its next checkpoint that it is fenced, and is closed."""
    first = make_sink(tmp_path).local().open()
    first.write(batch(0, 2), position=2)
    run_to_the_end(make_sink(tmp_path), 4)
    with pytest.raises(Fenced, match="Only one query or process"):
        first.checkpoint()
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


@pytest.mark.fault("S13")
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
    """Once a checkpoint is marked as published no restart looks for its files again (S5)."""
    run_to_the_end(make_sink(tmp_path), 6)
    for name in finished_files(tmp_path):
        (tmp_path / name).unlink()
    run_to_the_end(make_sink(tmp_path), 12)
    assert rows_of(finished_files(tmp_path)) == {f"row-{number:04d}": 1 for number in range(6, 12)}


def test_a_part_that_is_gone_can_be_given_up_on_purpose(tmp_path: Path) -> None:
    """accept_missing is the way out of a part that nobody has any more; all other rows stay."""
    out = make_sink(tmp_path, rolling=KEEP).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    (tmp_path / staged_files(tmp_path)[0]).unlink()
    with pytest.raises(PartMissing, match="accept_missing=True"):
        make_sink(tmp_path).local().open()
    with make_sink(tmp_path, accept_missing=True).local() as again:
        assert again.position == 4
    assert rows_of(finished_files(tmp_path)) == {"row-0001": 1, "row-0003": 1}


def test_carried_state_is_written_again_into_its_own_checkpoint(tmp_path: Path) -> None:
    """However large the state, each link names only files of its own directory (S11), so older ones can be deleted."""
    rows = pa.RecordBatch.from_pydict({"row": [f"bucket-{number:03d}@x" for number in range(100)]})
    job = Harness(tmp_path, shared_stage_buckets=None)
    job.operators[0].write(rows)
    job.checkpoint()
    for _ in range(4):
        job.checkpoint()
    links = sorted((tmp_path / "_partfile" / "job").glob("chk-*"))
    assert len(links) == 2
    for link in links:
        files = {path.name for path in link.glob("*.state")}
        assert files
        assert all(f"{link.name}/{name}" in (link / "_metadata").read_text() for name in files)
    job.restore()
    assert len(job.finished()) == 100


@pytest.mark.fault("H3")
def test_nothing_is_deleted_that_a_crash_left(tmp_path: Path) -> None:
    """Writers and restores delete only names of parts just published: orphans stay for the cleaner (S6)."""
    out = make_sink(tmp_path).local().open()
    out.write(batch(0, 2))
    orphans = staged_files(tmp_path)
    out.close()
    run_to_the_end(make_sink(tmp_path))
    assert staged_files(tmp_path) == orphans
    assert_exactly_once(tmp_path)
