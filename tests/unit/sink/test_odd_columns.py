"""Columns that Arrow cannot put into another order, in batches whose rows of a bucket do not stand together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from life_cycle import LONG
from pyarrow import orc

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

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


@pytest.mark.parametrize("shared", [3, None])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize(("kind", "column"), _CASES)
def test_rows_of_any_type_are_moved_to_their_bucket(
    tmp_path: Path, kind: str, column: str, columnar: Any, shared: int | None
) -> None:
    """Every value comes, in its order, from parts of their own and from shared stages."""
    keys = [number % 8 for number in range(_ROWS)]
    rows = pa.record_batch([pa.array(keys), _COLUMNS[column], pa.array(range(_ROWS))], names=["k", "c", "row"])
    sink = pf.FileSink(
        tmp_path,
        uid="life",
        format=kind,
        bucketer=pf.HiveBucketer("k"),
        rolling=LONG,
        columnar=columnar,
        shared_stage_buckets=shared,
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
