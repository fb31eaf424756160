"""Encoding a shared stage: one file for each bucket that has rows in it.

The stage is read once, and memory is bounded whatever its size: see ``sink/bucket_runs.py``.
"""

from __future__ import annotations

from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import is_safe_path
from partfile.filesystems.errors import PartfileError, StoreError
from partfile.sink.bucket_runs import BucketRows, BucketRuns
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.encoded_files import EncodedFile, PartlyEncoded, check_rows, damaged, target_of, written_file
from partfile.sink.shared_stages import file_schema
from partfile.writers.port import BulkFormat, EncodedRows, RowWriter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.sink.encoded_files import WrittenFile
    from partfile.writers.port import ByteStream, Format
    from partfile.writers.stage_reading import StageContent

MOST_HELD_BYTES = 32 << 20
"""Arrow bytes that are held, whatever the size of the stage; as much again while they are sorted."""
_CHUNK_BYTES = 256 << 10
"""Rows or lines that are handed to their writer at a time, so that no block of a file is larger than it has to be."""
_MOST_OPEN = 64
"""Files that are written before they are committed together: their syncs share what the file system has to write."""
_FAILING_MS = 60_000
"""What files that cannot be made may cost before the others are left for the next time."""
_COLUMN_BYTES = 1 << 10
"""What a column of a batch takes in memory besides its rows."""


@dataclass(frozen=True, slots=True)
class SharedStage:
    """A shared stage that is to be encoded."""

    part: PartHandle
    """The stage."""
    form: Format
    """What its files are encoded in."""
    content: StageContent

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row, from the beginning, with its bucket in the last column.

        Raises:
            PartDamaged: The stage is not what was written, or a bucket in it is not safe as a path.
        """
        safe: set[str] = set()
        for batch in self.content.read()[1]:
            # What is read back is asked again, not believed: it becomes a path.
            fresh = set(_paths(batch).unique().to_pylist()) - safe
            unsafe = [path for path in fresh if path is None or not is_safe_path(path)]
            if unsafe:
                raise damaged(self.part, f"names the bucket {str(unsafe[0])[:60]!r}, which is not safe as a path")
            safe |= fresh
            yield batch

    def schema(self) -> pa.Schema:
        """The columns of its files.

        Raises:
            PartDamaged: It is no shared stage of this format.
        """
        try:
            return file_schema(self.form, self.content.read()[0])
        except (ValueError, pa.ArrowException) as error:
            raise damaged(self.part, f"is not shared by buckets: {error}") from error


def encode_shared(
    store: PartStore,
    stage: SharedStage,
    rows: int,
    *,
    finished: Collection[str] = (),
    most_held_bytes: int = MOST_HELD_BYTES,
) -> tuple[EncodedFile, ...]:
    """Encode a shared stage into one file a bucket, each durable under its pending name.

    A bucket in which no file can be made keeps no other from having its own. Atomicity: of any other failure nothing is
    left but what cannot be deleted, for nobody else knows the names.

    Args:
        store: Where the files go.
        stage: What is encoded.
        rows: How many the checkpoint vouches for.
        finished: Buckets whose file is there already.
        most_held_bytes: Of Arrow, that are held at the same time.

    Raises:
        PartDamaged: The stage does not hold these rows, or is not what was written.
        PartlyEncoded: Some files could not be made. It has the others.
        StoreError: It could not be read, or no file be made.
    """
    schema = stage.schema()
    with closing(BucketRuns(most_held_bytes)) as runs:
        found = 0
        for batch in stage.batches():
            found += batch.num_rows
            runs.add(_without(batch, finished))
        check_rows(stage.part, found, rows)
        files = _Files(store, stage, schema, runs.rows, most_held_bytes)
        try:
            files.write(runs.buckets())
        except Exception:
            files.discard()
            raise
        finally:
            files.close()
        return files.result()


class _Files:
    """The files of one stage while they are made."""

    def __init__(
        self, store: PartStore, stage: SharedStage, schema: pa.Schema, rows: Mapping[str, int], most_held_bytes: int
    ) -> None:
        self._store = store
        self._stage = stage
        self._schema = schema
        self._rows = rows
        self._most_held_bytes = most_held_bytes
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
        """Write a file of each bucket: small ones several at a time, one that is too large to be held as it is read."""
        for bucket, batches in buckets:
            held, held_bytes = [], 0
            for batch in batches:
                held.append(batch)
                held_bytes += _weight(batch)
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
        target = target_of(self._stage.part, one.bucket)

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
        small_bytes += _weight(batch)
        if small_bytes >= _CHUNK_BYTES:
            yield from pa.Table.from_batches(small).combine_chunks().to_batches()
            small, small_bytes = [], 0
    if small:
        yield from pa.Table.from_batches(small).combine_chunks().to_batches()


def _weight(batch: pa.RecordBatch) -> int:
    """Bytes that a slice takes in memory, those of its description among them."""
    size_bytes: int = batch.nbytes + _COLUMN_BYTES * batch.num_columns
    return size_bytes


def _without(batch: pa.RecordBatch, finished: Collection[str]) -> pa.RecordBatch:
    if not finished:
        return batch
    return batch.filter(pc.invert(pc.is_in(_paths(batch), value_set=pa.array(sorted(finished), pa.large_string()))))


def _paths(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1)


def _without_bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.remove_column(batch.num_columns - 1)
