"""Parquet parts that roll at each checkpoint."""

from __future__ import annotations

import gc
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partfile.errors import ConfigError, NotFound, UnsupportedTypeError
from partfile.writers.parquet import ParquetFormat

_SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string()})


def _batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + rows)), pa.array(["é"] * rows)], schema=_SCHEMA)


def _read(part: Any) -> Any:
    return pq.ParquetFile(io.BytesIO(part.data))


def test_many_slices_become_few_row_groups(memory_part: Any) -> None:
    """Small batches are held back, so row groups have the size that was asked for, and rows keep their order."""
    part = memory_part()
    writer = ParquetFormat(row_group_rows=1000).open(part, _SCHEMA)
    for at in range(250):
        writer.write(_batch(at * 10, 10))
    writer.close()
    file = _read(part)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [1000, 1000, 500]
    assert file.read()["n"].to_pylist() == list(range(2500))
    assert file.schema_arrow.equals(_SCHEMA)


def test_bytes_end_a_row_group_too(memory_part: Any) -> None:
    """Memory is bounded by bytes: a row group is written as soon as its rows weigh enough."""
    part = memory_part()
    writer = ParquetFormat(row_group_bytes=1000).open(part, _SCHEMA)
    empty = part.position
    writer.write(_batch(0, 200))
    assert part.position > empty
    writer.write(_batch(200, 200))
    writer.close()
    assert _read(part).num_row_groups == 2


def test_a_held_slice_does_not_keep_its_batch(memory_part: Any) -> None:
    """One row of each batch for a rare bucket takes the memory of these rows, not of the batches."""
    writer = ParquetFormat().open(memory_part(), _SCHEMA)
    before = pa.total_allocated_bytes()
    for at in range(20):
        writer.write(_batch(at, 50_000).slice(at, 1))
    assert pa.total_allocated_bytes() - before < 100_000
    writer.close()


def test_a_part_of_no_rows_is_a_file_all_the_same(memory_part: Any) -> None:
    """Closing without a row writes schema and footer."""
    part = memory_part()
    writer = ParquetFormat().open(part, _SCHEMA)
    writer.write(_batch(0, 0))
    writer.close()
    assert _read(part).read().equals(_SCHEMA.empty_table())


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "lz4", "brotli", "none"])
def test_the_codec_is_passed_on(codec: str, memory_part: Any) -> None:
    """Pages are compressed as asked, and the suffix stays what readers look for."""
    part = memory_part()
    form = ParquetFormat(compression=codec)
    writer = form.open(part, _SCHEMA)
    writer.write(_batch(0, 10))
    writer.close()
    column = _read(part).metadata.row_group(0).column(0)
    assert column.compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert form.suffix == ".parquet"


def test_a_part_cannot_be_persisted_half_way(memory_part: Any) -> None:
    """The format says that it is not appendable, and its writer refuses a persist rather than promise a broken file."""
    assert not ParquetFormat().appendable
    writer = ParquetFormat().open(memory_part(), _SCHEMA)
    with pytest.raises(ConfigError, match="persisted"):
        writer.persist()
    writer.close()


def test_types_that_parquet_lacks_are_refused_by_name() -> None:
    """The column at fault is named, not the file."""
    schema = pa.schema({"ok": pa.int8(), "bad": pa.month_day_nano_interval()})
    with pytest.raises(UnsupportedTypeError, match="'bad' of type month_day_nano_interval"):
        ParquetFormat().check(schema)
    with pytest.raises(UnsupportedTypeError, match="at least one column"):
        ParquetFormat().check(pa.schema([]))
    ParquetFormat().check(_SCHEMA)


@pytest.mark.parametrize("options", [{"compression": "lzo"}, {"row_group_rows": 0}, {"row_group_bytes": 0}])
def test_useless_options_are_refused(options: dict[str, Any]) -> None:
    """An unknown codec and empty row groups are refused at once."""
    with pytest.raises(ConfigError):
        ParquetFormat(**options)


def test_a_whole_file_is_encoded_at_once(memory_part: Any) -> None:
    """Encoding gives the rows of all batches, in row groups of the size asked for, and says how many rows."""
    part = memory_part()
    form = ParquetFormat(row_group_rows=1000)
    assert form.encode((_batch(at * 10, 10) for at in range(250)), _SCHEMA, part) == 2500
    file = _read(part)
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [1000, 1000, 500]
    assert file.read()["n"].to_pylist() == list(range(2500))
    nothing = memory_part()
    assert form.encode(iter(()), _SCHEMA, nothing) == 0
    assert _read(nothing).read().equals(_SCHEMA.empty_table())


def test_encoding_holds_one_row_group(memory_part: Any) -> None:
    """Memory does not grow with the file: forty megabytes of rows go through row groups of one."""
    most = 0

    def batches() -> Any:
        nonlocal most
        for at in range(400):
            yield _batch(at * 10_000, 10_000)
            most = max(most, pa.total_allocated_bytes() - before)

    before = pa.total_allocated_bytes()
    assert ParquetFormat(row_group_bytes=1 << 20).encode(batches(), _SCHEMA, memory_part()) == 4_000_000
    assert most < 8 << 20


def test_a_part_that_is_given_up_gets_no_footer(memory_part: Any) -> None:
    """An error in the middle, or a writer that is dropped, leaves the part as it is: no footer makes it look whole."""
    part = memory_part()

    def broken() -> Any:
        yield _batch(0, 5000)
        raise NotFound("gone")

    with pytest.raises(NotFound):
        ParquetFormat(row_group_rows=1000).encode(broken(), _SCHEMA, part)
    gc.collect()
    assert part.position > 1000
    assert not bytes(part.data).endswith(b"PAR1")
    dropped = memory_part()
    ParquetFormat().open(dropped, _SCHEMA).write(_batch(0, 10))
    gc.collect()
    assert not dropped.data
