"""Sizes at and beside their limits, and many buckets and parts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from life_cycle import batch, finished_files, make_sink, rows_of

import partfile as pf
from partfile.sink.plan import SinkSnapshot, operator_state, restored_state
from partfile.sink.states import OPERATOR, PendingPart, StreamPosition
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import write_operator_state
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from partfile.testing.faults import TrackedCalls, intercept
from partfile.testing.store import new_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.testing.faults import Call

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
        state = operator_state(snapshot, lambda states: write_operator_state(states, streams, checkpoint_id, 0))
        assert restored_state({OPERATOR: state}, storage.read_state) == snapshot
        assert isinstance(state.coordinator, FileHandle)
        return snapshot, state.coordinator.size_bytes

    _, few_bytes = state_of(PARTS // 10, 1)
    _, many_bytes = state_of(PARTS, 2)
    assert many_bytes < 10 * few_bytes * 1.1
    assert many_bytes / PARTS < 1000
