"""A pyarrow dataset that can be scanned in every way, whoever opens its files and however few processors there are."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from partfile.recovery.long_lines import refusing_long_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Read = TypeVar("Read")


class FilewiseDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow.dataset has no types.
    """Gives batches one file after the other, each read to its end.

    pyarrow's own scan hangs where Python opens the files: ``Scanner.to_reader``, by which DuckDB reads, and the end of
    an unfinished scan wait for threads that open files while they hold the interpreter's lock. ``to_table``, ``head``
    and ``count_rows`` release it. Over several files of JSON they hang all the same, whoever opens them, where
    there are few threads: seen with pyarrow 26 on three processors.
    """

    _unfiltered: FilewiseDataset | None = None

    @property
    def unfiltered(self) -> FilewiseDataset:
        """The same files without a filter: of a dataset that has been filtered pyarrow gives no fragments."""
        return self._unfiltered or self

    def filter(self, expression: ds.Expression) -> FilewiseDataset:
        """As ``Dataset.filter``."""
        filtered: FilewiseDataset = super().filter(expression)
        filtered._unfiltered = self.unfiltered
        return filtered

    def sort_by(self, sorting: Any, **options: Any) -> ds.Dataset:
        """As ``Dataset.sort_by``; in memory, as pyarrow does it."""
        return self.in_memory().sort_by(sorting, **options)

    def join(self, right_dataset: ds.Dataset, *keys: Any, **options: Any) -> ds.Dataset:
        """As ``Dataset.join``; of two tables in memory."""
        right = right_dataset.in_memory() if isinstance(right_dataset, FilewiseDataset) else right_dataset
        return self.in_memory().join(right, *keys, **options)

    def in_memory(self) -> ds.Dataset:
        """The same rows, read."""
        return ds.dataset(self.to_table())

    def scanner(self, **options: Any) -> FilewiseScanner:
        """As ``Dataset.scanner``."""
        return FilewiseScanner(self, options)


class FilewiseScanner:
    """One scan of a dataset; what is not here is pyarrow's.

    Args:
        dataset: What to scan.
        options: Those of ``ds.Scanner.from_dataset``.
    """

    def __init__(self, dataset: FilewiseDataset, options: dict[str, Any]) -> None:
        self._files = dataset.unfiltered
        self._options = dataset._scanner_options(options)  # noqa: SLF001 - adds the filter of ``Dataset.filter``.
        self._is_json = isinstance(dataset.format, ds.JsonFileFormat)
        self._whole = ds.Scanner.from_dataset(dataset, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches; those of one file are in memory at once."""
        for table in self._each(lambda scanner: scanner.to_table()):
            yield from table.to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self._whole.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows."""
        if not self._is_json:
            return self._whole.to_table()
        return pa.Table.from_batches(self.to_batches(), self._whole.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        if not self._is_json:
            return self._whole.head(num_rows)
        found: list[pa.Table] = []
        for table in self._each(lambda scanner: scanner.head(num_rows - sum(table.num_rows for table in found))):
            found.append(table)
            if sum(table.num_rows for table in found) >= num_rows:
                break
        return pa.concat_tables([self._whole.projected_schema.empty_table(), *found])

    def take(self, indices: Any) -> pa.Table:
        """The rows at some positions."""
        return self.to_table().take(indices) if self._is_json else self._whole.take(indices)

    def count_rows(self) -> int:
        """How many rows there are."""
        if not self._is_json:
            return int(self._whole.count_rows())
        return sum(self._each(lambda scanner: int(scanner.count_rows())))

    def _each(self, read: Callable[[ds.Scanner], Read]) -> Iterator[Read]:
        """What is read of each file by a scan of it alone.

        Raises:
            ConfigError: Of a file of JSON, whose lines are too long for pyarrow.
        """
        for fragment in self._files.get_fragments(filter=self._options.get("filter")):
            scanner = ds.Scanner.from_fragment(fragment, schema=self._files.schema, **self._options)
            with refusing_long_lines(fragment) if self._is_json else nullcontext():
                found = read(scanner)
            yield found
