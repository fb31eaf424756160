"""The files of a shared stage while they are made: written in groups, and committed together."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.filesystems.errors import PartfileError, StoreError
from partfile.sink.bucket_runs import BucketRows
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.encoded_files import EncodedFile, PartlyEncoded, check_rows, target_of, written_file
from partfile.sink.shared_names import clashing, own_name
from partfile.writers.held_rows import weight
from partfile.writers.port import BulkFormat, EncodedRows, RowWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.sink.encoded_files import WrittenFile
    from partfile.sink.shared_encoding import SharedStage
    from partfile.writers.port import ByteStream

_CHUNK_BYTES = 256 << 10
"""Rows or lines that are handed to their writer at a time, so that no block of a file is larger than it has to be."""
_MOST_OPEN = 64
"""Files that are written before they are committed together: their syncs share what the file system has to write."""
_FAILING_MS = 60_000
"""What files that cannot be made may cost before the others are left for the next time."""


class SharedFiles:
    """The files of one stage while they are made.

    Args:
        store: Where they go.
        stage: What is encoded.
        schema: The columns of the files.
        rows: How many each bucket has, of those that need a file.
        finished: Buckets whose file is there already.
        most_held_bytes: Of Arrow, that are held at the same time.
    """

    def __init__(
        self,
        store: PartStore,
        stage: SharedStage,
        schema: pa.Schema,
        rows: Mapping[str, int],
        *,
        finished: Collection[str],
        most_held_bytes: int,
    ) -> None:
        self._store = store
        self._stage = stage
        self._schema = schema
        self._rows = rows
        self._most_held_bytes = most_held_bytes
        self._marked = clashing([*rows, *finished])
        """Buckets that may be one directory with another one, and in which the file has a name of its own."""
        self._group: list[BucketRows] = []
        self._group_bytes = 0
        self._patience = Patience(store.persist_threads)
        self._patience_to_commit = Patience(store.persist_threads)
        self._failures: list[StoreError] = []
        self._failing_ms = 0.0
        self._open: dict[str, WrittenFile] = {}
        """By the bucket: written, and neither committed nor given up."""
        self._done: list[EncodedFile] = []

    def result(self) -> tuple[EncodedFile, ...]:
        """The files, if all of them are there.

        Raises:
            PartlyEncoded: Some are.
            StoreError: None is; this is why the first is not.
        """
        done = tuple(self._done)
        if not self._failures:
            return done
        if not done:
            raise self._failures[0]
        raise PartlyEncoded.of(self._stage.part, done, len(self._rows) - len(done), self._failures[0])

    def write(self, buckets: Iterable[BucketRows]) -> None:
        """Write a file of each bucket: small ones several at a time, one that is too large to be held as it is read.

        Raises:
            PartfileError: A bucket has no file, and nothing has kept it from having one.
        """
        for bucket, batches in buckets:
            held, held_bytes = [], 0
            for batch in batches:
                held.append(batch)
                held_bytes += weight(batch)
                if held_bytes > self._most_held_bytes:
                    break
            if self._is_over:
                break
            if self._group_bytes + held_bytes > self._most_held_bytes:
                self._write_group()
            if held_bytes > self._most_held_bytes:
                # The rest of its rows can be read only before the next bucket's.
                self._write_together([BucketRows(bucket, chain(held, batches))])
            else:
                self._group.append(BucketRows(bucket, iter(held)))
                self._group_bytes += held_bytes
        self._write_group()
        if not self._failures and len(self._done) != len(self._rows):
            # A stage counts as spent once it is encoded, and its rows as published.
            raise PartfileError(f"{len(self._rows)} buckets became {len(self._done)} files")

    def _write_group(self) -> None:
        group, self._group, self._group_bytes = self._group, [], 0
        for start in range(0, len(group), _MOST_OPEN):
            self._write_together(group[start : start + _MOST_OPEN])

    def _write_together(self, group: Sequence[BucketRows]) -> None:
        # Where nothing is waited for before the commit, threads would only take turns.
        threads = self._store.persist_threads
        writers = threads if self._store.stages_travel else 1
        for_each(self._write_one, group, writers, "partfile-encode")
        for_each(self._commit_one, list(self._open), threads, "partfile-commit")

    def discard(self) -> None:
        """Delete what has been written."""
        for bucket in list(self._open):
            self._give_up(self._open.pop(bucket))
        for file in self._done:
            with suppress(StoreError):
                self._store.discard(file.part)

    def close(self) -> None:
        """Release what is open, also where the task is being ended: its process goes on (S13)."""
        for bucket in list(self._open):
            with suppress(StoreError):
                self._open.pop(bucket).stream.close()

    def _give_up(self, written: WrittenFile) -> None:
        with suppress(StoreError):
            written.stream.close()
            if not self._is_silent:
                self._store.discard(written.stream.handle)

    @property
    def _is_over(self) -> bool:
        """Whether the store and not a bucket seems to be at fault, and it takes long to find out each time."""
        is_slow = self._failing_ms > _FAILING_MS and len(self._failures) > self._store.persist_threads
        return is_slow or self._is_silent

    @property
    def _is_silent(self) -> bool:
        return self._patience.is_over or self._patience_to_commit.is_over

    def _write_one(self, one: BucketRows) -> None:
        if not self._is_over:
            with self._noted(self._patience):
                self._open[one.bucket] = self._written(one)

    def _commit_one(self, bucket: str) -> None:
        written = self._open.pop(bucket)
        # What could be written is kept, even if the store does not answer for other buckets.
        if self._patience_to_commit.is_over:
            self._give_up(written)
            return
        with self._noted(self._patience_to_commit):
            self._done.append(written.commit(self._store))

    @contextmanager
    def _noted(self, patience: Patience) -> Iterator[None]:
        """Note what storage keeps from one file, so that the others have their try."""
        began_ms = stopwatch_ms()
        try:
            yield
        except StoreError as error:
            patience.note(error)
            self._failures.append(error)
            self._failing_ms += stopwatch_ms() - began_ms

    def _written(self, one: BucketRows) -> WrittenFile:
        name = self._stage.part.name
        own = own_name(name, one.bucket) if one.bucket in self._marked else name
        target = target_of(self._stage.part, one.bucket, own)

        def write(stream: ByteStream) -> int:
            rows = self._encode(stream, target, (_without_bucket(batch) for batch in _joined(one.batches)))
            check_rows(self._stage.part, rows, self._rows[one.bucket])
            return rows

        return written_file(self._store, target, write)

    def _encode(self, stream: ByteStream, target: PartHandle, batches: Iterable[pa.RecordBatch]) -> int:
        form = self._stage.form
        if isinstance(form, BulkFormat):
            return form.encode(batches, self._schema, stream)
        writer = form.open_part(stream, self._schema, target.in_progress)
        if not isinstance(writer, RowWriter):
            raise PartfileError(f"{type(writer).__name__} takes no lines, and no whole file is made of its format")
        rows = 0
        for batch in batches:
            _write_lines(writer, batch.column(0))
            rows += batch.num_rows
        writer.close()
        return rows


def _write_lines(writer: RowWriter, lines: Any) -> None:
    encoded = EncodedRows.of(lines)
    size_bytes = len(encoded.rows(0, len(lines)))
    step = max(1, len(lines) * _CHUNK_BYTES // max(1, size_bytes))
    for start in range(0, len(lines), step):
        stop = min(start + step, len(lines))
        writer.write_encoded(encoded.rows(start, stop), stop - start)


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, since each costs its writer something, however few its rows."""
    small: list[pa.RecordBatch] = []
    small_bytes = 0
    for batch in batches:
        small.append(batch)
        small_bytes += weight(batch)
        if small_bytes >= _CHUNK_BYTES:
            yield from pa.Table.from_batches(small).combine_chunks().to_batches()
            small, small_bytes = [], 0
    if small:
        yield from pa.Table.from_batches(small).combine_chunks().to_batches()


def _without_bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.remove_column(batch.num_columns - 1)
