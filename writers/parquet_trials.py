"""What Arrow refuses to write as Parquet, found out by writing it where the user can still mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from partfile.filesystems.errors import ConfigError, UnsupportedTypeError
from partfile.writers.plain_columns import map_entries
from partfile.writers.sample_rows import sample_row
from partfile.writers.text_columns import kernels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_REFUSALS = (pa.ArrowException, OSError)
"""Arrow says some things by a bare OSError; the file is in memory, so none of them is about storage."""
_LOOKED_INTO = {
    kind.id
    for kind in (
        pa.timestamp("s"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.struct([]),
        pa.map_(pa.string(), pa.string()),
        pa.list_(pa.string()),
        pa.large_list(pa.string()),
        pa.list_(pa.string(), 1),
    )
}
"""Kinds of columns that may hold nulls and be refused all the same; most columns are of none of them."""
_MOST_SECONDS = (2**63 - 1) // 1000
"""Parquet has no timestamps in seconds, so Arrow writes milliseconds."""


def check_level(compression: str, level: int | None) -> None:
    """Refuse a level that the codec does not take.

    Raises:
        ConfigError: Names both options.
    """
    try:
        _written(pa.table({"any": [0]}), {"compression": compression, "compression_level": level})
        least, most = _levels(compression)
        if level is not None and not least <= level <= most:
            # Arrow takes the nearest one in silence.
            raise pa.ArrowInvalid(f"its levels are {least} to {most}")
    except _REFUSALS as error:
        raise ConfigError(
            f"Parquet compression={compression!r} does not take compression_level={level!r}: {error}",
            hint="Leave compression_level out, or choose another.",
        ) from error


def _levels(compression: str) -> tuple[int, int]:
    codec = "lz4_raw" if compression == "lz4" else compression
    return pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)


def check_columns(schema: pa.Schema, options: Mapping[str, Any], bloom_filter_columns: Collection[str]) -> None:
    """Write a row of each column with a format's own options, and refuse what cannot be done.

    Args:
        schema: The columns of a file.
        options: For pyarrow's writer, as far as they are of any schema.
        bloom_filter_columns: Paths that are to have a filter.

    Raises:
        UnsupportedTypeError: Names the column and its type.
        ConfigError: A bloom filter is asked for where there are no single values.
    """
    paths: set[str] = set()
    for column in schema:
        try:
            written = _written(sample_row(pa.schema([column])), options)
        except _REFUSALS as error:
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as Parquet: {error}",
                hint="Cast the column to a type that docs/FORMATS.md lists, change the option, or drop the column.",
            ) from error
        found: Any = pq.ParquetFile(written).schema
        paths |= {found.column(index).path for index in range(len(found))}
    for path in bloom_filter_columns:
        if path not in paths:
            raise ConfigError(
                f"bloom_filter_columns names {path!r}, which holds no single values.",
                hint=f"The columns of such a file are {', '.join(sorted(paths))}.",
            )


def may_refuse(schema: pa.Schema) -> bool:
    """Whether rows of a schema can be refused: a column forbids nulls, or is of a kind that has to be looked into."""
    return any(map(_may_be_refused, schema))


def check_values(batch: pa.RecordBatch) -> None:
    """Refuse values that no Parquet file can hold: nulls where there may be none, seconds beyond all milliseconds.

    What might be refused is seen by looks that cost nearly nothing; whether it is, by writing that column.

    Raises:
        ConfigError: Names the column.
    """
    for index, field in enumerate(batch.schema):
        if not _may_be_refused(field):
            continue
        column = batch.column(index)
        if any(_is_suspect(*leaf) for leaf in _leaves(field, column)):
            try:
                _written(pa.Table.from_arrays([column], schema=pa.schema([field])), {})
            except _REFUSALS as error:
                raise ConfigError(
                    f"Column {field.name!r} holds values that cannot be written as Parquet: {error}",
                    hint="Declare it as nullable, or change these values before the sink.",
                ) from error


def _may_be_refused(field: Any) -> bool:
    return not field.nullable or field.type.id in _LOOKED_INTO


def _written(table: pa.Table, options: Mapping[str, Any]) -> pa.BufferReader:
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, **options)
    return pa.BufferReader(stream.getvalue())


def _leaves(field: Any, column: Any) -> Iterator[tuple[Any, Any]]:
    """A column and all that is nested in it, also below nulls, where Arrow looks as well."""
    yield field, column
    kind = field.type
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves(kind.field(index), column.field(index))
    elif types.is_map(kind):
        entries = map_entries(column)
        yield from _leaves(entries.type.value_field, entries.flatten())
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        yield from _leaves(kind.value_field, column.flatten())
    elif types.is_dictionary(kind):
        yield pa.field(field.name, kind.value_type), column.dictionary


def _is_suspect(field: Any, column: Any) -> bool:
    if not field.nullable and column.null_count:
        return True
    if not (types.is_timestamp(field.type) and field.type.unit == "s"):
        return False
    ends = kernels.min_max(column.view(pa.int64())).as_py()
    return ends["min"] is not None and (ends["min"] < -_MOST_SECONDS or ends["max"] > _MOST_SECONDS)
