"""Sorted runs in temporary files without names: as Arrow streams, or encrypted by keys that only this process has."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from partfile.filesystems.errors import NotApplied

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class RunFiles(Protocol):
    """How runs lie in their files."""

    def write(self, file: IO[bytes], table: pa.Table, chunk_rows: int) -> None:
        """Write a run into an empty file, in chunks of so many rows."""

    def read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """Read a run back, a chunk or less at a time."""


class PlainRunFiles:
    """Runs as Arrow streams."""

    def write(self, file: IO[bytes], table: pa.Table, chunk_rows: int) -> None:
        """See ``RunFiles.write``."""
        with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), table.schema, options=_OPTIONS) as writer:
            writer.write_table(table, max_chunksize=chunk_rows)

    def read(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        """See ``RunFiles.read``."""
        yield from pa.ipc.open_stream(pa.PythonFile(file, mode="r"))


class EncryptedRunFiles:
    """Runs as encrypted Parquet. The keys of their keys are in memory alone, so nobody reads them once this is gone."""

    def __init__(self) -> None:
        # Only whoever encrypts needs it, and not every build of pyarrow has it.
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
        """See ``RunFiles.write``."""
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
        """See ``RunFiles.read``."""
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
            hint="Make room there, or let TMPDIR name a directory with room for the rows of the largest parts.",
            path=where,
        ) from error
