"""ORC: one part is one file with its footer, encoded once.

Columns that pyarrow's ORC writer gets wrong are cast before, or refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from pyarrow import types

from partfile.errors import ConfigError, UnsupportedTypeError
from partfile.writers.arrow_staging import HeldRows, StreamFile
from partfile.writers.base import TYPES_URL, BulkFormat, Writer, resolve_options
from partfile.writers.columns import (
    as_plain,
    check_types,
    list_offsets,
    map_entries,
    nested_values,
    plain_schema,
    sample_row,
)
from partfile.writers.scalars import in_column, is_any, kernels, whole_days

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from partfile.writers.base import ByteStream


def normalized(table: pa.Table) -> pa.Table:
    """The same rows, copied where a column is nested."""
    columns = [_normalized(column) if types.is_nested(column.type) else column for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _normalized(column: Any) -> Any:
    chunks = [_with_nulls_below(chunk.take(pa.array(np.arange(len(chunk))))) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type)


def _with_nulls_below(column: Any) -> Any:
    kind = column.type
    if types.is_struct(kind):
        children = [_with_nulls_below(child) for child in column.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())
    if types.is_map(kind):
        pairs = map_entries(column)
        keys, items = pairs.flatten().flatten()
        return pa.MapArray.from_arrays(list_offsets(pairs, pa.int32()), keys, _with_nulls_below(items), type=kind)
    if types.is_list(kind):
        values = _with_nulls_below(column.flatten())
        return pa.ListArray.from_arrays(list_offsets(column, pa.int32()), values, type=kind)
    if types.is_large_list(kind):
        values = _with_nulls_below(column.flatten())
        return pa.LargeListArray.from_arrays(list_offsets(column, pa.int64()), values, type=kind)
    if types.is_fixed_size_list(kind):
        return _with_nulls_below(column.cast(pa.list_(kind.value_field))).cast(kind)
    return column


def column_ids(schema: pa.Schema, paths: Sequence[str], option: str) -> list[int]:
    """The numbers of some columns of single values.

    Args:
        schema: The columns of a file, plain.
        paths: Names; a field of a struct is named with its path, as ``"a.b"``.
        option: Where these names come from, for messages.

    Raises:
        ConfigError: A path names no column, or one that holds no single values.
    """
    known: dict[str, int | None] = {}
    # The root is 0.
    following = 1
    for field in schema:
        following = _number(field.name, field.type, following, known)
    ids = []
    for path in paths:
        number = known.get(path)
        if number is None:
            what = "holds no single values" if path in known else "is not a column"
            single = ", ".join(sorted(name for name, number in known.items() if number is not None))
            raise ConfigError(
                f"{option} names {path!r}, which {what}.",
                hint=f"Leave {option}=() empty, or name some of these: {single or 'none'}.",
            )
        ids.append(number)
    return ids


def _number(path: str, kind: Any, own: int, known: dict[str, int | None]) -> int:
    """Note the number of a column and of the fields of a struct, and return the number after all that is in it."""
    known.setdefault(path, None if types.is_nested(kind) else own)
    following = own + 1
    if types.is_struct(kind):
        for index in range(kind.num_fields):
            field = kind.field(index)
            following = _number(f"{path}.{field.name}", field.type, following, known)
        return following
    for inner in _inner_types(kind):
        # What is in lists and maps has numbers, and no name here.
        following = _number("", inner, following, {})
    return following


def _inner_types(kind: Any) -> list[Any]:
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if types.is_nested(kind) else []


_CODECS = ("zstd", "snappy", "zlib", "lz4", "none")
_HELD_ROWS = 1 << 16
_HELD_BYTES = 8 << 20
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
_LAST_SECOND = (2**63 - 1) // 10**6 - 1
"""Readers count microseconds."""
_FIRST_GREGORIAN_DAY = -141_427
"""Arrow does not say which calendar earlier days are of, so Spark takes the Julian."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrcFormat(BulkFormat):
    """Rows as ORC.

    Args:
        compression: Codec of the streams: zstd, snappy, zlib, lz4 or none.
        compression_level: ORC chooses levels itself: only None.
        stripe_bytes: Encoded bytes that end a stripe; what bounds the memory of an open part.
        dictionary_threshold: From 0 (never) to 1 (always): a column of text has a dictionary as long as the distinct
            values are at most this share of all.
        bloom_filter_columns: Columns that get a bloom filter. A field of a struct is named with its path, as ``"a.b"``.

    Raises:
        ConfigError: An unknown codec, a level, a stripe of nothing, or a threshold beyond 0 to 1.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    stripe_bytes: int = 64 << 20
    dictionary_threshold: float = 0.8
    bloom_filter_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        resolve_options(self, OrcFormat)
        if self.compression not in _CODECS:
            raise ConfigError(
                f"ORC compression {self.compression!r} is not known.",
                hint=f"There are {', '.join(_CODECS)}: write for instance compression='zstd'.",
            )
        if self.compression_level is not None:
            raise ConfigError(
                f"ORC takes no compression_level, as {self.compression_level!r}.",
                hint="Leave it out, and choose a codec: compression='zstd'.",
            )
        if self.stripe_bytes < 1:
            raise ConfigError("stripe_bytes must be at least 1.", hint="Write stripe_bytes=67108864.")
        if not 0 <= self.dictionary_threshold <= 1:
            raise ConfigError(
                f"dictionary_threshold={self.dictionary_threshold!r} is not from 0 to 1.",
                hint="Write dictionary_threshold=0 for no dictionaries.",
            )

    @property
    def suffix(self) -> str:
        """``.orc``; the codec is told inside the file."""
        return ".orc"

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Arrow cannot write as ORC, found out by writing a row.

        Raises:
            UnsupportedTypeError: Names the column and its type.
        """
        if len(schema) == 0:
            raise UnsupportedTypeError("ORC needs at least one column, and there is none.")
        check_types(plain_schema(schema), "ORC")
        column_ids(_orc_schema(schema), self.bloom_filter_columns, "bloom_filter_columns")
        for column in _orc_schema(schema):
            try:
                _orc().write_table(sample_row(pa.schema([column])), pa.BufferOutputStream())
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise UnsupportedTypeError(
                    f"Column {column.name!r} of type {column.type} cannot be written as ORC: {error}",
                    hint=f"Drop the column, or cast it to a type of {TYPES_URL}",
                ) from error

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse dates and instants that Spark would fail on, or take for others, as Arrow writes them.

        Raises:
            ConfigError: Names the column.
        """
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            with in_column(name, "ORC"):
                moments = list(_moments(column))
            for values in moments:
                if (what := _unreadable(values)) is not None:
                    raise ConfigError(
                        f"Column {name!r} cannot be written as ORC: Spark does not read {what} as they are.",
                        hint="Change these values before the sink, or write format='parquet'.",
                    )

    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one part."""
        return OrcPartWriter(self, stream, schema)


class OrcPartWriter(Writer):
    """Joins slices, and leaves it to ORC to hold one stripe at a time."""

    def __init__(self, form: OrcFormat, stream: ByteStream, schema: pa.Schema) -> None:
        self._form = form
        self._schema = _orc_schema(schema)
        self._held = HeldRows(self._schema, _HELD_ROWS, _HELD_BYTES)
        self._target = StreamFile(stream)
        with self._target.passing():
            self._file: Any = _orc().ORCWriter(
                pa.PythonFile(cast("Any", self._target), mode="w"),
                compression="uncompressed" if form.compression == "none" else form.compression,
                stripe_size=form.stripe_bytes,
                dictionary_key_size_threshold=form.dictionary_threshold,
                bloom_filter_columns=column_ids(self._schema, form.bloom_filter_columns, "bloom_filter_columns"),
            )
            # ORC learns its columns from the first rows, and without any the file would be none.
            self._file.write(self._schema.empty_table())

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch until there are enough for ORC to encode.

        Raises:
            ConfigError: A value that ORC cannot hold.
        """
        plain = as_plain(batch, self._schema)
        self._form.check_rows(plain)
        if self._held.add(plain):
            self._write_held()

    def persist(self) -> int:
        """Refuse: without its footer an ORC file does not decode, so this part rolls instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "An ORC part cannot be persisted before it is closed.",
            hint="Write rolling=RollingPolicy(on_checkpoint=True).",
        )

    def close(self) -> None:
        """Write what is held, and the footer."""
        if self._held.rows:
            self._write_held()
        with self._target.passing():
            self._file.close()

    def _write_held(self) -> None:
        table = normalized(self._held.take().combine_chunks())
        with self._target.passing():
            self._file.write(table)


def _orc_schema(schema: pa.Schema) -> pa.Schema:
    """Plain columns; a date in milliseconds would become a timestamp."""
    return pa.schema([_orc_field(field) for field in plain_schema(schema)])


def _orc_field(field: pa.Field[Any]) -> pa.Field[Any]:
    kind: Any = field.type
    if types.is_date64(kind):
        return field.with_type(pa.date32())
    if types.is_struct(kind):
        return field.with_type(pa.struct([_orc_field(kind.field(index)) for index in range(kind.num_fields)]))
    if types.is_map(kind):
        return field.with_type(pa.map_(_orc_field(kind.key_field), _orc_field(kind.item_field), kind.keys_sorted))
    if types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_orc_field(kind.value_field), kind.list_size))
    if types.is_list(kind):
        return field.with_type(pa.list_(_orc_field(kind.value_field)))
    return field.with_type(pa.large_list(_orc_field(kind.value_field))) if types.is_large_list(kind) else field


def _moments(column: Any) -> Iterator[Any]:
    """The dates and timestamps in a column, also those in nested values; days where it holds milliseconds of them."""
    for values in nested_values(column):
        if types.is_timestamp(values.type) or types.is_date32(values.type):
            yield values
        elif types.is_date64(values.type):
            yield whole_days(values)


def _unreadable(column: Any) -> str | None:
    """The fault of dates or timestamps that Spark does not read, or None; nearly free where all are after 1970."""
    is_date = types.is_date32(column.type)
    ticks = column.view(pa.int32()).cast(pa.int64()) if is_date else column.view(pa.int64())
    ends = kernels.min_max(ticks).as_py()
    first, last = ends["min"], ends["max"]
    second = 1 if is_date else _TICKS[column.type.unit]
    if last is not None and not is_date and last // second > _LAST_SECOND:
        return "instants beyond 64 bits of microseconds"
    if first is None or first >= 0:
        return None
    if first < _FIRST_GREGORIAN_DAY * (1 if is_date else _DAY_SECONDS * second):
        return "dates before 15 October 1582"
    fraction = kernels.subtract(ticks, kernels.multiply(kernels.divide(ticks, second), second))
    return "instants before 1970 with a fraction of a second" if is_any(kernels.less(fraction, 0)) else None


def _orc() -> ModuleType:
    """Loaded when it is needed: not every build of pyarrow has it."""
    try:
        from pyarrow import orc  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("This build of pyarrow has no ORC.", hint="pip install --force-reinstall pyarrow") from error
    module: ModuleType = orc
    return module
