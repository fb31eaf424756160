"""Multi-bucket staging files, in a run without crashes: few open files, and each bucket gets its own."""

from __future__ import annotations

import errno
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partfile as pf
from partfile.errors import ConfigError, NotApplied, NotReady, PartfileError
from partfile.sink import encode
from partfile.sink.batches import BucketSpill
from partfile.sink.coordinator import Runtime
from partfile.sink.encode import MultiBucketStagingFile, encode_shared, encode_staging_file
from partfile.sink.encoded_files import PartlyEncoded
from partfile.sink.layout import SubtaskContext
from partfile.sink.multi_bucket import OpenKeys, Sharing, parted
from partfile.sink.operator import SinkOperator
from partfile.sink.policies import PartNumber, clashing, number_in, own_name, unmarked
from partfile.sink.states import assigned_to
from partfile.stores.local.store import LocalStore
from partfile.testing.harness import SinkHarness
from partfile.writers.arrow_staging import StagingContent
from partfile.writers.registry import format_of
from support.files.disks import open_below
from support.sinks.life_cycle import LONG, finished_files
from support.sinks.shared_streams import BUCKETS, closed, counted, many, many_lines, rows_in, shared_in, sharing_sink
from support.sinks.staged_streams import checkpoint_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partfile.sink.file_sink import FileSink
    from partfile.sink.states import ClosedStagingFile
    from partfile.stores.base import PartHandle
    from partfile.writers.arrow_staging import SeekableFile


# Multi-bucket staging files, in a run without crashes: few files are open, and each bucket gets its own.

FORMATS = ["parquet", "json", "csv", "text", "avro"]


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


@pytest.mark.slow
def test_two_thousand_buckets_a_batch(tmp_path: Path) -> None:
    """Files that are open do not grow with buckets, nor with checkpoints; nor does what is written to a bucket."""
    with sharing_sink(tmp_path, buckets_per_staging_file=64).local() as out:
        for first in range(0, 12_000, 4_000):
            out.write(many(first, 4_000, buckets=2_000))
            assert len(open_below(tmp_path)) <= 4
            out.checkpoint()
            assert len(list(tmp_path.glob("**/_*.in-progress"))) == 1
    assert len(finished(tmp_path)) == 2_000
    assert rows_in(tmp_path) == counted(0, 12_000, buckets=2_000)


def test_few_buckets_have_parts_of_their_own(tmp_path: Path) -> None:
    """Up to the option's number nothing is shared."""
    with sharing_sink(tmp_path, buckets_per_staging_file=BUCKETS).local() as out:
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
    nothing, three = OpenKeys((), "s"), OpenKeys(([("b3", "s")],), "s")
    assert parted(buckets, 100, Sharing(2, 10**6, 9), nothing) is None
    ways = parted(buckets, 100, Sharing(1, 10**6, 9), three)
    assert ways is not None
    assert ways.shared.to_pylist() == [0, 2, 4][: 2 + rows]
    assert ways.own.to_pylist() == [1, 3]
    assert parted(buckets, 100, Sharing(1, 64, 9), nothing) is None


def test_many_parts_that_are_open_get_no_small_slices() -> None:
    """Up to as many as may have parts of their own in one batch they go on.

    Beyond that the staging file takes them all.
    """
    buckets = pa.array([f"b{number}" for number in range(10)]).dictionary_encode()
    sharing = Sharing(4, 10**6, 100)
    few, some = (OpenKeys(([(f"b{number}", "s") for number in range(count)],), "s") for count in (4, 5))
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
    assert parted(buckets, 100, Sharing(4, 10**6, 10), OpenKeys((others,), "s")) is None
    ways = parted(buckets, 100, Sharing(4, 10**6, 10), OpenKeys((others, [("b2", "s")]), "s"))
    assert ways is None
    ways = parted(buckets, 100, Sharing(4, 10**6, 9), OpenKeys((others, [("b2", "s")]), "s"))
    assert ways is not None
    assert (ways.shared.to_pylist(), ways.own.to_pylist()) == ([0, 2], [1])
    with sharing_sink(tmp_path, format="json", max_open_parts=6, on_stop="keep").local() as out:
        for bucket in range(BUCKETS):
            out.write(pa.RecordBatch.from_pydict({"k": [bucket] * 3, "row": [bucket, bucket + BUCKETS, bucket + 24]}))
        out.checkpoint()
        assert len(shared_in(tmp_path)) == 1
        assert len(finished(tmp_path)) <= 1


@pytest.mark.parametrize("policy", [{"rollover_interval_s": 50}, {"inactivity_interval_s": 50}], ids=str)
def test_the_timer_encodes_a_multi_bucket_staging_file_by_one_checkpoint(
    tmp_path: Path, policy: dict[str, float]
) -> None:
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


def test_a_multi_bucket_staging_file_outgrows_a_part_before_it_is_rolled(tmp_path: Path) -> None:
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
        assert job.runtime.coordinator.state.closed == ()
        assert rows_in(tmp_path) == counted(0, first)
        assert checkpoint_ids(tmp_path)[-1] == done.checkpoint_id


def test_kept_multi_bucket_staging_files_are_gone_on_with(tmp_path: Path) -> None:
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


def test_rescaling_leaves_each_subtask_its_staging_file(tmp_path: Path) -> None:
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


def test_another_schema_takes_another_multi_bucket_staging_file(tmp_path: Path) -> None:
    """Rows of two schemas are never in one; one that has a column called bucket keeps it."""
    with sharing_sink(tmp_path).local() as out:
        out.write(many(0))
        out.write(many(BUCKETS).append_column("bucket", pa.array(["mine"] * BUCKETS)))
        out.checkpoint()
        assert len(shared_in(tmp_path)) == 2
    assert {tuple(pq.read_schema(path).names) for path in finished(tmp_path)} == {("row",), ("row", "bucket")}
    assert rows_in(tmp_path) == counted(0, 2 * BUCKETS)


def test_a_multi_bucket_staging_file_is_set_aside_at_the_cap_not_rolled(tmp_path: Path) -> None:
    """One part may be open: those of a row format are closed, the staging file goes on when rows come for it."""
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
        with sharing_sink(base, buckets_per_staging_file=most).local() as out:
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
        {"buckets_per_staging_file": None},
        {"columnar": "per_checkpoint"},
        {"rolling": LONG.model_copy(update={"on_checkpoint": True})},
        {"format": "json", "buckets_per_staging_file": None},
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


# The names of the files of one multi-bucket staging file, and that each of its buckets gets its file.

NAME = "part-0a1b2c3d-3-17.parquet"


@pytest.mark.parametrize(
    "alike",
    [
        ("k=A", "k=a"),
        ("A/b", "a/B"),
        ("caf\u00e9", "cafe\u0301"),  # One letter, and two that make the same one.
        ("stra\u00dfe", "STRASSE"),
        ("\u212a", "k"),  # The sign of a unit.
        ("\u0131", "I"),  # As the table of upper case on a share has it.
        ("so\u00adft", "soft"),  # A hyphen that shows at the end of a line alone.
        ("end.", "end"),
        ("end /x", "end/x"),
    ],
)
def test_what_some_file_system_holds_for_one_clashes(alike: tuple[str, str]) -> None:
    """And nothing else does."""
    assert clashing([*alike, "k=b", "other", ""]) == set(alike)


def test_paths_of_their_own_do_not_clash() -> None:
    """Capital letters alone are no reason for another name."""
    assert not clashing(["dt=2026-01-01T05", "dt=2026-01-01T06", "a/b", "a", "b", ""])


@pytest.mark.parametrize("bucket", ["k=A", "", "dt=2026-01-01/k=\u00e9"])
@pytest.mark.parametrize("name", [NAME, "part-0a1b2c3d-0-1-2.5"])
def test_a_name_of_its_own_is_known_again(name: str, bucket: str) -> None:
    """It says the same number, and of which staging file it is."""
    own = own_name(name, bucket)
    assert own != name
    assert unmarked(own) == unmarked(name) == name
    assert number_in(own, {"0a1b2c3d"}) == number_in(name, {"0a1b2c3d"})
    assert number_in(own_name(NAME, bucket), {"0a1b2c3d"}) == PartNumber("0a1b2c3d", 3, 17)


def staging_file_of(base: Path, buckets: list[str]) -> ClosedStagingFile:
    """A staging file with two rows of each bucket."""
    rows = {"k": buckets * 2, "row": range(2 * len(buckets))}
    with sharing_sink(base, format="json", on_stop="keep", rolling=LONG, buckets_per_staging_file=1).local() as out:
        out.write(pa.RecordBatch.from_pydict(rows))
    return closed(base)


class Refusing(LocalStore):
    """A store that makes no file in some buckets, and counts what is asked."""

    def __init__(self, base: Path, refused: set[str]) -> None:
        super().__init__(str(base))
        self._refused = refused
        self.asked: list[str] = []

    def create(self, handle: PartHandle) -> Any:
        """Make it, or not."""
        self.asked.append(handle.bucket)
        if handle.bucket in self._refused:
            raise NotApplied("deliberate", path=handle.name)
        return super().create(handle)


def test_names_stay_the_same_when_a_part_of_them_is_made_later(tmp_path: Path) -> None:
    """What clashes is asked of all buckets, also of those that have their files."""
    staging_file = staging_file_of(tmp_path, ["A", "a", "b"])
    with Refusing(tmp_path, {"k=a"}) as store:
        with pytest.raises(PartlyEncoded) as partly:
            encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
        done = {file.part.bucket: file.part for file in partly.value.files}
        assert done["k=b"].name == staging_file.part.name
        assert done["k=A"].name == own_name(staging_file.part.name, "k=A")
        assert done["k=A"].sidecar == f"_{done['k=A'].name}.valid-length"
    left = staging_file.staging_file.model_copy(update={"finished_buckets": ("k=A", "k=b")})
    with LocalStore(str(tmp_path)) as store:
        (late,) = encode_staging_file(store, staging_file.part, left, staging_file.rows)
    assert (late.part.bucket, late.part.name) == ("k=a", own_name(staging_file.part.name, "k=a"))


def test_verify_takes_names_of_their_own_for_files_of_their_staging_file(tmp_path: Path) -> None:
    """Which have one number in several buckets, as those of one name have."""
    from support.sinks.recovery import broken_invariants  # noqa: PLC0415 - the command line is asked here alone.

    with sharing_sink(tmp_path, format="json", buckets_per_staging_file=1).local() as out:
        out.write(pa.RecordBatch.from_pydict({"k": ["A", "a", "b", "c"], "row": range(4)}))
    names = {path.rpartition("/")[2] for path in finished_files(tmp_path)}
    assert len(names) == 3
    assert not broken_invariants(tmp_path)


def test_a_bucket_that_is_lost_on_the_way_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said to be encoded, so that no staging file counts as spent whose rows are not all in files."""
    staging_file, all_of = staging_file_of(tmp_path, ["a", "b", "c"]), BucketSpill.buckets

    def but_one(runs: BucketSpill) -> Iterator[Any]:
        return (one for one in all_of(runs) if one.bucket != "k=b")

    monkeypatch.setattr(BucketSpill, "buckets", but_one)
    with LocalStore(str(tmp_path)) as store, pytest.raises(PartfileError, match="3 buckets became 2 files"):
        encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
    assert not list(tmp_path.rglob("*.pending"))


def test_buckets_that_fail_slowly_do_not_hold_up_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute of failures the rest is left for the next time, counted, and the staging file keeps their rows."""
    seconds = iter(range(0, 10_000, 20))
    monkeypatch.setattr(encode, "stopwatch_ms", lambda: next(seconds) * 1000.0)
    with sharing_sink(tmp_path, format="json", on_stop="keep", rolling=LONG).local() as out:
        out.write(many(0, 2 * BUCKETS))
    staging_file = closed(tmp_path)
    with Refusing(tmp_path, {f"k={number}" for number in range(1, BUCKETS)}) as store:
        with pytest.raises(PartlyEncoded) as partly:
            encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
        # One more than there are threads: so many can be waiting for a store that is away for a moment.
        assert len(store.asked) == 1 + store.persist_threads + 1 < BUCKETS
    assert f"{BUCKETS - 1} buckets" in partly.value.message
    assert [file.part.bucket for file in partly.value.files] == ["k=0"]


# Multi-bucket staging files where the partitions of a stream come and go: each waits for its own to come back, or for
# its time.


def run(sink: FileSink, partitions: Sequence[int], *, step_ms: int = 1) -> list[int]:
    """Batches of so many partitions, each with a row a bucket.

    Returns how many staging files were encoded after each.
    """
    runtime = Runtime(sink.settings, "life")
    coordinator = runtime.coordinator
    coordinator.start(lambda _position: None, 0)
    encoded, first = [], 0
    for turn, subtasks in enumerate(partitions, 1):
        pending = coordinator.trigger(turn * step_ms)
        snapshots = []
        for subtask in range(subtasks):
            operator = SinkOperator(runtime.store, sink.settings.description)
            share = assigned_to(coordinator.assignment(), subtask)
            context = SubtaskContext(
                subtask,
                attempt=0,
                epoch=coordinator.epoch,
                chain=coordinator.state.position.chain,
                batch_time_ms=turn * step_ms,
                may_stage=True,
            )
            operator.open(context, share.model_copy(update={"max_count": coordinator.state.max_count}))
            operator.write(many(first))
            first += BUCKETS
            snapshots.append(operator.snapshot(pending.checkpoint_id))
            operator.close()
        encoded.append(coordinator.complete(pending, snapshots, coordinator.state.position).encoded)
    runtime.close()
    return encoded


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_partitions_that_come_and_go_roll_nothing(tmp_path: Path, format: str) -> None:
    """There are never more staging files than there have been partitions at the same time."""
    sink = sharing_sink(tmp_path, format=format)
    assert run(sink, [8, 2, 8, 2, 8]) == [0] * 5
    assert len(shared_in(tmp_path)) == 8
    with sink.local():
        assert rows_in(tmp_path, format) == counted(0, (8 + 2 + 8 + 2 + 8) * BUCKETS)


def test_a_staging_file_whose_partition_does_not_come_back_is_rolled_by_its_time(tmp_path: Path) -> None:
    """By the batch that finds it due, whichever partitions that has."""
    sink = sharing_sink(tmp_path, rolling=LONG.model_copy(update={"inactivity_interval_s": 15}))
    assert run(sink, [3, 1, 1, 1], step_ms=10_000) == [0, 0, 2, 0]


# Encoding a multi-bucket staging file, whatever its size and that of its rows: it is read once, and little of it is
# held.

EACH_FORMAT = pytest.mark.parametrize("format", ["parquet", "json"])


@EACH_FORMAT
@pytest.mark.parametrize("most_held_bytes", [1, 100, 500, 10**9])
def test_the_files_are_the_same_whatever_is_held(tmp_path: Path, format: str, most_held_bytes: int) -> None:
    """Down to a bucket at a time as it is read back, in runs of one message."""
    with sharing_sink(tmp_path, format=format, on_stop="keep").local() as out:
        out.write(many(0, 2 * BUCKETS))
    staging_file = closed(tmp_path)
    form = format_of(staging_file.staging_file.spec)
    with LocalStore(str(tmp_path)) as store, store.open_staging_file(staging_file.part) as file:
        shared = MultiBucketStagingFile(staging_file.part, form, content_of(staging_file, file))
        files = encode_shared(store, shared, staging_file.rows, most_held_bytes=most_held_bytes)
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, format) == counted(0, 2 * BUCKETS)
    assert {file.rows for file in files} == {2}


def content_of(staging_file: ClosedStagingFile, file: SeekableFile) -> StagingContent:
    """What there is to be read of it, as if it were long."""
    return StagingContent(file, staging_file.part.valid_length, crc32=staging_file.staging_file.crc32)


def texts(base: Path, format: str, batches: list[pa.RecordBatch]) -> ClosedStagingFile:
    """The staging file of a sink that wrote these rows."""
    policy = LONG.model_copy(update={"max_part_bytes": 1 << 30})
    with sharing_sink(base, format=format, on_stop="keep", rolling=policy).local() as out:
        for batch in batches:
            out.write(batch)
    return closed(base)


def encoding_peak(base: Path, staging_file: ClosedStagingFile, most_held_bytes: int) -> int:
    """Bytes that Arrow has at most while a staging file is encoded."""
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with LocalStore(str(base)) as store, store.open_staging_file(staging_file.part) as file:
            shared = MultiBucketStagingFile(
                staging_file.part, format_of(staging_file.staging_file.spec), content_of(staging_file, file)
            )
            start = pool.bytes_allocated()
            files = encode_shared(store, shared, staging_file.rows, most_held_bytes=most_held_bytes)
            for one in files:
                store.publish(one.part, "auto")
            return int(pool.max_memory() - start)
    finally:
        pa.set_memory_pool(before)


def test_what_is_held_while_encoding_is_bounded(tmp_path: Path) -> None:
    """Arrow never has more than a few times the bound, though the staging file has much more."""
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
    """They are handed to their writer in pieces, and the rows that are counted are those of the staging file."""
    text = pa.array(["x" * 500] * 12_000)
    staging_file = texts(tmp_path, "json", [many(0, 12_000).append_column("text", text)])
    with LocalStore(str(tmp_path)) as store:
        files = encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
        # Each has more than one piece of 256 KiB, and the last of them is a short one.
        assert {file.part.valid_length >> 18 for file in files} == {1}
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, "json") == counted(0, 12_000)


def test_a_staging_file_is_read_once_however_large_it_is(tmp_path: Path) -> None:
    """Not once for each part of it that fits into memory."""
    staging_file = texts(tmp_path, "parquet", [many(first, 2_000) for first in range(0, 40_000, 2_000)])
    with LocalStore(str(tmp_path)) as store, store.open_staging_file(staging_file.part) as file:
        counting = Counting(file)
        shared = MultiBucketStagingFile(
            staging_file.part, format_of(staging_file.staging_file.spec), content_of(staging_file, counting)
        )
        encode_shared(store, shared, staging_file.rows, most_held_bytes=1 << 14)
    assert counting.read_bytes < 1.1 * staging_file.part.valid_length


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
    staging_file = texts(tmp_path, "json", [many(0, 2 * MANY_BUCKETS, buckets=MANY_BUCKETS)])
    with Opening(tmp_path) as store:
        files = encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
        assert (store.most, store.open, len(files)) == (64, set(), MANY_BUCKETS)
        for one in files:
            store.publish(one.part, "auto")
    assert rows_in(tmp_path, "json") == counted(0, 2 * MANY_BUCKETS, buckets=MANY_BUCKETS)


def test_a_task_that_is_ended_while_it_encodes_holds_no_lease(tmp_path: Path) -> None:
    """Its worker lives on: what it left is cleaned, or waited for, by others."""
    staging_file = texts(tmp_path, "json", [many(0, 2 * BUCKETS)])
    with Opening(tmp_path, ends_at=BUCKETS // 2) as store:
        with pytest.raises(KeyboardInterrupt):
            encode_staging_file(store, staging_file.part, staging_file.staging_file, staging_file.rows)
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
    staging_file = texts(tmp_path, "parquet", [many(0, 40_000)])

    def full(*_args: Any, **_options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with LocalStore(str(tmp_path)) as store, store.open_staging_file(staging_file.part) as file:
        shared = MultiBucketStagingFile(
            staging_file.part, format_of(staging_file.staging_file.spec), content_of(staging_file, file)
        )
        encode = partial(encode_shared, store, shared, staging_file.rows)
        with pytest.raises(NotReady, match="No space left") as caught:
            encode(most_held_bytes=1)
        assert "TMPDIR" in str(caught.value)
        assert len(encode()) == BUCKETS


def test_a_full_disk_is_told_of_although_the_file_cannot_be_closed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing tries again to write what is left in its buffer; the descriptor is gone all the same."""
    full = Path("/dev/full").open("r+b")  # noqa: SIM115 - what has it closes it.
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)

    def set_aside() -> None:
        with closing(BucketSpill(1)) as runs:
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
    runs = BucketSpill(run_bytes)
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
    with closing(BucketSpill(20 << 20)) as runs:
        for _ in range(200):
            runs.add(message)
            most = max(most, sum(batch.num_columns for batch in runs._held))
            runs_made = len(runs._runs)
        rows = [piece.num_rows for _, pieces in runs.buckets() for piece in pieces]
    assert most <= 20 * 1001
    assert (sum(rows), runs_made) == (200 * 65, 0)


def test_what_shares_a_staging_file_is_decided_by_the_whole_batch(tmp_path: Path) -> None:
    """A row format encodes a large batch in slices; a bucket with many rows in all of them has a part of its own."""
    small = [f"small-{number % 100:02d}" for number in range(10_000)]
    buckets = [one for row, few in enumerate(small) for one in (few, *["large"] * (3 if row % 100 else 4))]
    rows = pa.record_batch({"k": buckets, "v": [f"row-{number:06d}" for number in range(len(buckets))]})
    # A row has 19 bytes: 20 000 of them are worth a part of their own, and a slice has 12 000 of the large bucket.
    rolling = pf.RollingPolicy(max_part_bytes=64 * 20_000 * 19)
    sink = pf.FileSink(
        tmp_path,
        uid="u",
        format="json",
        bucketer=pf.HiveBucketer("k"),
        rolling=rolling,
        buckets_per_staging_file=10,
    )
    out = sink.local().open()
    out.write(rows)
    assert [path.parent.name for path in tmp_path.rglob("_part-*.in-progress") if path.parent != tmp_path] == [
        "k=large"
    ]
    out.finish()
    assert len(list(tmp_path.glob("k=*/part-*"))) == 101
    assert pf.read(tmp_path).count_rows() == rows.num_rows
