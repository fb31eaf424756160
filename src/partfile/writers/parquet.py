"""Parquet: one part is one file with its footer, encoded once.

Row groups are bounded in bytes, dictionaries are used where values repeat, and rows can be sorted on the way.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - pydantic reads the fields of the dataclass
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from partfile.errors import ConfigError, NotReady, PartfileError, UnsupportedTypeError
from partfile.writers.arrow_staging import HeldRows, StreamFile
from partfile.writers.base import TYPES_URL, BulkFormat, Writer, resolve_options
from partfile.writers.columns import check_types, map_entries, nested_values, plain_schema, sample_row
from partfile.writers.external_sort import ExternalSort
from partfile.writers.scalars import check_times, in_column, kernels, whole_days

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from partfile.writers.base import ByteStream


FEWEST_ROWS = 1 << 14
"""A dictionary for fewer rows costs no more than to find out whether it is worth it."""
_RUNS = 8
_ROWS_A_RUN = 1 << 8


def repeating_columns(rows: pa.Table) -> bool | Sequence[str]:
    """The columns whose values come again, in the form of pyarrow's ``use_dictionary``: names, or True for all.

    pyarrow fills the dictionary of a column until it is full, and only then writes values as they are; where no value
    comes twice, that takes a fifth of the time of encoding, and more bytes than none. Short runs of rows from all over
    the table are looked at. Were each value there ``m`` times, about ``n * n * (m - 1) / 2 N`` of ``n`` values out of
    ``N`` would repeat an earlier one (the birthday problem). A dictionary is taken to be worth it from 1.5 on.

    Args:
        rows: Those of the first row group.
    """
    if rows.num_rows < FEWEST_ROWS or any(_is_nested(column.type) for column in rows.schema):
        return True
    apart = rows.num_rows // _RUNS
    sample = pa.concat_tables([rows.slice(apart * run, _ROWS_A_RUN) for run in range(_RUNS)])
    return [name for name, values in zip(sample.column_names, sample.columns, strict=True) if _repeats(values, rows)]


def _is_nested(kind: pa.DataType) -> bool:
    return bool(types.is_nested(kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind))


def _repeats(values: Any, rows: pa.Table) -> bool:
    count = len(values) - values.null_count
    try:
        repeated = count - pc.count_distinct(values).as_py()
    except pa.ArrowNotImplementedError:
        return True
    # As many of the table's rows are null as of those that are looked at.
    return bool(repeated * 4 * rows.num_rows >= count * len(values))


_REFUSALS = (pa.ArrowException, OSError)
"""Arrow says some things by a bare OSError; the file is in memory, so none of them is about storage."""
_LOOKED_INTO = {
    kind.id
    for kind in (
        pa.timestamp("s"),
        pa.date64(),
        pa.time32("s"),
        pa.time64("us"),
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
    except (*_REFUSALS, OverflowError) as error:
        raise ConfigError(
            f"Parquet compression={compression!r} does not take compression_level={level!r}: {error}",
            hint="Leave compression_level out, or write for instance compression_level=3.",
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
            found: Any = pq.ParquetFile(_written(sample_row(pa.schema([column])), options)).schema
        except _REFUSALS as error:
            raise UnsupportedTypeError(
                f"Column {column.name!r} of type {column.type} cannot be written as Parquet: {error}",
                hint=f"Change the option, drop the column, or cast it to a type of {TYPES_URL}",
            ) from error
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

    And times outside a day, and those of ``date64`` that Arrow would write as another day. What might be refused is
    seen by looks that cost nearly nothing; whether nulls and seconds are, by writing that column.

    Raises:
        ConfigError: Names the column.
    """
    for index, column_field in enumerate(batch.schema):
        if not _may_be_refused(column_field):
            continue
        column = batch.column(index)
        for values in nested_values(column):
            if types.is_date64(values.type):
                with in_column(column_field.name, "Parquet"):
                    whole_days(values)
            elif types.is_time(values.type):
                with in_column(column_field.name, "Parquet"):
                    check_times(values)
        if any(_is_suspect(*leaf) for leaf in _leaves(column_field, column)):
            try:
                _written(pa.Table.from_arrays([column], schema=pa.schema([column_field])), {})
            except _REFUSALS as error:
                raise ConfigError(
                    f"Column {column_field.name!r} holds values that cannot be written as Parquet: {error}",
                    hint="Change these values before the sink, or declare it as nullable: field.with_nullable(True).",
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


_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, SyntaxError)
"""Errors that no wait mends. Others of a function that asks a service for keys may pass."""
_MOST_IN_A_ROW_GROUP = 2**63 - 1
"""Rows and bytes of a row group are 64-bit numbers of pyarrow."""
_CODECS = ("snappy", "zstd", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFormat(BulkFormat):
    """Rows as Parquet.

    Args:
        compression: Codec of the pages: snappy, zstd, gzip, lz4, brotli or none.
        compression_level: The codec's level; None is the codec's own default.
        row_group_rows: Rows that end a row group. Rows are held until then.
        row_group_bytes: Arrow bytes that end a row group before that; what bounds the memory of an open part.
        dictionary: Which columns have dictionaries: those named; none if False; if True those whose values come again,
            as far as a look at the first rows of a file tells.
        statistics: Whether row groups have the least and the greatest value of each column.
        page_index: Whether pages have them too, so that readers can skip pages.
        bloom_filter_columns: Columns that get a bloom filter in each row group, for look-ups of single values. A field
            of a struct is named with its path, as ``"a.b"``.
        sort_by: Columns by which the rows of a part are sorted, in runs of ``row_group_bytes`` in temporary files.
        encryption: Called for each file; what it returns encrypts it. A function at the top of a module, which Spark
            can carry to its workers. No format spec holds it, and a staging file is not encrypted.

    Raises:
        ConfigError: An unknown codec, a level that it does not take, a row group of nothing, or a value of another type
            than the option's.
    """

    compression: str = "snappy"
    compression_level: int | None = None
    row_group_rows: int = 1 << 20
    row_group_bytes: int = 128 << 20
    dictionary: bool | tuple[str, ...] = True
    statistics: bool = True
    page_index: bool = True
    bloom_filter_columns: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    # Not shown, since the text of a function holds its address.
    encryption: Callable[[], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        resolve_options(self, ParquetFormat)
        if self.compression not in _CODECS:
            raise ConfigError(
                f"Parquet compression {self.compression!r} is not known.",
                hint=f"There are {', '.join(_CODECS)}: write for instance compression='zstd'.",
            )
        for option in ("row_group_rows", "row_group_bytes"):
            default = ParquetFormat.__dataclass_fields__[option].default
            if not 1 <= getattr(self, option) <= _MOST_IN_A_ROW_GROUP:
                raise ConfigError(
                    f"{option}={getattr(self, option)} is not from 1 to {_MOST_IN_A_ROW_GROUP}.",
                    hint=f"Write for instance {option}={default}.",
                )
        if self.compression_level is not None:
            check_level(self.compression, self.compression_level)

    @property
    def suffix(self) -> str:
        """``.parquet``; the codec is told inside the file."""
        return ".parquet"

    def check(self, schema: pa.Schema) -> None:
        """Refuse what Arrow itself cannot write as Parquet with these options, found out by writing a row.

        Raises:
            UnsupportedTypeError: Names the column and its type.
            ConfigError: An option names something that is not a column.
        """
        if len(schema) == 0:
            raise UnsupportedTypeError("Parquet needs at least one column, and there is none.")
        check_types(plain_schema(schema), "Parquet")
        self._check_names(schema)
        check_columns(schema, self._options(), self.bloom_filter_columns)

    def refuses_rows(self, schema: pa.Schema) -> bool:
        """Only where a type forbids nulls, or has seconds."""
        return may_refuse(schema)

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse nulls where there may be none, and seconds that are beyond all milliseconds.

        Raises:
            ConfigError: Names the column.
        """
        check_values(batch)

    def open(self, stream: ByteStream, schema: pa.Schema) -> Writer:
        """Make the writer of one part."""
        return ParquetPartWriter(self, stream, schema)

    def options(self, schema: pa.Schema) -> dict[str, Any]:
        """Options of pyarrow's writer for a file of this schema."""
        options = self._options()
        if self.sort_by:
            options["sorting_columns"] = pq.SortingColumn.from_ordering(
                schema, [(name, "ascending") for name in self.sort_by], "at_end"
            )
        if self.encryption is not None:
            options["encryption_properties"] = _keys(self.encryption)
        return options

    def _options(self) -> dict[str, Any]:
        """Options that are the same for any schema, and need no keys."""
        options: dict[str, Any] = {
            "compression": self.compression,
            "compression_level": self.compression_level,
            "use_dictionary": self.dictionary if isinstance(self.dictionary, bool) else list(self.dictionary),
            "write_statistics": self.statistics,
            "write_page_index": self.page_index,
        }
        if self.bloom_filter_columns:
            # An upper limit of the distinct values: Arrow makes a filter smaller that has fewer.
            each = {"ndv": self.row_group_rows}
            options["bloom_filter_options"] = dict.fromkeys(self.bloom_filter_columns, each)
        return options

    def _check_names(self, schema: pa.Schema) -> None:
        if self.bloom_filter_columns and "bloom_filter_options" not in signature(pq.ParquetWriter).parameters:
            raise ConfigError(
                f"pyarrow {pa.__version__} writes no bloom filters.",
                hint="Install a newer one: pip install --upgrade pyarrow",
            )
        named = {"sort_by": self.sort_by, "bloom_filter_columns": [p.split(".")[0] for p in self.bloom_filter_columns]}
        if not isinstance(self.dictionary, bool):
            named["dictionary"] = [path.split(".")[0] for path in self.dictionary]
        for option, names in named.items():
            for name in names:
                if name not in schema.names:
                    raise ConfigError(
                        f"{option} names {name!r}, which is not a column.",
                        hint=f"Name columns of the file, as {option}=[COLUMN].",
                    )
        for name in self.sort_by:
            kind = schema.field(name).type
            if types.is_nested(kind) or not _is_sortable(kind):
                raise UnsupportedTypeError(f"sort_by names {name!r}, and Arrow cannot sort by its type {kind}.")


class ParquetPartWriter(Writer):
    """Holds the batches of one row group at a time, so that many small slices become few large groups."""

    def __init__(self, form: ParquetFormat, stream: ByteStream, schema: pa.Schema) -> None:
        self._row_group_rows = form.row_group_rows
        self._checks = form.check_rows if form.refuses_rows(schema) else None
        self._held = HeldRows(schema, form.row_group_rows, form.row_group_bytes)
        self._target = StreamFile(stream)
        self._unsorted = None
        if form.sort_by:
            is_secret = form.encryption is not None
            self._unsorted = ExternalSort(schema, form.sort_by, form.row_group_bytes, is_secret=is_secret)
        self._schema = schema
        self._options = form.options(schema)
        self._file: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; a full row group is written, where rows keep their order.

        Raises:
            ConfigError: A value that Parquet cannot hold.
        """
        if self._checks is not None:
            self._checks(batch)
        if self._unsorted is None:
            self._add(batch)
        else:
            self._unsorted.add(batch)

    def persist(self) -> int:
        """Refuse: without its footer a Parquet file does not decode, so this part rolls instead.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "A Parquet part cannot be persisted before it is closed.",
            hint="Write rolling=RollingPolicy(on_checkpoint=True).",
        )

    def close(self) -> None:
        """Write what is held, and the footer."""
        if self._unsorted is not None:
            for batch in self._unsorted.batches():
                self._add(batch)
        if self._held.rows:
            self._write_row_groups()
        with self._target.passing():
            self._begun(self._schema.empty_table()).close()

    def abandon(self) -> None:
        """Drop the runs that are not in order yet."""
        if self._unsorted is not None:
            self._unsorted.close()

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._held.add(batch):
            self._write_row_groups()

    def _write_row_groups(self) -> None:
        rows = self._held.take()
        with self._target.passing():
            self._begun(rows).write_table(rows, row_group_size=self._row_group_rows)

    def _begun(self, rows: pa.Table) -> pq.ParquetWriter:
        """The file. It begins with its first rows, which tell what columns are worth a dictionary."""
        if self._file is None:
            if self._options["use_dictionary"] is True:
                self._options["use_dictionary"] = repeating_columns(rows)
            file = pa.PythonFile(cast("Any", self._target), mode="w")
            self._file = pq.ParquetWriter(file, self._schema, **self._options)
        return self._file


def _is_sortable(kind: pa.DataType) -> bool:
    try:
        kernels.sort_indices(pa.schema({"key": kind}).empty_table(), sort_keys=[("key", "ascending")])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return False
    return True


def _keys(encryption: Callable[[], Any]) -> Any:
    """The encryption properties of one file.

    Raises:
        NotReady: The user's function fails, as it may where it asks a service for keys.
        ConfigError: It is wrong itself, or returns something else.
    """
    try:
        found = encryption()
    except PartfileError:
        raise
    except Exception as error:
        what = f"the function encryption of the Parquet format has failed: {type(error).__name__}: {error}"
        clear = "No file was written in the clear."
        if isinstance(error, _PROGRAMMING_ERRORS):
            raise ConfigError(
                what, hint=f"Mend the function encryption=, then start the sink again: sink.start(df, ...). {clear}"
            ) from error
        raise NotReady(
            what, hint=f"A staging file is tried again later; else start the sink again: sink.start(df, ...). {clear}"
        ) from error
    if not isinstance(found, pq.FileEncryptionProperties):
        raise ConfigError(
            f"the function encryption of the Parquet format returns {type(found).__name__}",
            hint="Return what pyarrow's CryptoFactory(...).file_encryption_properties(kms, configuration) returns.",
        )
    return found
