"""Parquet: one part is one file with its footer."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - pydantic reads the fields of a recipe
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from partfile.filesystems.errors import ConfigError, NotReady, PartfileError, UnsupportedTypeError
from partfile.writers.held_rows import HeldRows
from partfile.writers.option_types import settle_options
from partfile.writers.parquet_dictionaries import repeating_columns
from partfile.writers.parquet_trials import check_columns, check_level, check_values, may_refuse
from partfile.writers.port import BulkFormat, Writer
from partfile.writers.sorted_runs import SortedRuns
from partfile.writers.stream_file import StreamFile
from partfile.writers.text_columns import kernels

if TYPE_CHECKING:
    from partfile.writers.port import ByteStream

_PROGRAMMING_ERRORS = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, SyntaxError)
"""What no wait mends. Others of a function that asks a service for keys may pass."""
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
            can carry to its workers. No recipe holds it, and a stage is not encrypted.

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
        settle_options(self, ParquetFormat)
        if self.compression not in _CODECS:
            raise ConfigError(
                f"Parquet compression {self.compression!r} is not known.", hint=f"There are {', '.join(_CODECS)}."
            )
        if self.row_group_rows < 1 or self.row_group_bytes < 1:
            raise ConfigError("row_group_rows and row_group_bytes must be at least 1.")
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
            ConfigError: An option names what is no column.
        """
        if len(schema) == 0:
            raise UnsupportedTypeError("Parquet needs at least one column, and there is none.")
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
        """What pyarrow's writer is told for a file of this schema."""
        options = self._options()
        if self.sort_by:
            options["sorting_columns"] = pq.SortingColumn.from_ordering(
                schema, [(name, "ascending") for name in self.sort_by], "at_end"
            )
        if self.encryption is not None:
            options["encryption_properties"] = _keys(self.encryption)
        return options

    def _options(self) -> dict[str, Any]:
        """What is the same for any schema, and needs no keys."""
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
            raise ConfigError(f"pyarrow {pa.__version__} writes no bloom filters.", hint="Install a newer pyarrow.")
        named = {"sort_by": self.sort_by, "bloom_filter_columns": [p.split(".")[0] for p in self.bloom_filter_columns]}
        if not isinstance(self.dictionary, bool):
            named["dictionary"] = [path.split(".")[0] for path in self.dictionary]
        for option, names in named.items():
            for name in names:
                if name not in schema.names:
                    raise ConfigError(f"{option} names {name!r}, which is no column.", hint="Name columns of the file.")
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
            self._unsorted = SortedRuns(schema, form.sort_by, form.row_group_bytes, is_secret=is_secret)
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
        raise ConfigError("A Parquet part cannot be persisted before it is closed.", hint="Roll it at each checkpoint.")

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
    """What encrypts one file.

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
            raise ConfigError(what, hint=f"Mend the function, then start the sink again. {clear}") from error
        raise NotReady(what, hint=f"A stage is tried again later; else start the sink again. {clear}") from error
    if not isinstance(found, pq.FileEncryptionProperties):
        raise ConfigError(
            f"the function encryption of the Parquet format returns {type(found).__name__}",
            hint="Return what CryptoFactory.file_encryption_properties of pyarrow returns.",
        )
    return found
