"""The rows of a batch on their way to parts: grouped by bucket, joined into larger batches, written by a thread.

``BucketSpill`` groups more rows than memory holds: it spills sorted runs into a temporary file and merges them.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from partfile.bucketers.paths import split
from partfile.errors import NotReady
from partfile.writers.arrow_staging import weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from partfile.bucketers.paths import Slice
    from partfile.writers.base import EncodedRows


_ROWS_A_RUN = 16


def rows_by_bucket(rows: pa.RecordBatch, buckets: pa.DictionaryArray[Any, Any]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Bucket and rows, once a bucket."""
    order, slices = split(len(buckets), buckets)
    moved = rows if order is None else rows.take(order)
    for bucket, start, stop in slices:
        yield bucket, moved.slice(start, stop - start)


def encoded_by_bucket(
    encoded: EncodedRows, buckets: pa.DictionaryArray[Any, Any]
) -> Iterator[tuple[str, int, bytes | memoryview]]:
    """Bucket, number of rows and bytes, once a bucket.

    Lines are moved rather than rows: one column instead of many. A few runs are joined as they stand.
    """
    order, slices = split(len(buckets), buckets, most_runs=len(buckets) // _ROWS_A_RUN)
    lines = encoded if order is None else encoded.take(order)
    runs: dict[str, list[Slice]] = {}
    for one in slices:
        runs.setdefault(one.bucket, []).append(one)
    for bucket, own in runs.items():
        pieces = [lines.rows(one.start, one.stop) for one in own]
        yield bucket, sum(one.stop - one.start for one in own), pieces[0] if len(pieces) == 1 else b"".join(pieces)


_CHUNK_BYTES = 128 << 10
"""Of a run, that are read back at a time: each run has one chunk in memory while all are merged."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


class BucketRows(NamedTuple):
    """The rows of one bucket."""

    bucket: str
    batches: Iterator[pa.RecordBatch]
    """In the order that they came in, with a number in place of their bucket; to be read before the next bucket."""


class BucketSpill:
    """Takes rows with their bucket in the last column, in any order, and gives them back bucket by bucket, once.

    Args:
        run_bytes: Of memory, that are held before they are set aside; as much again while they are sorted.
    """

    def __init__(self, run_bytes: int) -> None:
        self._run_bytes = run_bytes
        self._numbers: dict[str, int] = {}
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._schema: pa.Schema | None = None
        self._runs: list[list[_Place]] = []
        self.rows: dict[str, int] = {}
        """The number of rows of each bucket, in order of their first."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch, which is never held beside others that would be too much with it.

        Raises:
            NotReady: There is no room for temporary files.
        """
        if batch.num_rows == 0:
            # Of a message all of whose buckets have their files; joined, such batches would be none.
            return
        numbered = self._numbered(batch)
        size_bytes = weight(numbered)
        if self._held and self._held_bytes + size_bytes > self._run_bytes:
            self._make_room(size_bytes)
        self._held.append(numbered)
        self._held_bytes += size_bytes

    def buckets(self) -> Iterator[BucketRows]:
        """Every bucket with its rows, in order of their first.

        Raises:
            NotReady: There is no room for temporary files.
        """
        names = list(self._numbers)
        if self._runs and self._held:
            self._set_aside()
        runs = [self._read_back(run) for run in self._runs] or [_pieces(iter([self._sorted()] if self._held else []))]
        merged = merge(*runs, key=attrgetter("number"))
        for number, pieces in groupby(merged, key=attrgetter("number")):
            yield BucketRows(names[number], (piece.rows for piece in pieces))

    def close(self) -> None:
        """Drop the temporary file, which has no name; may be called twice."""
        if self._file is not None:
            # Closing tries again to write what a full disk refused; these bytes are not needed any more.
            with suppress(OSError):
                self._file.close()
        self._held, self._runs = [], []

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        last = batch.num_columns - 1
        paths: Any = batch.column(last).dictionary_encode()
        counts: Any = pc.value_counts(paths.indices)
        known = paths.dictionary.to_pylist()
        for place, rows in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
            self.rows[known[place]] = self.rows.get(known[place], 0) + rows
        numbers = pa.array([self._numbers.setdefault(path, len(self._numbers)) for path in known], pa.int32())
        return batch.set_column(last, "bucket number", numbers.take(paths.indices))

    def _make_room(self, size_bytes: int) -> None:
        """Make one batch of those held, if that saves half of the room and leaves enough; else set them aside.

        Runs of what small batches of many columns hold would be many, and a chunk of each is read back.
        """
        saved_bytes = weight(self._held[0].slice(0, 0)) * (len(self._held) - 1)
        left_bytes = self._held_bytes - saved_bytes
        if 2 * saved_bytes < self._run_bytes or left_bytes + size_bytes > self._run_bytes:
            self._set_aside()
        else:
            self._held, self._held_bytes = [self._joined()], left_bytes

    def _joined(self) -> pa.RecordBatch:
        held, self._held, self._held_bytes = self._held, [], 0
        (batch,) = held if len(held) == 1 else pa.Table.from_batches(held).combine_chunks().to_batches()
        return batch

    def _sorted(self) -> pa.RecordBatch:
        batch = self._joined()
        return batch.take(pc.sort_indices(batch.column(batch.num_columns - 1)))

    def _set_aside(self) -> None:
        run = self._sorted()
        with _room():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="partfile-buckets-")  # noqa: SIM115 - close() closes it
            self._schema = run.schema
            places: list[_Place] = []
            # Arrow writes the schema together with the first chunk.
            start = self._file.tell() + run.schema.serialize().size
            with pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), run.schema, options=_OPTIONS) as writer:
                for chunk in _chunks(run):
                    writer.write_batch(chunk)
                    end = self._file.tell()
                    places.append(_Place(start, end - start))
                    start = end
            self._file.flush()
        self._runs.append(places)

    def _read_back(self, run: Iterable[_Place]) -> Iterator[_Piece]:
        return _pieces(self._chunk_at(place) for place in run)

    def _chunk_at(self, place: _Place) -> pa.RecordBatch:
        if self._file is None or self._schema is None:
            raise ValueError("nothing has been set aside, or it is gone")
        with _room():
            data = os.pread(self._file.fileno(), place.size_bytes, place.start)
            return pa.ipc.read_record_batch(pa.py_buffer(data), self._schema)


class _Place(NamedTuple):
    """The place of a chunk in the temporary file."""

    start: int
    size_bytes: int


class _Piece(NamedTuple):
    """Rows of one bucket, of one chunk."""

    number: int
    rows: pa.RecordBatch


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = tempfile.gettempdir()
        raise NotReady(
            f"the rows of many buckets cannot be set aside in {where!r} while they are sorted: {error}",
            hint="Free space there, or name a directory that has some, on Spark's executors: export TMPDIR=DIRECTORY",
            path=where,
        ) from error


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about the size of a chunk by what they really weigh, down to single rows."""
    rows = max(1, batch.num_rows * _CHUNK_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        chunk = batch.slice(start, rows)
        # Rows of one bucket stand together, and may all be far from the average.
        if chunk.num_rows > 1 and chunk.nbytes > 2 * _CHUNK_BYTES:
            yield from _chunks(chunk)
        else:
            yield chunk


def _pieces(chunks: Iterator[pa.RecordBatch]) -> Iterator[_Piece]:
    for chunk in chunks:
        runs: Any = pc.run_end_encode(chunk.column(chunk.num_columns - 1))
        start = 0
        for number, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield _Piece(number, chunk.slice(start, stop - start))
            start = stop


MOST_ROWS = 1 << 16
"""Splitting and encoding cost no less a row beyond that."""

MOST_BYTES = 16 << 20
"""Arrow bytes that are joined at most, so that long rows do not fill the memory."""


def coalesce_batches(
    batches: Iterable[pa.RecordBatch], most_rows: int = MOST_ROWS, most_bytes: int = MOST_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of about as many rows as are worth to be split at a time.

    Batches without rows are left out; one that is large by itself is passed on as it is, and none is cut.

    Args:
        batches: Of any schemas; only neighbours of one schema are joined.
        most_rows: A joined batch has no more rows.
        most_bytes: A joined batch has no more Arrow bytes.
    """
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch_bytes = batch.nbytes
        is_too_much = rows + batch.num_rows > most_rows or size_bytes + batch_bytes > most_bytes
        if held and (is_too_much or batch.schema != held[0].schema):
            yield _joined(held)
            held, rows, size_bytes = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch_bytes
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


Item = TypeVar("Item")

MOST_WAITING = 2
"""Batches that may be fetched and not written; more would be memory without speed."""


def prefetch(items: Iterable[Item], write: Callable[[Item], None], most_waiting: int = MOST_WAITING) -> None:
    """Write each item, in order, in a thread of its own while the caller's thread fetches the next ones.

    When the call returns or raises, nothing is being written any more and no thread is left (R13). After a failure
    nothing more is written.

    Args:
        items: What to write; only the calling thread asks for the next one.
        write: Writes one; only one thread calls it.
        most_waiting: Items that are fetched before the oldest of them is written, at least 1.

    Raises:
        BaseException: What ``write`` raised first, or the iteration; a failure of the iteration after one of ``write``
            is its cause.
    """
    waiting: deque[Future[None]] = deque()
    failures: list[BaseException] = []
    has_failed = threading.Event()

    def attempt(item: Item) -> None:
        if has_failed.is_set():
            return
        try:
            write(item)
        except BaseException as failure:
            failures.append(failure)
            has_failed.set()
            raise

    pool = ThreadPoolExecutor(1, "partfile-write")
    try:
        for item in items:
            if len(waiting) == most_waiting:
                waiting.popleft().result()
            waiting.append(pool.submit(attempt, item))
        while waiting:
            waiting.popleft().result()
    except Exception as error:
        # An input that ends because the task does must not hide why it does.
        if failures and error is not failures[0]:
            raise failures[0] from error
        raise
    finally:
        has_failed.set()
        pool.shutdown(wait=True, cancel_futures=True)
