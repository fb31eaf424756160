"""Batches on their way to a part: joined, split by bucket, fetched ahead."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc

import partfile as pf
from partfile.sink.batches import MOST_BYTES, MOST_ROWS, coalesce_batches, prefetch
from support.sinks.life_cycle import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# Small batches are joined: no row is lost, moved or held for long, whatever their sizes.


def _batch(rows: int, first: int = 0, width: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(first, first + rows), pa.int64()), "s": ["x" * width] * rows})


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 20))
def test_rows_keep_their_order_and_are_joined_as_far_as_they_may(sizes: list[int], most_rows: int) -> None:
    """All rows come in order; a joined batch ends only where the next one would have been too much for it."""
    batches = [_batch(size, sum(sizes[:at])) for at, size in enumerate(sizes)]
    found = list(coalesce_batches(batches, most_rows))
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(sizes)))
    left = [size for size in sizes if size]
    for batch in found:
        rows = left.pop(0)
        while left and rows + left[0] <= most_rows:
            rows += left.pop(0)
        assert batch.num_rows == rows


def test_long_rows_are_not_joined_beyond_the_bytes() -> None:
    """Batches of long rows stay apart, so that joining takes no more memory than MOST_BYTES."""
    batches = [_batch(4, width=MOST_BYTES // 8) for _ in range(5)]
    assert [batch.num_rows for batch in coalesce_batches(batches)] == [4] * 5
    shorter = [_batch(4, width=MOST_BYTES // 10) for _ in range(5)]
    assert [batch.num_rows for batch in coalesce_batches(shorter)] == [8, 8, 4]


def test_a_large_batch_is_passed_on_uncopied() -> None:
    """What is large already is not copied."""
    large = _batch(MOST_ROWS + 1)
    (found,) = coalesce_batches([_batch(0), large, _batch(0)])
    assert found is large


def test_batches_of_two_schemas_stay_apart() -> None:
    """A schema that changes ends the batch before it."""
    other = pa.record_batch({"n": pa.array([1], pa.int32())})
    found = list(coalesce_batches([_batch(1), _batch(1), other, other, _batch(1)]))
    assert [(batch.num_rows, len(batch.schema)) for batch in found] == [(2, 2), (2, 1), (1, 2)]


# Columns that Arrow cannot put into another order, in batches whose rows of a bucket do not stand together.

_ROWS = 40
_TEXTS = [f"text {number}" * 3 if number % 4 else None for number in range(_ROWS)]
_COLUMNS = {
    "text": pa.array(_TEXTS, pa.string_view()),
    "bytes": pa.array([None if text is None else text.encode() for text in _TEXTS], pa.binary_view()),
    "in lists": pa.array([[text, "x"] for text in _TEXTS], pa.list_(pa.string_view())),
    "in structs": pa.array([{"v": text} for text in _TEXTS], pa.struct({"v": pa.string_view()})),
    "in maps": pa.array([[("k", text)] for text in _TEXTS], pa.map_(pa.string(), pa.string_view())),
    "runs": pc.run_end_encode(pa.array([number // 7 for number in range(_ROWS)])),
    "words": pa.array(["a", "b"] * (_ROWS // 2)).dictionary_encode(),
}
_CASES = [("orc", column) for column in _COLUMNS] + [("parquet", column) for column in _COLUMNS if column != "runs"]


@pytest.mark.parametrize("shared", [3, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize(("kind", "column"), _CASES)
def test_rows_of_any_type_are_moved_to_their_bucket(
    tmp_path: Path, kind: str, column: str, columnar: Any, shared: int | None
) -> None:
    """Every value comes, in its order, from parts of their own and from multi-bucket staging files."""
    keys = [number % 8 for number in range(_ROWS)]
    rows = pa.record_batch([pa.array(keys), _COLUMNS[column], pa.array(range(_ROWS))], names=["k", "c", "row"])
    sink = pf.FileSink(
        tmp_path,
        uid="life",
        format=kind,
        bucketer=pf.HiveBucketer("k"),
        rolling=LONG,
        columnar=columnar,
        buckets_per_staging_file=shared,
    )
    with sink.local() as out:
        out.write(rows)
        out.write(rows.slice(3, 20))
    written = [*range(_ROWS), *range(3, 23)]
    values = _COLUMNS[column].to_pylist()
    paths = sorted(tmp_path.glob("k=*/part-*"))
    assert len(paths) == 8
    for path in paths:
        table = pq.read_table(path, partitioning=None) if kind == "parquet" else orc.read_table(path)
        own = [number for number in written if f"k={number % 8}" == path.parent.name]
        assert table["row"].to_pylist() == own
        assert table["c"].to_pylist() == [values[number] for number in own]


# Items are written in order by one thread beside the one that fetches them, and nothing goes on after a failure.


def test_items_are_written_in_order_while_the_next_ones_are_fetched() -> None:
    """A write that waits for the fetch of a later item comes to its end: both go on at the same time."""
    third_is_fetched, written = threading.Event(), list[int]()

    def items() -> Iterator[int]:
        for number in range(6):
            if number == 2:
                third_is_fetched.set()
            yield number

    def write(number: int) -> None:
        assert third_is_fetched.wait(60), "nothing is fetched while this is written"
        written.append(number)

    prefetch(items(), write)
    assert written == list(range(6))


def test_no_more_than_a_few_items_are_fetched_and_not_written() -> None:
    """The iteration never runs away from the writing."""
    fetched, written, most = 0, 0, 0

    def items() -> Iterator[int]:
        nonlocal fetched, most
        for number in range(50):
            fetched += 1
            most = max(most, fetched - written)
            yield number

    def write(_number: int) -> None:
        nonlocal written
        written += 1

    prefetch(items(), write, most_waiting=2)
    assert written == 50
    # Two that wait, and the one that is fetched beside them.
    assert most <= 3


def test_nothing_is_written_after_a_failure() -> None:
    """The failure of one write is raised, and the items that were fetched already are not written any more."""
    written = list[int]()

    def write(number: int) -> None:
        if number == 1:
            raise OSError("the disk is gone")
        written.append(number)

    with pytest.raises(OSError, match="the disk is gone"):
        prefetch(range(100), write)
    assert written == [0]


def test_a_failing_fetch_waits_for_the_write_that_is_under_way() -> None:
    """When it raises, nothing is being written any more, and no thread is left that a fork would lose."""
    # Threads of other tests may end meanwhile.
    before, is_writing, goes_on, written = set(threading.enumerate()), threading.Event(), threading.Event(), list[int]()

    timers = list[threading.Timer]()

    def items() -> Iterator[int]:
        yield 0
        assert is_writing.wait(60)
        yield 1
        timers.append(threading.Timer(0.05, goes_on.set))
        timers[0].start()
        raise ValueError("the rows have ended too early")

    def write(number: int) -> None:
        is_writing.set()
        assert goes_on.wait(60)
        written.append(number)

    with pytest.raises(ValueError, match="ended too early"):
        prefetch(items(), write)
    assert written == [0]
    assert set(threading.enumerate()) - before <= {*timers}, "a thread is left"


def test_a_fetch_that_fails_because_a_write_has_does_not_hide_why() -> None:
    """The task's input may break off when its output does: what is told is what came first."""
    has_failed = threading.Event()

    def fetched() -> Iterator[int]:
        yield 1
        assert has_failed.wait(60)
        raise EOFError("the source has ended")

    def fail(_item: int) -> None:
        has_failed.set()
        raise OSError("no space is left")

    with pytest.raises(OSError, match="no space is left") as told:
        prefetch(fetched(), fail)
    assert isinstance(told.value.__cause__, EOFError)
