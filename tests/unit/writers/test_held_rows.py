"""Batches that are held until they are enough: what they weigh besides their rows is bounded, too."""

from __future__ import annotations

import pyarrow as pa
import pytest

from partfile.writers.arrow_stage import HeldRows, weight

MANY = 1 << 30
WIDE = pa.schema([(f"c{number}", pa.null() if number % 2 else pa.bool_()) for number in range(1000)])


def _wide(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows, column.type) for column in WIDE], schema=WIDE)


def test_a_batch_weighs_something_for_each_column() -> None:
    """A thousand columns of nothing take a megabyte in memory."""
    assert weight(_wide(0)) == 1000 << 10
    assert weight(_wide(80)) == (1000 << 10) + 500 * 20


@pytest.mark.parametrize(("schema", "most"), [(WIDE, 8), (pa.schema([("row", pa.int64())]), 256)])
def test_small_batches_are_joined_before_they_weigh_much(schema: pa.Schema, most: int) -> None:
    """Few of many columns, and more of few; the rows come back as they were."""
    held = HeldRows(schema, MANY, MANY)
    one = pa.RecordBatch.from_arrays([pa.nulls(1, column.type) for column in schema], schema=schema)
    for _ in range(300):
        assert not held.add(one)
        assert len(held._batches) <= most
    table = held.take()
    assert table.num_rows == 300
    assert table.schema == schema


def test_rows_that_weigh_more_than_their_columns_are_not_copied() -> None:
    """However many batches they are in."""
    one = pa.record_batch({"text": ["x" * 10_000]})
    held = HeldRows(one.schema, MANY, MANY)
    for _ in range(500):
        held.add(one)
    assert len(held._batches) == 500


def test_dictionaries_that_do_not_fit_into_one_stay_apart() -> None:
    """Their batches are held as they came, and none is lost."""
    indices = pa.array(range(40), pa.int8())
    batches = [
        pa.record_batch({"word": pa.DictionaryArray.from_arrays(indices, [f"{number}-{i}" for i in range(40)])})
        for number in range(400)
    ]
    held = HeldRows(batches[0].schema, MANY, MANY)
    for one in batches:
        held.add(one)
    words = [word for chunk in held.take()["word"].chunks for word in chunk.to_pylist()]
    assert words == [f"{number}-{i}" for number in range(400) for i in range(40)]
