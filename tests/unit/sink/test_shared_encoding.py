"""Encoding a shared stage, whatever its size and that of its rows: it is read once, and little of it is held."""

from __future__ import annotations

import errno
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from life_cycle import LONG
from shared_streams import BUCKETS, counted, many, many_lines, rolled, rows_in, sharing_sink

from partfile.errors import NotReady
from partfile.sink.batches import BucketRuns
from partfile.sink.encode import SharedStage, encode_shared, encode_stage
from partfile.stores.local.store import LocalStore
from partfile.writers.arrow_stage import StageContent
from partfile.writers.registry import format_of

if TYPE_CHECKING:
    from partfile.sink.states import RolledStage
    from partfile.stores.base import PartHandle
    from partfile.writers.arrow_stage import SeekableFile

EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])


@EACH_FORMAT
@pytest.mark.parametrize("most_held_bytes", [1, 100, 500, 10**9])
def test_the_files_are_the_same_whatever_is_held(tmp_path: Path, format: str, most_held_bytes: int) -> None:
    """Down to a bucket at a time as it is read back, in runs of one message."""
    with sharing_sink(tmp_path, format=format, on_stop="keep").local() as out:
        out.write(many(0, 2 * BUCKETS))
    stage = rolled(tmp_path)
    form = format_of(stage.stage.recipe)
    with LocalStore(str(tmp_path)) as store, store.open_stage(stage.part) as file:
        shared = SharedStage(stage.part, form, content_of(stage, file))
        files = encode_shared(store, shared, stage.rows, most_held_bytes=most_held_bytes)
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, format) == counted(0, 2 * BUCKETS)
    assert {file.rows for file in files} == {2}


def content_of(stage: RolledStage, file: SeekableFile) -> StageContent:
    """What there is to be read of it, as if it were long."""
    return StageContent(file, stage.part.valid_length, crc32=stage.stage.crc32)


def texts(base: Path, format: str, batches: list[pa.RecordBatch]) -> RolledStage:
    """The stage of a sink that wrote these rows."""
    policy = LONG.model_copy(update={"max_part_bytes": 1 << 30})
    with sharing_sink(base, format=format, on_stop="keep", rolling=policy).local() as out:
        for batch in batches:
            out.write(batch)
    return rolled(base)


def encoding_peak(base: Path, stage: RolledStage, most_held_bytes: int) -> int:
    """Bytes that Arrow has at most while a stage is encoded."""
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with LocalStore(str(base)) as store, store.open_stage(stage.part) as file:
            shared = SharedStage(stage.part, format_of(stage.stage.recipe), content_of(stage, file))
            start = pool.bytes_allocated()
            files = encode_shared(store, shared, stage.rows, most_held_bytes=most_held_bytes)
            for one in files:
                store.publish(one.part, "auto")
            return int(pool.max_memory() - start)
    finally:
        pa.set_memory_pool(before)


def test_what_is_held_while_encoding_is_bounded(tmp_path: Path) -> None:
    """Arrow never has more than a few times the bound, though the stage has much more."""
    text = pa.array(["x" * 200] * 20_000)
    batches = [many(first, 20_000, buckets=100).append_column("text", text) for first in range(0, 200_000, 20_000)]
    assert encoding_peak(tmp_path, texts(tmp_path, "parquet", batches), 2 << 20) < 20 << 20


def test_large_rows_of_one_bucket_are_not_held_as_if_they_were_like_all_others(tmp_path: Path) -> None:
    """What counts is how large they are, not how many: those of one bucket weigh a thousand times the others'."""
    rows = [many(first, 100, buckets=100) for first in range(0, 10_000, 100)]
    batches = [one.append_column("text", pa.array(["large " * 100_000] + ["x"] * 99)) for one in rows]
    assert encoding_peak(tmp_path, texts(tmp_path, "json", batches), 2 << 20) < 20 << 20
    assert rows_in(tmp_path, "json") == counted(0, 10_000, buckets=100)


def test_all_lines_of_a_bucket_are_in_its_file_however_many_there_are(tmp_path: Path) -> None:
    """They are handed to their writer in pieces, and the rows that are counted are those of the stage."""
    text = pa.array(["x" * 500] * 12_000)
    stage = texts(tmp_path, "json", [many(0, 12_000).append_column("text", text)])
    with LocalStore(str(tmp_path)) as store:
        files = encode_stage(store, stage.part, stage.stage, stage.rows)
        # Each has more than one piece of 256 KiB, and the last of them is a short one.
        assert {file.part.valid_length >> 18 for file in files} == {1}
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, "json") == counted(0, 12_000)


def test_a_stage_is_read_once_however_large_it_is(tmp_path: Path) -> None:
    """Not once for each part of it that fits into memory."""
    stage = texts(tmp_path, "parquet", [many(first, 2_000) for first in range(0, 40_000, 2_000)])
    with LocalStore(str(tmp_path)) as store, store.open_stage(stage.part) as file:
        counting = Counting(file)
        shared = SharedStage(stage.part, format_of(stage.stage.recipe), content_of(stage, counting))
        encode_shared(store, shared, stage.rows, most_held_bytes=1 << 14)
    assert counting.read_bytes < 1.1 * stage.part.valid_length


class Opening(LocalStore):
    """A store that knows the files that are open, how many were at once, and ends its caller at one of them."""

    def __init__(self, base: Path, ends_at: int = 0) -> None:
        super().__init__(str(base))
        self.open: set[str] = set()
        self.most = self.made = 0
        self._ends_at = ends_at

    def create(self, handle: PartHandle) -> Any:
        """Make one, and note when it is released."""
        self.made += 1
        if self.made == self._ends_at:
            raise KeyboardInterrupt
        stream = super().create(handle)
        close = stream.close
        self.open.add(handle.in_progress)
        self.most = max(self.most, len(self.open))

        def released() -> None:
            self.open.discard(handle.in_progress)
            close()

        stream.close = released  # type: ignore[method-assign]
        return stream


MANY_BUCKETS = 150


def test_no_more_files_are_open_than_are_committed_together(tmp_path: Path) -> None:
    """And every one of them is made, those of the last few too."""
    stage = texts(tmp_path, "json", [many(0, 2 * MANY_BUCKETS, buckets=MANY_BUCKETS)])
    with Opening(tmp_path) as store:
        files = encode_stage(store, stage.part, stage.stage, stage.rows)
        assert (store.most, store.open, len(files)) == (64, set(), MANY_BUCKETS)
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, "json") == counted(0, 2 * MANY_BUCKETS, buckets=MANY_BUCKETS)


def test_a_task_that_is_ended_while_it_encodes_holds_no_lease(tmp_path: Path) -> None:
    """Its worker lives on: what it left is cleaned, or waited for, by others."""
    stage = texts(tmp_path, "json", [many(0, 2 * BUCKETS)])
    with Opening(tmp_path, ends_at=BUCKETS // 2) as store:
        with pytest.raises(KeyboardInterrupt):
            encode_stage(store, stage.part, stage.stage, stage.rows)
        assert store.open == set()
        assert store.made > 1


class Counting:
    """A file that knows how much was read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.read_bytes = 0

    def seek(self, place: int) -> int:
        """Go there."""
        return self._file.seek(place)

    def read(self, size_bytes: int) -> bytes:
        """Read and count."""
        data = self._file.read(size_bytes)
        self.read_bytes += len(data)
        return data


def test_no_room_for_temporary_files_is_worth_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And names their directory."""
    stage = texts(tmp_path, "parquet", [many(0, 40_000)])

    def full(*_args: Any, **_options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with LocalStore(str(tmp_path)) as store, store.open_stage(stage.part) as file:
        shared = SharedStage(stage.part, format_of(stage.stage.recipe), content_of(stage, file))
        encode = partial(encode_shared, store, shared, stage.rows)
        with pytest.raises(NotReady, match="No space left") as caught:
            encode(most_held_bytes=1)
        assert "TMPDIR" in str(caught.value)
        assert len(encode()) == BUCKETS


def test_a_full_disk_is_told_of_although_the_file_cannot_be_closed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing tries again to write what is left in its buffer; the descriptor is gone all the same."""
    full = Path("/dev/full").open("r+b")  # noqa: SIM115 - what has it closes it.
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)

    def set_aside() -> None:
        with closing(BucketRuns(1)) as runs:
            runs.add(many_lines(0))
            runs.add(many_lines(BUCKETS))

    with pytest.raises(NotReady, match="No space left") as caught:
        set_aside()
    assert "TMPDIR" in str(caught.value)
    assert full.closed


@pytest.mark.parametrize("run_bytes", [1, 50_000, 1 << 30])
def test_rows_come_back_by_bucket_in_their_order(run_bytes: int) -> None:
    """Whether they are set aside or not, and in batches that weigh little, or are of one row."""
    rng = np.random.default_rng(1)
    buckets = [f"b{number}" for number in rng.integers(0, 30, 3_000)]
    lengths = np.where(rng.random(3_000) < 0.01, 200_000, 10)
    rows = pa.RecordBatch.from_pydict(
        {
            "row": range(3_000),
            "text": ["x" * length for length in lengths],
            "bucket": pa.array(buckets, pa.large_string()),
        }
    )
    runs = BucketRuns(run_bytes)
    for start in range(0, 3_000, 100):
        runs.add(rows.slice(start, 100))
    seen: dict[str, list[int]] = {}
    for bucket, batches in runs.buckets():
        assert bucket not in seen
        for batch in batches:
            assert run_bytes == 1 << 30 or batch.nbytes <= 256 << 10 or batch.num_rows == 1
            seen.setdefault(bucket, []).extend(batch["row"].to_pylist())
    runs.close()
    names = dict.fromkeys(buckets)
    assert seen == {name: [row for row in range(3_000) if buckets[row] == name] for name in names}
    assert runs.rows == {bucket: len(found) for bucket, found in seen.items()}


def test_small_batches_of_many_columns_are_not_held_as_if_they_were_their_rows() -> None:
    """What their columns weigh counts; joined first, they do not become a run each few of them."""
    columns = {f"c{number}": pa.nulls(65, pa.bool_()) for number in range(1000)}
    message = pa.RecordBatch.from_pydict(columns | {"bucket": pa.array(["a"] * 65, pa.large_string())})
    most = runs_made = 0
    with closing(BucketRuns(20 << 20)) as runs:
        for _ in range(200):
            runs.add(message)
            most = max(most, sum(batch.num_columns for batch in runs._held))
            runs_made = len(runs._runs)
        rows = [piece.num_rows for _, pieces in runs.buckets() for piece in pieces]
    assert most <= 20 * 1001
    assert (sum(rows), runs_made) == (200 * 65, 0)
