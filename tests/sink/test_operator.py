"""The operator: decisions about open parts, limits, parts that no writer could be made for."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import LeaseUnavailable, NotApplied, NotReady
from partfile.sink import plan
from partfile.sink.plan import Action, SinkSnapshot, restored_state
from partfile.sink.policies import PartProgress, RollingPolicy
from partfile.sink.states import OPERATOR, OpenPart, PendingPart, StreamPosition
from partfile.snapshot.documents import FileHandle, OperatorState
from partfile.snapshot.operator_state import write_operator_state
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.base import PartHandle
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from partfile.testing.faults import TrackedCalls, intercept
from partfile.testing.store import new_part
from partfile.writers.arrow_staging import StagingFormat
from partfile.writers.parquet import ParquetFormat
from partfile.writers.registry import resolve_format
from support.files.disks import open_below
from support.sinks.harness import Harness
from support.sinks.life_cycle import batch, finished_files, make_sink, rows_of
from support.sinks.staged_streams import staging_files_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.testing.faults import Call


@pytest.mark.parametrize("format", ["json", "csv", "text"])
def test_rows_of_a_row_format_are_encoded_some_thousands_at_a_time(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay in the processor's cache: a batch of 100 000 at once takes a quarter more of its time."""
    encoded: list[int] = []
    form: Any = type(resolve_format(format))
    encode = form.encode

    def counted(self: Any, rows: Any) -> Any:
        encoded.append(rows.num_rows)
        return encode(self, rows)

    monkeypatch.setattr(form, "encode", counted)
    with pf.FileSink(tmp_path, uid="slices", format=format).local() as out:
        out.write(pa.table({"value": [str(number) for number in range(100_000)]}))
    assert sum(encoded) == 100_000
    assert max(encoded) <= 16_384


# Decisions about open parts, and what the operator does when a part is taken away from it.

POLICY = RollingPolicy(max_part_bytes=100, rollover_interval_s=10, inactivity_interval_s=5)


def part(name: str = "p", bucket: str = "b", fingerprint: str = "f", *, length: int = 10) -> OpenPart:
    handle = PartHandle(bucket=bucket, name=name, in_progress="_i", pending="_p", sidecar="_v", valid_length=length)
    return OpenPart(
        part=handle, count=0, schema_fingerprint=fingerprint, epoch=3, created_at_ms=0, last_write_ms=0, rows=1
    )


@pytest.mark.parametrize(
    ("epoch", "attempt", "length", "may_keep", "action"),
    [
        (3, 0, 10, True, Action.KEEP),
        (4, 0, 10, True, Action.ABANDON),
        (2, 0, 10, True, Action.ABANDON),
        (3, 1, 10, True, Action.ABANDON),
        (3, 0, 10, False, Action.ABANDON),
        (3, 0, 100, True, Action.ROLL),
        (3, 1, 100, True, Action.ABANDON),
        (3, 0, 100, False, Action.ABANDON),
    ],
)
def test_only_the_first_attempt_of_the_owning_epoch_resumes(
    epoch: int, attempt: int, length: int, may_keep: bool, action: Action
) -> None:
    """A part of another epoch, or any part in a retry or without leases, is left alone; a full one is rolled."""
    done = plan.before_resuming(part(length=length), POLICY, epoch=epoch, attempt=attempt, may_keep=may_keep)
    assert done is action


@pytest.mark.parametrize(
    ("may_keep", "now_ms", "action"), [(True, 1, Action.KEEP), (False, 1, Action.ROLL), (True, 10_000, Action.ROLL)]
)
def test_what_may_not_be_kept_rolls_at_the_checkpoint(may_keep: bool, now_ms: int, action: Action) -> None:
    """Without proven leases, or with time over, a part does not stay open over a checkpoint (R13)."""
    progress = PartProgress(10, 1, 0, 0)
    assert plan.at_checkpoint(progress, POLICY, now_ms=now_ms, may_keep=may_keep) is action


def test_one_open_part_a_bucket_and_schema() -> None:
    """Of two parts of one bucket and schema the second is surplus; another schema is another part."""
    parts = [part("1"), part("2"), part("3", fingerprint="g"), part("4", bucket="c")]
    kept, surplus = plan.one_per_key(parts)
    assert [one.part.name for one in kept.values()] == ["1", "3", "4"]
    assert [one.part.name for one in surplus] == ["2"]


def test_the_least_recently_used_parts_go_first() -> None:
    """Beyond the cap the oldest go, and none if there is room."""
    keys = [("a", ""), ("b", ""), ("c", "")]
    assert plan.beyond_cap(keys, 2) == [("a", "")]
    assert plan.beyond_cap(keys, 3) == []


@pytest.mark.parametrize("deed", ["unlink", "replace"])
def test_a_part_taken_away_is_noticed_before_it_is_acknowledged(tmp_path: Path, deed: str) -> None:
    """A task whose part is no longer under its name must not vouch for its rows (R2)."""
    job = Harness(tmp_path)
    job.write("a@1")
    (staged,) = tmp_path.rglob("*.in-progress")
    staged.unlink()
    if deed == "replace":
        staged.write_text("a@1\n")
    with pytest.raises(LeaseUnavailable, match="no longer under its in-progress name"):
        job.checkpoint()


def test_two_parts_of_one_bucket_after_rescaling_are_both_finished(tmp_path: Path) -> None:
    """When a subtask inherits a second open part of a bucket, that one is rolled, and no row of it is lost."""
    job = Harness(tmp_path, 2)
    job.write("a@0", subtask=0)
    job.write("a@1", subtask=1)
    job.checkpoint()
    pending = job.coordinator.trigger(0)
    snapshot = job.operators[0].snapshot(pending.checkpoint_id)
    job.coordinator.complete(pending, [snapshot], job.coordinator.state.position)
    assert [len(parts) for parts in job.coordinator.state.open.values()] == [2]
    job.coordinator.close_all(0, keep=True)
    job.restore(1)
    job.write("a@2")
    job.checkpoint()
    assert sorted(job.finished().values()) == ["a@1\n"]
    job.restore(1)
    assert sorted(job.finished().values()) == ["a@0\na@2\n", "a@1\n"]


# Parts that storage has made, and no writer could be: nothing of them stays in a process that lives on (R13).

ROWS = pa.RecordBatch.from_pydict({"id": [1]})


class FullDisk:
    """From some time on nothing can be written."""

    def __init__(self) -> None:
        self.is_full = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """See ``Interceptor.around``."""
        if self.is_full and call.name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return proceed()


def assert_nothing_is_held(base: Path) -> None:
    """There are staged files, of which this process has none open and whose locks can be had."""
    staged = list(base.rglob("*.in-progress"))
    assert staged
    assert not {path.resolve() for path in staged} & open_below(base)
    for path in staged:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_part_whose_keys_cannot_be_had_is_let_go(tmp_path: Path) -> None:
    """The file has been made when its keys are asked for; a task that is tried again would leave one more each time."""

    def fail() -> Any:
        raise ConnectionError("no route to the key service")

    out = pf.FileSink(tmp_path, uid="life", format=ParquetFormat(encryption=fail)).local().open()
    with pytest.raises(NotReady, match="key service"):
        out.write(ROWS)
    assert_nothing_is_held(tmp_path)


def test_a_staging_file_whose_schema_finds_no_room_is_let_go(tmp_path: Path) -> None:
    """It is the first that is written to it."""
    disk = FullDisk()

    def opener(url: str, _options: object) -> LocalStore:
        return LocalStore(url, calls=intercept(PosixCalls(), disk))

    out = pf.FileSink(tmp_path, uid="life", format="parquet", open_store=opener).local().open()
    disk.is_full = True
    with pytest.raises(NotApplied, match="No space left"):
        out.write(ROWS)
    assert_nothing_is_held(tmp_path)


def test_a_staging_file_that_cannot_be_gone_on_with_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is new; the rows that a checkpoint holds are published by the next start."""
    options: dict[str, Any] = {"uid": "life", "format": "parquet", "on_stop": "keep"}
    with pf.FileSink(tmp_path, **options).local() as out:
        out.write(ROWS)
    assert len(staging_files_in(tmp_path)) == 1

    def fail(*_: object) -> Any:
        raise MemoryError

    out = pf.FileSink(tmp_path, **options).local().open()
    with monkeypatch.context() as patch:
        patch.setattr(StagingFormat, "open_part", fail)
        with pytest.raises(MemoryError):
            out.write(ROWS)
    assert_nothing_is_held(tmp_path)
    with pf.FileSink(tmp_path, **options | {"on_stop": "publish"}).local():
        pass
    assert len(list(tmp_path.glob("part-*.parquet"))) == 1


# Sizes at and beside their limits, and many buckets and parts at once.

ROW_BYTES = len(b"row-0000\n")
BUCKETS = 300
PARTS = 5_000


@pytest.mark.parametrize(("most_bytes", "files"), [(2 * ROW_BYTES - 1, 3), (2 * ROW_BYTES, 3), (2 * ROW_BYTES + 1, 2)])
@pytest.mark.fault("T5")
def test_a_part_of_just_the_size_that_rolls(most_bytes: int, files: int, tmp_path: Path) -> None:
    """A part that has reached the size takes no more rows; one that is a byte short takes them."""
    rolling = pf.RollingPolicy(max_part_bytes=most_bytes, rollover_interval_s=1e6, inactivity_interval_s=1e6)
    with make_sink(tmp_path, rolling=rolling, bucketer=pf.BasePathBucketer()).local() as out:
        for number in range(6):
            out.write(batch(number, 1).select(["row"]))
    assert len(finished_files(tmp_path)) == files
    assert sum(rows_of(finished_files(tmp_path)).values()) == 6


@pytest.mark.fault("T5")
def test_a_part_without_bytes_and_one_of_impossible_length(tmp_path: Path) -> None:
    """No byte is a length like any other; a part that was longer than any file can be is missing bytes, by name."""
    with LocalStore(str(tmp_path)) as store:
        empty = store.create(new_part("a")).close_for_commit()
        store.publish(empty, "auto")
        assert finished_files(tmp_path) == {"a/" + empty.name: b""}
        other = store.create(new_part("b")).close_for_commit()
        with pytest.raises(pf.PartMissing, match=str(2**63)):
            store.publish(other.at(2**63), "auto")


class MostOpen:
    """Counts descriptors that are open at once."""

    def __init__(self, calls: TrackedCalls) -> None:
        self._calls = calls
        self.most = 0

    def around(self, _call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, then count."""
        result = proceed()
        self.most = max(self.most, len(self._calls.open_descriptors))
        return result


@pytest.mark.fault("T4")
def test_many_buckets_keep_few_files_open(tmp_path: Path) -> None:
    """A batch over hundreds of buckets never holds more files than it may, and each row is in its bucket."""
    calls = TrackedCalls()
    count = MostOpen(calls)
    rows = pa.RecordBatch.from_pydict(
        {
            "bucket": [f"b{number:04d}" for number in range(BUCKETS)],
            "row": [f"row-{number:04d}" for number in range(BUCKETS)],
        }
    )
    sink = make_sink(
        tmp_path, max_open_parts=20, open_store=lambda url, _: LocalStore(url, calls=intercept(calls, count))
    )
    with sink.local() as out:
        out.write(rows)
    assert count.most < 20 + 15
    files = finished_files(tmp_path)
    assert len(files) == BUCKETS
    assert all(name.startswith(f"bucket=b{data[4:8].decode()}/") for name, data in files.items())


@pytest.mark.fault("T4")
def test_a_snapshot_of_many_parts_is_read_back_and_grows_with_them_alone() -> None:
    """Thousands of parts that wait to be published are one state file, of so many bytes a part."""
    storage = CheckpointStorage(MemoryMetadataStore(), "many")

    def state_of(parts: int, checkpoint_id: int) -> tuple[SinkSnapshot, int]:
        handles = [new_part(f"bucket={number % 100}", f"part-0000abcd-0-{number}") for number in range(parts)]
        pending = tuple(PendingPart(part=handle.at(number), rows=1, since=1) for number, handle in enumerate(handles))
        snapshot = SinkSnapshot(StreamPosition(chain="0000abcd"), {}, pending, parts - 1)
        streams = storage.stream_factory(checkpoint_id)
        handle = write_operator_state(snapshot.to_states(), streams)
        state = OperatorState(parallelism=0, coordinator=handle)
        assert restored_state({OPERATOR: state}, storage.read_state) == snapshot
        assert isinstance(handle, FileHandle)
        return snapshot, handle.size_bytes

    _, few_bytes = state_of(PARTS // 10, 1)
    _, many_bytes = state_of(PARTS, 2)
    assert many_bytes < 10 * few_bytes * 1.1
    assert many_bytes / PARTS < 1000


# Avro parts through the sink: each its own sync marker, also where another process goes on with it.

_KEEP = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)


def test_parts_that_go_on_in_another_run_are_whole_files(tmp_path: Path) -> None:
    """Blocks of three runs stand in one file of each bucket, which reads back, and whose marker no other file has."""
    for run in range(3):
        on_stop: Any = "keep" if run < 2 else "publish"
        sink = pf.FileSink(
            str(tmp_path), format="avro", bucketer=pf.HiveBucketer("b"), uid="a", rolling=_KEEP, on_stop=on_stop
        )
        with sink.local() as out:
            for start in (run * 10, run * 10 + 5):
                numbers = list(range(start, start + 5))
                out.write(pa.record_batch({"b": [str(n % 2) for n in numbers], "n": numbers}))
                out.checkpoint()
    files = [path.read_bytes() for path in tmp_path.glob("*/part-*.avro")]
    assert len(files) == 2
    readers: list[Any] = [fastavro.reader(io.BytesIO(file)) for file in files]
    assert sorted(row["n"] for reader in readers for row in reader) == list(range(30))
    markers = [reader._header["sync"] for reader in readers]
    assert [file.count(marker) for file, marker in zip(files, markers, strict=True)] == [7, 7]
    assert markers[0] != markers[1]
