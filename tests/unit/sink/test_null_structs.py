"""A null struct whose fields are never null: as Spark hands it over, with nulls in the fields, and in every nesting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

_STRUCT = pa.struct([pa.field("x", pa.int32(), nullable=False)])
_STRUCTS = pa.StructArray.from_arrays(
    [pa.array([1, None, 3], pa.int32())], fields=list(_STRUCT), mask=pa.array([False, True, False])
)
_COLUMNS = {
    "struct": _STRUCTS,
    "in a list": pa.ListArray.from_arrays([0, 1, 2, 3], _STRUCTS),
    "in a map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), _STRUCTS),
    "in a struct": pa.StructArray.from_arrays([_STRUCTS], fields=[pa.field("s", _STRUCT)]),
}


@pytest.mark.parametrize("shared", [1, None])
@pytest.mark.parametrize("columnar", ["staged", "per_checkpoint"])
@pytest.mark.parametrize("format", ["parquet", "orc"])
@pytest.mark.parametrize("column", _COLUMNS)
def test_a_null_struct_is_written_though_its_fields_are_never_null(
    tmp_path: Path, column: str, format: str, columnar: Any, shared: int | None
) -> None:
    """The rows come back as they were: a null struct, and the others with their values."""
    rows = pa.record_batch([pa.array([0, 1, 0]), _COLUMNS[column]], names=["k", "c"])
    options: dict[str, Any] = {"columnar": columnar, "shared_stage_buckets": shared}
    sink = pf.FileSink(tmp_path, uid="u", format=format, bucketer=pf.HiveBucketer("k"), **options)
    with sink.local() as out:
        out.write(rows)
    found = pf.read(tmp_path, format=format).to_table().sort_by("k")
    values = _COLUMNS[column].to_pylist()
    assert sorted(map(str, found["c"].to_pylist())) == sorted(map(str, values))


def test_a_null_where_there_may_be_none_is_refused_all_the_same(tmp_path: Path) -> None:
    """Only what lies below a null counts as null: a null in a struct that is there is the user's mistake."""
    wrong = pa.StructArray.from_arrays([pa.array([1, None], pa.int32())], fields=list(_STRUCT))
    schema = pa.schema([pa.field("c", _STRUCT, nullable=False)])
    rows = pa.RecordBatch.from_arrays([wrong], schema=schema)
    with pf.FileSink(tmp_path, uid="u", format="parquet").local() as out, pytest.raises(pf.ConfigError, match="'c'"):
        out.write(rows)
