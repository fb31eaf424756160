"""A pyarrow dataset that can be scanned in every way although Python opens its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Iterator


class FilewiseDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow.dataset has no types.
    """Gives batches one file after the other, each read to its end.

    pyarrow's own scan hangs where Python opens the files: ``Scanner.to_reader``, by which DuckDB reads, and the end of
    an unfinished scan wait for threads that open files while they hold the interpreter's lock. ``to_table``, ``head``
    and ``count_rows`` release it and stay pyarrow's own.
    """

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
        self._dataset = dataset
        self._options = options
        self._whole = ds.Scanner.from_dataset(dataset, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as batches; those of one file are in memory at once."""
        for fragment in self._dataset.get_fragments(filter=self._options.get("filter")):
            scanner = ds.Scanner.from_fragment(fragment, schema=self._dataset.schema, **self._options)
            yield from scanner.to_table().to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream."""
        return pa.RecordBatchReader.from_batches(self._whole.projected_schema, self.to_batches())
