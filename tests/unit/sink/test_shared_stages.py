"""Stages that many buckets share, in a run without crashes: few files are open, and each bucket gets its own."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from life_cycle import LONG
from shared_streams import BUCKETS, counted, many, many_lines, rows_in, shared_in, sharing_sink
from staged_streams import link_ids

import partfile as pf
from partfile.errors import ConfigError
from partfile.sink.multi_bucket import OpenParts, Sharing, parted
from partfile.testing.harness import SinkHarness

FORMATS = ["parquet", "json", "csv", "text", "avro"]


def open_files() -> int:
    """Descriptors of this process."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def finished(base: Path) -> list[Path]:
    return sorted(base.glob("k=*/part-*"))


@pytest.mark.parametrize("format", FORMATS)
def test_each_bucket_gets_one_file_of_many_checkpoints(tmp_path: Path, format: str) -> None:
    """Nothing is in a bucket before the end; then each has one file, and every row is in that of its bucket."""
    with sharing_sink(tmp_path, format=format).local() as out:
        for first in range(0, 4 * BUCKETS, BUCKETS):
            out.write(many(first) if format != "text" else many_lines(first))
            out.checkpoint()
            assert len(shared_in(tmp_path)) == 1
            assert list(tmp_path.glob("k=*")) == []
    assert len(finished(tmp_path)) == BUCKETS
    assert rows_in(tmp_path, format) == counted(0, 4 * BUCKETS)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "bz2", "lz4", "snappy"])
def test_compressed_lines_are_of_one_frame_a_file(tmp_path: Path, compression: str) -> None:
    """Not of one a checkpoint, however many there were."""
    with sharing_sink(tmp_path, format="json", compression=compression).local() as out:
        for first in range(0, 3 * BUCKETS, BUCKETS):
            out.write(many(first))
            out.checkpoint()
    files = finished(tmp_path)
    assert len(files) == BUCKETS
    if compression == "gzip":
        assert all(path.read_bytes().count(b"\x1f\x8b\x08") == 1 for path in files)


def test_two_thousand_buckets_a_batch(tmp_path: Path) -> None:
    """Files that are open do not grow with buckets, nor with checkpoints; nor does what is written to a bucket."""
    before = open_files()
    with sharing_sink(tmp_path, shared_stage_buckets=64).local() as out:
        for first in range(0, 12_000, 4_000):
            out.write(many(first, 4_000, buckets=2_000))
            assert open_files() <= before + 4
            out.checkpoint()
            assert len(list(tmp_path.glob("**/_*.in-progress"))) == 1
    assert len(finished(tmp_path)) == 2_000
    assert rows_in(tmp_path) == counted(0, 12_000, buckets=2_000)


def test_few_buckets_have_parts_of_their_own(tmp_path: Path) -> None:
    """Up to the option's number nothing is shared."""
    with sharing_sink(tmp_path, shared_stage_buckets=BUCKETS).local() as out:
        out.write(many(0))
        out.checkpoint()
        assert shared_in(tmp_path) == []
        assert len(list(tmp_path.glob("k=*/_*.in-progress"))) == BUCKETS
    assert rows_in(tmp_path) == counted(0, BUCKETS)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_an_open_part_keeps_the_rows_of_its_bucket(tmp_path: Path, format: str) -> None:
    """And a large slice gets a part of its own; the rest shares."""
    policy = LONG.model_copy(update={"max_part_bytes": 64 * 3000})
    with sharing_sink(tmp_path, format=format, rolling=policy).local() as out:
        out.write(many(0, 2, buckets=2))
        large = pa.RecordBatch.from_pydict({"k": [BUCKETS - 1] * 500, "row": range(1000, 1500)})
        (joined,) = pa.Table.from_batches([many(0), large]).combine_chunks().to_batches()
        out.write(joined)
        out.checkpoint()
        open_in = {path.parent.name for path in tmp_path.glob("k=*/_*.in-progress")}
        assert open_in == {"k=0", "k=1", f"k={BUCKETS - 1}"}
        assert len(shared_in(tmp_path)) == 1
    expected = counted(0, BUCKETS) + counted(0, 2)
    for row in range(1000, 1500):
        expected[f"k={BUCKETS - 1}", row] += 1
    assert rows_in(tmp_path, format) == expected
    assert len(finished(tmp_path)) == BUCKETS


@pytest.mark.parametrize("rows", [0, 1])
def test_the_rule_asks_for_more_buckets_than_allowed(rows: int) -> None:
    """Names that no row has do not count."""
    names = pa.array([f"b{number}" for number in range(9)])
    codes = pa.array([0, 3, 0, 3, 0][: 4 + rows], pa.int32())
    buckets = pa.DictionaryArray.from_arrays(codes, names)
    nothing, three = OpenParts((), "s"), OpenParts(([("b3", "s")],), "s")
    assert parted(buckets, 100, Sharing(2, 10**6, 9), nothing) is None
    ways = parted(buckets, 100, Sharing(1, 10**6, 9), three)
    assert ways is not None
    assert ways.shared.to_pylist() == [0, 2, 4][: 2 + rows]
    assert ways.own.to_pylist() == [1, 3]
    assert parted(buckets, 100, Sharing(1, 64, 9), nothing) is None


def test_many_parts_that_are_open_get_no_small_slices() -> None:
    """Up to as many as may have parts of their own in one batch they go on; beyond that the stage takes them all."""
    buckets = pa.array([f"b{number}" for number in range(10)]).dictionary_encode()
    sharing = Sharing(4, 10**6, 100)
    few, some = (OpenParts(([(f"b{number}", "s") for number in range(count)],), "s") for count in (4, 5))
    ways = parted(buckets, 100, sharing, few)
    assert ways is not None
    assert ways.own.to_pylist() == [0, 1, 2, 3]
    ways = parted(buckets, 100, sharing, some)
    assert ways is not None
    assert len(ways.own) == 0
    assert parted(buckets, 640, Sharing(4, 64, 100), some) is None


def test_where_no_more_parts_may_be_open_small_slices_share(tmp_path: Path) -> None:
    """Though a record batch has few buckets: a part each would cost another one its place."""
    buckets = pa.array(["b1", "b2", "b3"]).dictionary_encode()
    others = [(f"x{number}", "s") for number in range(7)]
    assert parted(buckets, 100, Sharing(4, 10**6, 10), OpenParts((others,), "s")) is None
    ways = parted(buckets, 100, Sharing(4, 10**6, 10), OpenParts((others, [("b2", "s")]), "s"))
    assert ways is None
    ways = parted(buckets, 100, Sharing(4, 10**6, 9), OpenParts((others, [("b2", "s")]), "s"))
    assert ways is not None
    assert (ways.shared.to_pylist(), ways.own.to_pylist()) == ([0, 2], [1])
    with sharing_sink(tmp_path, format="json", max_open_parts=6, on_stop="keep").local() as out:
        for bucket in range(BUCKETS):
            out.write(pa.RecordBatch.from_pydict({"k": [bucket] * 3, "row": [bucket, bucket + BUCKETS, bucket + 24]}))
        out.checkpoint()
        assert len(shared_in(tmp_path)) == 1
        assert len(finished(tmp_path)) <= 1


@pytest.mark.parametrize("policy", [{"rollover_interval_s": 50}, {"inactivity_interval_s": 50}], ids=str)
def test_the_timer_encodes_a_shared_stage_by_one_checkpoint(tmp_path: Path, policy: dict[str, float]) -> None:
    """All of its files enter that checkpoint."""
    with SinkHarness(sharing_sink(tmp_path, rolling=LONG.model_copy(update=policy))) as job:
        job.process(many(0))
        before = job.checkpoint()
        assert job.runtime.coordinator.close_due(49_999) is None
        done = job.runtime.coordinator.close_due(50_000)
        assert done is not None
        assert (done.checkpoint_id, done.published) == (before.checkpoint_id + 1, BUCKETS)
        assert rows_in(tmp_path) == counted(0, BUCKETS)
        assert job.runtime.coordinator.state.position.encoded_ratio is None


def test_a_shared_stage_outgrows_a_part_before_it_is_rolled(tmp_path: Path) -> None:
    """Four times what a part may have; encoded by its task then."""
    policy = LONG.model_copy(update={"max_part_bytes": 10_000})
    with SinkHarness(sharing_sink(tmp_path, rolling=policy)) as job:
        sizes, done, first = [], None, 0
        while done is None or not done.published:
            job.process(many(first, 8 * BUCKETS))
            first += 8 * BUCKETS
            done = job.checkpoint()
            sizes += [part.part.valid_length for parts in job.runtime.coordinator.state.open.values() for part in parts]
        assert len(sizes) > 2
        assert 20_000 < sizes[-1] < 40_000
        assert done.published == BUCKETS
        assert job.runtime.coordinator.state.rolled == ()
        assert rows_in(tmp_path) == counted(0, first)
        assert link_ids(tmp_path)[-1] == done.checkpoint_id


def test_kept_shared_stages_are_gone_on_with(tmp_path: Path) -> None:
    """A clean stop hands them to the next run, which ends with one file a bucket."""
    for first in (0, BUCKETS, 2 * BUCKETS):
        with sharing_sink(tmp_path, on_stop="keep").local() as out:
            out.write(many(first))
        assert finished(tmp_path) == []
        assert len(shared_in(tmp_path)) == 1
    with sharing_sink(tmp_path).local():
        pass
    assert len(finished(tmp_path)) == BUCKETS
    assert rows_in(tmp_path) == counted(0, 3 * BUCKETS)


def test_rescaling_leaves_each_subtask_its_stage(tmp_path: Path) -> None:
    """One of three goes on with its own; the others' wait for them, over kept runs too, and nothing is lost of them."""
    with SinkHarness(sharing_sink(tmp_path, on_stop="keep"), parallelism=3) as job:
        for subtask in range(3):
            job.process(many(subtask * BUCKETS), subtask)
        job.checkpoint()
        job.runtime.coordinator.close_all(0, keep=True)
        job.restore(1)
        job.process(many(3 * BUCKETS))
        assert job.checkpoint().published == 0
        job.runtime.coordinator.close_all(0, keep=True)
        job.restore(3)
        for subtask in range(3):
            job.process(many((4 + subtask) * BUCKETS), subtask)
            job.operators[subtask].roll_all()
        assert len(shared_in(tmp_path)) == 3
        assert job.checkpoint().published == 3 * BUCKETS
    assert rows_in(tmp_path) == counted(0, 7 * BUCKETS)
    assert len(finished(tmp_path)) == 3 * BUCKETS


def test_another_schema_takes_another_shared_stage(tmp_path: Path) -> None:
    """Rows of two schemas are never in one; one that has a column called bucket keeps it."""
    with sharing_sink(tmp_path).local() as out:
        out.write(many(0))
        out.write(many(BUCKETS).append_column("bucket", pa.array(["mine"] * BUCKETS)))
        out.checkpoint()
        assert len(shared_in(tmp_path)) == 2
    assert {tuple(pq.read_schema(path).names) for path in finished(tmp_path)} == {("row",), ("row", "bucket")}
    assert rows_in(tmp_path) == counted(0, 2 * BUCKETS)


def test_a_shared_stage_is_set_aside_at_the_cap_not_rolled(tmp_path: Path) -> None:
    """One part may be open: those of a row format are closed, the stage goes on when rows come for it."""
    with sharing_sink(tmp_path, format="json", max_open_parts=1).local() as out:
        for first in (0, BUCKETS, 2 * BUCKETS):
            out.write(many(first))
            out.write(many(10_000 + first, 1, buckets=1))
            out.checkpoint()
        assert len(shared_in(tmp_path)) == 1
    expected = counted(0, 3 * BUCKETS)
    for first in (0, BUCKETS, 2 * BUCKETS):
        expected[f"k={0}", 10_000 + first] += 1
    assert rows_in(tmp_path, "json") == expected


HOSTILE = ["", "..", "/", "a/b", "_hidden", ".dot", "x=y", "ü" * 50, "new\nline", "'", "%2F", " ", "~", "*", "\\"]


def test_hostile_names_end_where_those_of_their_own_parts_would(tmp_path: Path) -> None:
    """Each value in the directory that it has without sharing."""
    rows = pa.RecordBatch.from_pydict({"k": HOSTILE, "row": range(len(HOSTILE))})
    places = []
    for name, most in (("shared", 1), ("own", None)):
        base = tmp_path / name
        with sharing_sink(base, shared_stage_buckets=most).local() as out:
            out.write(rows)
            out.checkpoint()
            assert len(shared_in(base)) == (most is not None)
        files = {str(path.parent.relative_to(base)): path for path in base.glob("k=*/**/part-*")}
        places.append(
            {place: pq.read_table(path, partitioning=None)["row"].to_pylist() for place, path in files.items()}
        )
    assert places[0] == places[1]
    assert len(places[0]) == len(HOSTILE)


def test_a_bucketer_that_leaves_the_base_is_refused_before_a_row_is_staged(tmp_path: Path) -> None:
    """As it is without sharing."""

    class Outside(pf.HiveBucketer):
        def bucket_of(self, batch: pa.RecordBatch, context: Any) -> Any:  # noqa: ARG002 - it is no real bucketer.
            return pa.array([f"../{number}" for number in batch["k"].to_pylist()]).dictionary_encode()

    with sharing_sink(tmp_path, bucketer=Outside("k")).local() as out, pytest.raises(ConfigError, match="not safe"):
        out.write(many(0))
    assert list(tmp_path.rglob("*part-*")) == []


@pytest.mark.parametrize(
    "options",
    [
        {"shared_stage_buckets": None},
        {"columnar": "per_checkpoint"},
        {"rolling": LONG.model_copy(update={"on_checkpoint": True})},
        {"format": "json", "shared_stage_buckets": None},
    ],
    ids=str,
)
def test_who_does_not_want_it_shares_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    """Each bucket has a part of its own at once."""
    with sharing_sink(tmp_path, **options).local() as out:
        out.write(many(0))
        assert shared_in(tmp_path) == []
        assert len(list(tmp_path.glob("k=*/_*.in-progress"))) == BUCKETS


def test_a_row_that_its_format_refuses_is_refused_when_it_is_written(tmp_path: Path) -> None:
    """Not by the encode, when it is too late."""
    rows = pa.RecordBatch.from_pydict({"k": range(BUCKETS), "row": ["line\nbreak"] * BUCKETS})
    with sharing_sink(tmp_path, format="text").local() as out, pytest.raises(ConfigError, match="separator"):
        out.write(rows)
    assert shared_in(tmp_path) == []
