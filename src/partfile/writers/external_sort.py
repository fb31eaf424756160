"""Rows in order whatever their number: sorted runs in temporary files, merged while they are read.

Memory holds one run while rows come, and a megabyte or so of each run while they go. The order is Arrow's: NaN after
numbers, nulls last, and rows with equal keys as they came.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from partfile.errors import NotApplied
from partfile.writers.arrow_staging import HeldRows
from partfile.writers.scalars import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class SpillFiles(Protocol):
    """The form of runs in their files."""

    def write(self, file: IO[bytes], table: pa.Table, chunk_rows: int) -> None:
        """Write a run into an empty file, in chunks of so many rows."""

    def read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """Read a run back, a chunk or less at a time."""


class PlainSpillFiles:
    """Runs as Arrow streams."""

    def write(self, file: IO[bytes], table: pa.Table, chunk_rows: int) -> None:
        """Write a run as an Arrow stream, in record batches of so many rows."""
        with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), table.schema, options=_OPTIONS) as writer:
            writer.write_table(table, max_chunksize=chunk_rows)

    def read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """Read a run back, one record batch at a time."""
        yield from pa.ipc.open_stream(pa.PythonFile(file, mode="r"))


class EncryptedSpillFiles:
    """Runs as encrypted Parquet. The master keys are in memory alone, so the runs are unreadable afterwards."""

    def __init__(self) -> None:
        # Imported here: only encryption needs it, and not every build of pyarrow has it.
        from pyarrow.parquet import encryption  # noqa: PLC0415

        keys: dict[str, bytes] = {}

        class KeysInMemory(encryption.KmsClient):  # type: ignore[misc]  # pyarrow has no types here.
            """Gives a name for each key, and the key for the name."""

            def wrap_key(self, key_bytes: bytes, _master_key: str) -> str:
                """Keep a key; what the file holds is its name."""
                name = f"key-{len(keys)}"
                keys[name] = bytes(key_bytes)
                return name

            def unwrap_key(self, wrapped_key: bytes | str, _master_key: str) -> bytes:
                """The key of a name."""
                return keys[wrapped_key if isinstance(wrapped_key, str) else wrapped_key.decode()]

        self._factory = encryption.CryptoFactory(lambda _connection: KeysInMemory())
        self._connection = encryption.KmsConnectionConfig()
        self._settings = encryption.EncryptionConfiguration(footer_key="runs", uniform_encryption=True)

    def write(self, file: IO[bytes], table: pa.Table, chunk_rows: int) -> None:
        """Write a run as a Parquet file, in row groups of so many rows."""
        pq.write_table(
            table,
            pa.PythonFile(file, mode="w"),
            row_group_size=chunk_rows,
            compression="lz4",
            use_dictionary=False,
            write_statistics=False,
            encryption_properties=self._factory.file_encryption_properties(self._connection, self._settings),
        )

    def read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """Read a run back, one row group at a time."""
        keys = self._factory.file_decryption_properties(self._connection)
        run: Any = pq.ParquetFile(pa.PythonFile(file, mode="r"), decryption_properties=keys)
        for index in range(run.num_row_groups):
            yield from run.read_row_group(index).combine_chunks().to_batches()


@contextmanager
def in_temporary_directory() -> Iterator[None]:
    """Say of what goes wrong with a temporary file where it was to be, and that it is this host's trouble.

    Raises:
        NotApplied: A temporary file could not be made, written or read.
    """
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - named, not used.
        raise NotApplied(
            f"rows cannot be sorted by way of temporary files in {where!r}: {error}",
            hint=(
                "Make room there, or name a directory with room for the rows of the largest parts: export "
                "TMPDIR=DIRECTORY"
            ),
            path=where,
        ) from error


_CHUNK_BYTES = 1 << 20
_NO_ROW_LIMIT = 1 << 62


class ExternalSort:
    """Takes rows in any order and gives them back sorted, once.

    Args:
        schema: The schema of every batch.
        sort_by: Columns, the first deciding first.
        run_bytes: Arrow bytes of one run.
        is_secret: Whether runs are encrypted, as what becomes of them is.
    """

    def __init__(self, schema: pa.Schema, sort_by: Sequence[str], run_bytes: int, *, is_secret: bool = False) -> None:
        self._schema = schema
        self._in_files: SpillFiles = EncryptedSpillFiles() if is_secret else PlainSpillFiles()
        self._keys = [(name, "ascending") for name in sort_by]
        self._held = HeldRows(schema, _NO_ROW_LIMIT, run_bytes)
        self._files: list[IO[bytes]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold the rows of a batch; a full run goes to a temporary file, which has no name.

        Raises:
            NotApplied: It cannot be written; all of them are gone.
        """
        if self._held.add(batch):
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. The temporary files are gone at the end, or when this is given up.

        Raises:
            NotApplied: One of them cannot be written or read.
        """
        if not self._files:
            yield from self._sorted().to_batches()
            return
        try:
            if self._held.rows:
                self._spill()
            yield from self._merged([_Run(self._in_files.read(file), self._schema) for file in self._files])
        finally:
            self.close()

    def close(self) -> None:
        """Drop the temporary files, whose rows are gone then; may be called twice."""
        for file in self._files:
            # Closing tries again to write what a full disk refused; these bytes are not needed any more.
            with suppress(OSError):
                file.close()

    def _sorted(self) -> pa.Table:
        table = self._held.take()
        return table.take(kernels.sort_indices(table, sort_keys=self._keys))

    def _spill(self) -> None:
        try:
            self._write_run(self._sorted().combine_chunks())
        except BaseException:
            # Free the memory of these rows now: the caller may keep the error, and with it this frame, for long.
            self.close()
            raise

    def _write_run(self, table: pa.Table) -> None:
        chunk_rows = max(1, len(table) * _CHUNK_BYTES // max(1, table.nbytes))
        with in_temporary_directory():
            file = tempfile.TemporaryFile(prefix="partfile-sort-")  # noqa: SIM115 - close() closes it
            self._files.append(file)
            self._in_files.write(file, table, chunk_rows)
            file.seek(0)

    def _merged(self, runs: list[_Run]) -> Iterator[pa.RecordBatch]:
        """Merge runs. No row that is still in a file comes before the earliest end of a chunk in memory."""
        runs = [run for run in runs if run.chunk is not None]
        while runs:
            ends = pa.Table.from_batches([run.last_row for run in runs])
            end = runs[kernels.sort_indices(ends, sort_keys=self._keys)[0].as_py()].last_row
            pieces = [run.take(self._rows_until(end, run.chunk)) for run in runs]
            table = pa.Table.from_batches(pieces)
            yield from table.take(kernels.sort_indices(table, sort_keys=self._keys)).combine_chunks().to_batches()
            runs = [run for run in runs if run.chunk is not None]

    def _rows_until(self, end: pa.RecordBatch, chunk: pa.RecordBatch) -> int:
        """The number of rows of a sorted chunk that are not after ``end``, by halving."""
        low, high = 0, chunk.num_rows
        while low < high:
            middle = (low + high) // 2
            pair = pa.Table.from_batches([chunk.slice(middle, 1), end])
            # Sorting is stable, so that of equal rows the first stays first.
            if kernels.sort_indices(pair, sort_keys=self._keys)[0].as_py() == 0:
                low = middle + 1
            else:
                high = middle
        return low


class _Run:
    """One sorted run as it is read back, a chunk at a time; no chunk is left when ``chunk`` is None."""

    def __init__(self, chunks: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._chunks = chunks
        self._schema = schema
        self.chunk: Any = self._next()

    @property
    def last_row(self) -> pa.RecordBatch:
        row: pa.RecordBatch = self.chunk.slice(self.chunk.num_rows - 1)
        return row

    def take(self, rows: int) -> pa.RecordBatch:
        taken: pa.RecordBatch = self.chunk.slice(0, rows)
        self.chunk = self.chunk.slice(rows) if rows < self.chunk.num_rows else self._next()
        return taken

    def _next(self) -> pa.RecordBatch | None:
        with in_temporary_directory():
            chunk = next(self._chunks, None)
        # Parquet may give a type back as a near one.
        return chunk if chunk is None or chunk.schema.types == self._schema.types else chunk.cast(self._schema)
