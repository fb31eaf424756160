"""Encode staging files: read each up to its valid length, once, and write the files that readers will see.

One staging file becomes one file, or one file a bucket where many buckets share it. A failed one is tried again later.
One of which no file can ever be made is set aside when an operator says so: its rows are kept as Arrow files.
"""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.base import is_safe_path
from partfile.errors import (
    AlreadyExists,
    CommitConflict,
    CommitError,
    ConfigError,
    NotReady,
    PartfileError,
    StoreError,
    joined_hints,
)
from partfile.sink.batches import BucketRows, BucketSpill
from partfile.sink.clock import stopwatch_ms
from partfile.sink.concurrency import CircuitBreaker, for_each, wait_ms
from partfile.sink.encoded_files import (
    EncodedFile,
    JobFailed,
    NotItsOwn,
    PartlyEncoded,
    check_rows,
    damaged,
    target_of,
    written_file,
)
from partfile.sink.multi_bucket import file_schema
from partfile.sink.policies import clashing, own_name
from partfile.sink.states import SET_ASIDE_DIRECTORY
from partfile.writers.arrow_staging import content_of, weight
from partfile.writers.base import BulkFormat, EncodedRows, RowWriter
from partfile.writers.registry import format_of, lent_for

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from partfile.sink.encoded_files import WrittenFile
    from partfile.sink.states import ClosedStagingFile, StagingFile
    from partfile.stores.base import MetadataStore, PartHandle, PartStore
    from partfile.writers.arrow_staging import StagingContent
    from partfile.writers.base import ByteStream, Format


logger = logging.getLogger("partfile")
_CHUNK_BYTES = 256 << 10
"""Rows or lines that are handed to their writer at a time, so that no block of a file is larger than it has to be."""
_MOST_OPEN = 64
"""Files that are written before they are committed together: their syncs share what the file system has to write."""
MOST_HELD_BYTES = 32 << 20
"""Arrow bytes that are held, whatever the size of the staging file; as much again while they are sorted."""
_FAILING_MS = 60_000
"""What files that cannot be made may cost before the others are left for the next time."""
FIRST_WAIT_MS = 10_000
"""After the second failure; the first may be over with the next checkpoint."""


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The result for one staging file: its files or a problem, or both if some files are missing."""

    staging_file: ClosedStagingFile
    files: tuple[EncodedFile, ...] | None = None
    """One, or one a bucket of a multi-bucket staging file. None if there is none."""
    problem: Exception | None = None
    """Why it is not encoded, or not wholly. A StoreError is worth another try later."""
    is_given_up: bool = False
    """Whether the staging file is given up: it is gone, and the user accepts that."""
    set_aside: str = ""
    """Directory of the Arrow files that hold its rows, relative to that of checkpoints; empty if it was not set aside.
    One that was has no files."""

    @property
    def is_done(self) -> bool:
        """Whether all of its rows are in files."""
        return self.files is not None and self.problem is None


class StagingEncoder(Protocol):
    """Encodes staging files, in this process or in a Spark job."""

    @property
    def is_elsewhere(self) -> bool:
        """True if it works in other processes: a file that one of them misses may be there for the coordinator."""

    def encode(self, staging_files: Sequence[ClosedStagingFile]) -> Sequence[EncodeResult]:
        """Encode staging files; return one result for each, in their order.

        Idempotence: an encode that no checkpoint names is an orphan, and the staging file can be encoded again. An
        error of one staging file is in its result. An error that concerns all alike is raised; then none of them
        counts as encoded.
        """


class LocalEncoder:
    """Encodes staging files in this process, a few at a time: each holds a row group in memory.

    Args:
        store: Where the staging files are, and the files go.
        threads: How many at the same time, at least 1.
        tried: Told how many staging files more were encoded, or could not be; from any thread.
        sink_format: What the sink writes, where it is known: it lends its encryption.
    """

    def __init__(
        self,
        store: PartStore,
        threads: int,
        tried: Callable[[int], None] = lambda _staging_files: None,
        sink_format: Format | None = None,
    ) -> None:
        self._store = store
        self._threads = threads
        self._sink_format = sink_format
        self._tried = tried

    @property
    def is_elsewhere(self) -> bool:
        """No: ``store`` is the coordinator's."""
        return False

    def encode(self, staging_files: Sequence[ClosedStagingFile]) -> Sequence[EncodeResult]:
        """Encode staging files in threads of this process. Where storage does not answer, the rest is not tried."""
        circuit_breaker = CircuitBreaker(self._threads)

        def attempt(staging_file: ClosedStagingFile) -> EncodeResult:
            if circuit_breaker.is_over:
                path = staging_file.part.path_of(staging_file.part.name)
                return EncodeResult(
                    staging_file, problem=NotItsOwn("not tried, since storage does not answer", path=path)
                )
            try:
                return EncodeResult(staging_file, self._encode(staging_file))
            except PartlyEncoded as error:
                circuit_breaker.note(error.__cause__ if isinstance(error.__cause__, StoreError) else error)
                return EncodeResult(staging_file, error.files, problem=error)
            except Exception as error:  # noqa: BLE001 - raised by the caller once the other staging files are through
                circuit_breaker.note(error)
                return EncodeResult(staging_file, problem=error)
            finally:
                self._tried(1)

        return for_each(attempt, staging_files, self._threads, "partfile-encode")

    def _encode(self, staging_file: ClosedStagingFile) -> tuple[EncodedFile, ...]:
        return encode_staging_file(
            self._store,
            staging_file.part,
            staging_file.staging_file,
            staging_file.rows,
            fences=True,
            sink_format=self._sink_format,
        )


def encode_staging_file(
    store: PartStore,
    part: PartHandle,
    staging_file: StagingFile,
    rows: int,
    *,
    fences: bool = False,
    sink_format: Format | None = None,
) -> tuple[EncodedFile, ...]:
    """Encode one staging file into files with tokens of their own: one, or one a bucket of a multi-bucket staging file.

    Reads exactly the valid length, whatever was appended since. Of a failure nothing is left but what cannot be
    deleted: no other process knows the names.

    Args:
        store: Where the staging file is, and the files go.
        part: The staging file.
        staging_file: What it becomes.
        rows: How many the checkpoint vouches for.
        fences: No owner appends any more, so a lease may be taken.
        sink_format: What the sink writes, where it is known: it lends its encryption, and stands in for a format spec
            by which nothing can be encoded, if it is of the same columnar kind.

    Raises:
        PartMissing: The staging file is gone, or shorter than its valid length.
        PartDamaged: It is not what was written, or does not hold these rows.
        PartfileError: It cannot be encoded as its format spec says, nor as the sink's format does where that is of its
            kind.
        PartlyEncoded: Files of some buckets could not be made. It has the others.
        StoreError: It could not be read, or a file not be written.
    """
    try:
        with _explained(part, staging_file):
            return _encode_in(format_of(staging_file.spec, sink_format), store, part, staging_file, rows, fences=fences)
    except (StoreError, CommitError):
        raise
    except PartfileError as error:
        lent = lent_for(staging_file.spec, sink_format)
        if lent is None:
            raise
        logger.warning("the sink's own format takes the place of what a staging file was begun with: %s", error.message)
    with _explained(part, staging_file):
        return _encode_in(lent, store, part, staging_file, rows, fences=fences)


def _encode_in(
    form: Format, store: PartStore, part: PartHandle, staging_file: StagingFile, rows: int, *, fences: bool
) -> tuple[EncodedFile, ...]:
    path = part.path_of(part.in_progress)
    with closing(store.open_staging_file(part, fences=fences)) as file:
        content = content_of(file, part.valid_length, path, staging_file.crc32, checks_reads=store.checks_reads)
        if staging_file.shared:
            return encode_shared(
                store, MultiBucketStagingFile(part, form, content), rows, finished=staging_file.finished_buckets
            )
        if not isinstance(form, BulkFormat):
            raise damaged(
                part,
                f"is to be encoded in {staging_file.spec.get('format')!r}, of which only multi-bucket staging "
                "files are",
            )
        schema, batches = content.read()

        def write(stream: ByteStream) -> int:
            found = form.encode(batches, schema, stream)
            check_rows(part, found, rows)
            return found

        return (written_file(store, target_of(part), write).commit(store),)


def set_aside(store: PartStore, checkpoints: MetadataStore, staging_file: ClosedStagingFile) -> str:
    """Keep the rows of a staging file that have no file yet as Arrow files beside the checkpoints, uncompressed.

    The bucket is in their path, or in the last column if many share the staging file; lines of a row format are bytes.

    Atomicity: each file is there whole or not at all. Idempotence: what an earlier try has made is compared, and kept.
    Durability: when it returns, all files survive power loss, so that a checkpoint may let go of the staging file.

    Args:
        store: Where the staging file is.
        checkpoints: Where the files go: the directory of checkpoints.
        staging_file: What is set aside.

    Returns:
        The directory of the files, relative to that of checkpoints.

    Raises:
        PartMissing: The staging file is gone, or shorter than its valid length.
        PartDamaged: It is not what was written, or does not hold its rows.
        CommitConflict: Another file has the name of one of the Arrow files.
        StoreError: It could not be read, or a file not be written.
    """
    part, what = staging_file.part, staging_file.staging_file
    with closing(store.open_staging_file(part, fences=True)) as file:
        path = part.path_of(part.in_progress)
        content = content_of(file, part.valid_length, path, what.crc32, checks_reads=store.checks_reads)
        # Counted before anything is written: what does not hold its rows is no copy of them.
        check_rows(part, sum(batch.num_rows for batch in content.read()[1]), staging_file.rows)
        schema, batches = content.read()
        # Columns that only the path holds stay with the rows.
        directory = f"{SET_ASIDE_DIRECTORY}/{part.path_of(part.name)}"
        rest = (_without(batch, what.finished_buckets) for batch in batches)
        for number, piece in enumerate(_pieces(schema, rest)):
            _keep(checkpoints, f"{directory}/{number:04d}.arrow", piece)
    return directory


def _pieces(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """All rows as tables that can be held in memory; the last may be without rows."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += weight(batch)
        if held_bytes >= MOST_HELD_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, held_bytes = [], 0
    yield pa.Table.from_batches(held, schema)


def _keep(checkpoints: MetadataStore, path: str, rows: pa.Table) -> None:
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_file(buffer, rows.schema) as writer:
        writer.write_table(rows)
    data = buffer.getvalue().to_pybytes()
    try:
        checkpoints.create_file(path, data)
    except AlreadyExists:
        # An earlier try was killed before its checkpoint; another version of Arrow may have laid it out otherwise.
        if not _holds(checkpoints.read_file(path, 2 * len(data) + MOST_HELD_BYTES), rows):
            raise CommitConflict(
                f"{path!r} is there, and does not hold the rows that are to be set aside",
                hint=(
                    "Move that file away: mv FILE ELSEWHERE; and set the part aside again: partfile recover PATH "
                    "--uid UID --set-aside PART"
                ),
                path=path,
            ) from None


def _holds(data: bytes, rows: pa.Table) -> bool:
    try:
        return bool(pa.ipc.open_file(data).read_all().equals(rows))
    except (pa.ArrowException, OSError):
        return False


def _not_now(part: PartHandle, what: str) -> NotReady:
    """This host's trouble, not the staging file's."""
    path = part.path_of(part.in_progress)
    return NotReady(f"staging file {path!r} is not encoded: {what}", hint="It is tried again later.", path=path)


@contextmanager
def _explained(part: PartHandle, staging_file: StagingFile) -> Iterator[None]:
    """Say of what staging file it is that no file can be made of, though it is whole, and what to do."""
    try:
        yield
    except (StoreError, CommitError) as error:
        if isinstance(error.__cause__, MemoryError):
            # Its bytes are what was written, so it is no damage that asks for too much.
            raise _not_now(part, f"{type(error.__cause__).__name__}: {error.__cause__}") from error
        raise
    except Exception as error:
        path, name = part.path_of(part.in_progress), staging_file.spec.get("format")
        what = error.message if isinstance(error, PartfileError) else f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise _not_now(part, what) from error
        kind = type(error) if isinstance(error, PartfileError) else PartfileError
        hint = (
            f"Start the sink with format={name!r} and options that work: they stand in for those of the staging file."
        )
        raise kind(
            f"staging file {path!r} cannot be encoded: {what}",
            hint=joined_hints(hint, getattr(error, "hint", "")),
            path=path,
        ) from error


def why_not_here(staging_file: StagingFile) -> str:
    """Why a process without the sink's own format cannot encode a staging file: it needs keys, or a newer partfile.

    Empty if it can.
    """
    try:
        format_of(staging_file.spec)
    except ConfigError as error:
        return str(error)
    return ""


class _Stuck(NamedTuple):
    """The failures of one staging file, or of all jobs of a call."""

    failures: int
    """In a row, and without a file of it; tries out of turn are not counted."""
    since_ms: int
    """When it failed last, in or out of turn."""

    @property
    def wait_ms(self) -> int:
        return 0 if self.failures == 1 else wait_ms(self.failures - 1, FIRST_WAIT_MS)

    def left_ms(self, now_ms: int) -> int:
        """The rest of the wait; nothing if the clock has gone back."""
        return 0 if now_ms < self.since_ms else max(0, self.since_ms + self.wait_ms - now_ms)


class EncodeRetries:
    """Remembers failures of staging files, in memory.

    If every job of a call fails, all staging files wait as one would, because each job costs task retries.
    """

    def __init__(self) -> None:
        self._stuck: dict[str, _Stuck] = {}
        self._jobs: _Stuck | None = None
        """Known as long as all jobs of each call fail."""

    def due(self, staging_files: Iterable[ClosedStagingFile], now_ms: int) -> list[ClosedStagingFile]:
        """The staging files to be tried now, in their order: also each that has not failed yet.

        Args:
            staging_files: Those that are closed.
            now_ms: The coordinator's time, in milliseconds since 1970.
        """
        return [staging_file for staging_file in staging_files if self.left_ms(staging_file, now_ms) == 0]

    def left_ms(self, staging_file: ClosedStagingFile, now_ms: int) -> int:
        """The milliseconds that a staging file still waits; 0 means that the next checkpoint tries it.

        Args:
            staging_file: A closed staging file.
            now_ms: The coordinator's time. If that has gone back, there is nothing to wait for.
        """
        waits = (self._stuck.get(staging_file.part.in_progress), self._jobs)
        return max(0 if known is None else known.left_ms(now_ms) for known in waits)

    def note(self, encoded: Sequence[EncodeResult], now_ms: int, *, at_once: bool = False) -> None:
        """Take in what became of staging files that were tried.

        Args:
            encoded: What became of all staging files of one call. One that got some of its files begins anew, for it is
                being got on with.
            now_ms: The coordinator's time, in milliseconds since 1970.
            at_once: They were tried out of turn: a wait begins again, and becomes no longer.
        """
        if not all(isinstance(one.problem, JobFailed) for one in encoded):
            self._jobs = None
        elif self._jobs is not None or any(isinstance(one.problem, NotItsOwn) for one in encoded):
            self._jobs = _failed_again(self._jobs, now_ms, at_once=at_once)
        for one in encoded:
            name = one.staging_file.part.in_progress
            if isinstance(one.problem, NotItsOwn):
                continue
            known = self._stuck.pop(name, None)
            if isinstance(one.problem, StoreError):
                self._stuck[name] = _failed_again(None if one.files else known, now_ms, at_once=at_once)


def _failed_again(known: _Stuck | None, now_ms: int, *, at_once: bool) -> _Stuck:
    before = 0 if known is None else known.failures
    return _Stuck(max(1, before if at_once else before + 1), now_ms)


def encode_shared(
    store: PartStore,
    staging_file: MultiBucketStagingFile,
    rows: int,
    *,
    finished: Collection[str] = (),
    most_held_bytes: int = MOST_HELD_BYTES,
) -> tuple[EncodedFile, ...]:
    """Encode a multi-bucket staging file into one file a bucket, each durable under its pending name.

    A bucket in which no file can be made keeps no other from having its own. Atomicity: of any other failure nothing is
    left but what cannot be deleted: no other process knows the names.

    Args:
        store: Where the files go.
        staging_file: What is encoded.
        rows: How many the checkpoint vouches for.
        finished: Buckets whose file is there already.
        most_held_bytes: Of Arrow, that are held at the same time.

    Raises:
        PartDamaged: The staging file does not hold these rows, or is not what was written.
        PartlyEncoded: Some files could not be made. It has the others.
        StoreError: It could not be read, or no file be made.
    """
    schema = staging_file.schema()
    with closing(BucketSpill(most_held_bytes)) as runs:
        found = 0
        for batch in staging_file.batches():
            found += batch.num_rows
            runs.add(_without(batch, finished))
        check_rows(staging_file.part, found, rows)
        files = SharedFiles(store, staging_file, schema, runs.rows, finished=finished, most_held_bytes=most_held_bytes)
        try:
            files.write(runs.buckets())
        except Exception:
            files.discard()
            raise
        finally:
            files.close()
        return files.result()


@dataclass(frozen=True, slots=True)
class MultiBucketStagingFile:
    """A multi-bucket staging file that is to be encoded."""

    part: PartHandle
    """The staging file."""
    form: Format
    """The format of its files."""
    content: StagingContent

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row, from the beginning, with its bucket in the last column.

        Raises:
            PartDamaged: The staging file is not what was written, or a bucket in it is not safe as a path.
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
            PartDamaged: It is no multi-bucket staging file of this format.
        """
        try:
            return file_schema(self.form, self.content.read()[0])
        except (ValueError, pa.ArrowException) as error:
            raise damaged(self.part, f"is not shared by buckets: {error}") from error


class SharedFiles:
    """The files of one staging file while they are made.

    Args:
        store: Where they go.
        staging_file: What is encoded.
        schema: The columns of the files.
        rows: How many each bucket has, of those that need a file.
        finished: Buckets whose file is there already.
        most_held_bytes: Of Arrow, that are held at the same time.
    """

    def __init__(
        self,
        store: PartStore,
        staging_file: MultiBucketStagingFile,
        schema: pa.Schema,
        rows: Mapping[str, int],
        *,
        finished: Collection[str],
        most_held_bytes: int,
    ) -> None:
        self._store = store
        self._staging_file = staging_file
        self._schema = schema
        self._rows = rows
        self._most_held_bytes = most_held_bytes
        self._marked = clashing([*rows, *finished])
        """Buckets that may be one directory with another one, and in which the file has a name of its own."""
        self._group: list[BucketRows] = []
        self._group_bytes = 0
        self._circuit_breaker = CircuitBreaker(store.persist_threads)
        self._commit_circuit_breaker = CircuitBreaker(store.persist_threads)
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
        raise PartlyEncoded.of(self._staging_file.part, done, len(self._rows) - len(done), self._failures[0])

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
            # A staging file counts as encoded once this returns, and its rows as published.
            raise PartfileError(f"{len(self._rows)} buckets became {len(self._done)} files")

    def _write_group(self) -> None:
        group, self._group, self._group_bytes = self._group, [], 0
        for start in range(0, len(group), _MOST_OPEN):
            self._write_together(group[start : start + _MOST_OPEN])

    def _write_together(self, group: Sequence[BucketRows]) -> None:
        # Where nothing is waited for before the commit, threads would only take turns.
        threads = self._store.persist_threads
        writers = threads if self._store.staging_files_travel else 1
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
        """Release what is open, also where the task is being ended: its process goes on (R13)."""
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
        return self._circuit_breaker.is_over or self._commit_circuit_breaker.is_over

    def _write_one(self, one: BucketRows) -> None:
        if not self._is_over:
            with self._noted(self._circuit_breaker):
                self._open[one.bucket] = self._written(one)

    def _commit_one(self, bucket: str) -> None:
        written = self._open.pop(bucket)
        # What could be written is kept, even if the store does not answer for other buckets.
        if self._commit_circuit_breaker.is_over:
            self._give_up(written)
            return
        with self._noted(self._commit_circuit_breaker):
            self._done.append(written.commit(self._store))

    @contextmanager
    def _noted(self, circuit_breaker: CircuitBreaker) -> Iterator[None]:
        """Note what storage keeps from one file, so that the others have their try."""
        began_ms = stopwatch_ms()
        try:
            yield
        except StoreError as error:
            circuit_breaker.note(error)
            self._failures.append(error)
            self._failing_ms += stopwatch_ms() - began_ms

    def _written(self, one: BucketRows) -> WrittenFile:
        name = self._staging_file.part.name
        own = own_name(name, one.bucket) if one.bucket in self._marked else name
        target = target_of(self._staging_file.part, one.bucket, own)

        def write(stream: ByteStream) -> int:
            rows = self._encode(stream, target, (_without_bucket(batch) for batch in _joined(one.batches)))
            check_rows(self._staging_file.part, rows, self._rows[one.bucket])
            return rows

        return written_file(self._store, target, write)

    def _encode(self, stream: ByteStream, target: PartHandle, batches: Iterable[pa.RecordBatch]) -> int:
        form = self._staging_file.form
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


def _without(batch: pa.RecordBatch, finished: Collection[str]) -> pa.RecordBatch:
    if not finished:
        return batch
    return batch.filter(pc.invert(pc.is_in(_paths(batch), value_set=pa.array(sorted(finished), pa.large_string()))))


def _paths(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1)
