"""The operator of a sink: one subtask that turns record batches into parts between two checkpoints.

``open``, ``write``, ``snapshot``, ``notify_checkpoint_complete``, ``close``. Needs no Spark; Spark's tasks run it too.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from partfile.bucketers.paths import check_buckets
from partfile.errors import LeaseUnavailable, PartfileError, PartMissing, StoreError
from partfile.sink import plan
from partfile.sink.batches import encoded_by_bucket, rows_by_bucket
from partfile.sink.concurrency import CircuitBreaker, for_each
from partfile.sink.encode import encode_staging_file
from partfile.sink.encoded_files import PartlyEncoded
from partfile.sink.layout import RowLayouts
from partfile.sink.multi_bucket import OpenKeys, longest_bucket, parted, shared_rows
from partfile.sink.plan import Action, closed_staging_file, encoded_staging_file, less, promised
from partfile.sink.policies import PartNumber, PartProgress, own_path
from partfile.sink.states import OpenPart, PendingPart, StagingFile, SubtaskSnapshot, published_size_bytes
from partfile.stores.parts import part_refused
from partfile.stores.paths import new_token
from partfile.writers.arrow_staging import ChecksummedStream
from partfile.writers.base import EncodedRows, RowFormat, RowWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from partfile.sink.encoded_files import EncodedFile
    from partfile.sink.layout import RowLayout, SinkDescription, SubtaskContext
    from partfile.stores.base import PartHandle, PartStore, PartStream
    from partfile.writers.base import Format


logger = logging.getLogger("partfile")
Key = tuple[str, str]
Result = TypeVar("Result")


_ROWS_AT_A_TIME = 16_384
"""Rows of a row format that are encoded at a time, of a larger batch: they stay in the processor's cache."""


class SinkOperator:
    """Writes rows to parts: ``open``, ``write``, ``snapshot``, ``notify_checkpoint_complete``, ``close``.

    Args:
        store: Where the parts are.
        description: What to do with rows.
    """

    def __init__(self, store: PartStore, description: SinkDescription) -> None:
        self._store = store
        self._description = description
        self._staged_in = description.staged_in(travels=store.staging_files_travel)
        staging_file = None if description.spec is None else self._staged_in
        self._layouts = RowLayouts(description.bucketer, description.format, staging_file)
        self._assigned: dict[Key, OpenPart] = {}
        self._active: OrderedDict[Key, ActivePart] = OrderedDict()
        self._suspended: set[str] = set()
        """In-progress names of assigned parts that this operator has written to: it may resume them in any case."""
        self._left = PendingOutput(SubtaskSnapshot(subtask=0))
        self._max_count = -1
        self._context: SubtaskContext | None = None
        self._closed_bytes = 0
        self.rows_written = 0
        """Rows added since the operator was made."""

    @property
    def context(self) -> SubtaskContext:
        """The subtask that this operator is."""
        if self._context is None:
            raise PartfileError("the operator is not open")
        return self._context

    def open(self, context: SubtaskContext, state: SubtaskSnapshot) -> None:
        """Begin with the subtask's share of the restored state. Opens no file yet: only rows do.

        Of two parts of one bucket, which rescaling can bring, the second is rolled.
        """
        self._context = context
        self._assigned, surplus = plan.one_per_key(state.open)
        self._left = PendingOutput(state)
        for part in surplus:
            self._left.leave(part)
        self._max_count = state.max_count

    def advance(self, context: SubtaskContext) -> None:
        """Go on into the next batch with its context, keeping every open part."""
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch to the parts of their buckets.

        Raises:
            ConfigError: The bucketer cannot work on these columns, or the store has no path so long as a bucket's.
            UnsupportedTypeError: The format has no form for a column.
            BucketValueError: A value cannot name a bucket.
            StoreError: Storage failed; close the operator, nothing of this checkpoint counts.
        """
        if batch.num_rows == 0:
            return
        layout = self._layouts.of(batch.schema)
        buckets = self._description.bucketer.bucket_of(batch, self._layouts.context(self.context, self._description))
        check_buckets(batch.num_rows, buckets)
        rows, form = layout.rows(batch), self._description.format
        if not isinstance(form, RowFormat):
            self._write_content(rows, buckets, layout)
        elif self._may_share(buckets, layout):
            self._write_content(form.encode(rows), buckets, layout)
        else:
            for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
                encoded = form.encode(rows.slice(start, _ROWS_AT_A_TIME))
                self._write_content(encoded, buckets.slice(start, _ROWS_AT_A_TIME), layout)
        self.rows_written += batch.num_rows

    def _may_share(self, buckets: pa.DictionaryArray[Any, Any], layout: RowLayout) -> bool:
        """Whether rows of a batch may go to the multi-bucket staging file. What does is decided by the whole batch."""
        if self._description.multi_bucket_spec is None or not self.context.may_stage:
            return False
        opened = OpenKeys((self._active, self._assigned), layout.fingerprint)
        return self._description.sharing.may_be_for(len(buckets.dictionary), opened)

    def _write_content(
        self, content: pa.RecordBatch | EncodedRows, buckets: pa.DictionaryArray[Any, Any], layout: RowLayout
    ) -> None:
        own = self._share(content, buckets, layout)
        if own is None:
            self._write_own(content, buckets, layout)
        elif len(own):
            self._write_own(content.take(own), buckets.take(own), layout)

    def _share(
        self, content: pa.RecordBatch | EncodedRows, buckets: pa.DictionaryArray[Any, Any], layout: RowLayout
    ) -> pa.Array[Any] | None:
        """Write what goes to the multi-bucket staging file, if anything does, and return which rows are left then."""
        if self._description.multi_bucket_spec is None or not self.context.may_stage:
            return None
        size_bytes = len(content.data) if isinstance(content, EncodedRows) else content.nbytes
        opened = OpenKeys((self._active, self._assigned), layout.fingerprint)
        ways = parted(buckets, size_bytes, self._description.sharing, opened)
        if ways is None:
            return None
        shared = self._layouts.shared(layout)
        rows = shared_rows(content, ways.shared, buckets, shared.schema)
        # Its staging file lies in the base: a path that is too long would be found out when it is too late.
        longest, count = longest_bucket(rows), self._max_count + 1
        self._store.check_path(own_path(final_path(self._description, self.context, longest, count)))
        self._part("", shared).write(rows, self._now_ms, buckets=ways.buckets)
        return ways.own

    def _write_own(
        self, content: pa.RecordBatch | EncodedRows, buckets: pa.DictionaryArray[Any, Any], layout: RowLayout
    ) -> None:
        if isinstance(content, EncodedRows):
            for bucket, count, data in encoded_by_bucket(content, buckets):
                self._part(bucket, layout).write_encoded(data, count, self._now_ms)
        else:
            for bucket, rows in rows_by_bucket(content, buckets):
                self._part(bucket, layout).write(rows, self._now_ms)

    def snapshot(self, checkpoint_id: int) -> SubtaskSnapshot:
        """Make everything written so far durable and return the state that vouches for it.

        Parts that roll are pending from now on; the others stay open and go on after the checkpoint.

        Raises:
            LeaseUnavailable: A part is no longer under its name (R2).
            StoreError: A part could not be made durable; close the operator.
        """
        if self._form.appendable:
            for part in self._active.values():
                part.flush()
        self._roll(key for key, part in list(self._active.items()) if self._at_checkpoint(part) is Action.ROLL)
        self._leave_due()
        self._left.promise(checkpoint_id)
        persisted = self._each(ActivePart.persist, self._active.values())
        return SubtaskSnapshot(
            subtask=self.context.subtask,
            open=(*persisted, *self._assigned.values()),
            pending=tuple(self._left.pending),
            closed=tuple(self._left.closed),
            encoded=tuple(self._left.encoded),
            max_count=self._max_count,
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget the pending parts and staging files of every checkpoint up to this one.

        The coordinator answers for them.
        """
        self._left.forget(checkpoint_id)

    def roll_all(self) -> None:
        """Close every open part: the end of the input."""
        self._roll(list(self._active))
        for part in self._assigned.values():
            self._left.leave(part)
        self._assigned = {}

    def close(self) -> None:
        """Release every part. Deletes nothing and persists nothing; may be called twice.

        Raises:
            StoreError: A part could not be released; where storage has not answered, the rest was not tried.
        """
        parts = list(self._active.values())
        self._active.clear()
        self._release(parts)

    @property
    def bytes_written(self) -> int:
        """Bytes added to part files since the operator was made."""
        return self._closed_bytes + sum(part.added_bytes for part in self._active.values())

    @property
    def _now_ms(self) -> int:
        return self.context.batch_time_ms

    @property
    def _may_stage(self) -> bool:
        return self._description.spec is not None and self.context.may_stage

    @property
    def _form(self) -> Format:
        return self._staged_in if self._may_stage else self._description.format

    @property
    def _may_keep(self) -> bool:
        return self.context.may_keep and self._form.appendable

    def _at_checkpoint(self, part: ActivePart) -> Action:
        policy, may_keep = self._description.rolling, self._may_keep
        return plan.at_checkpoint(part.progress, policy, now_ms=self._now_ms, may_keep=may_keep)

    def _leave_due(self) -> None:
        """Let go of the parts that are not being written and whose time has come."""
        stay, over = plan.due_at_checkpoint(
            self._assigned.values(),
            self._suspended,
            self._description.rolling,
            now_ms=self._now_ms,
            may_keep=self._may_keep,
        )
        for part in over:
            self._left.leave(part)
        self._assigned = {part.key: part for part in stay}
        self._suspended &= {part.part.in_progress for part in stay}

    def _part(self, bucket: str, layout: RowLayout) -> ActivePart:
        key = (bucket, layout.fingerprint)
        part = self._active.get(key)
        if part is not None and plan.before_rows(part.progress, self._description.rolling) is Action.ROLL:
            self._roll([key])
            part = None
        if part is None:
            over = plan.beyond_cap(list(self._active), self._description.max_open_parts - 1)
            # A staging file can be gone on with, and a file made of it now would be a small one.
            self._suspend(one for one in over if self._active[one].is_staging_file)
            self._roll(one for one in over if one in self._active)
            part = self._active[key] = self._resume(key, layout) or self._create(bucket, layout)
        self._active.move_to_end(key)
        return part

    def _resume(self, key: Key, layout: RowLayout) -> ActivePart | None:
        assigned = self._assigned.pop(key, None)
        if assigned is None:
            return None
        action = plan.before_resuming(
            assigned,
            self._description.rolling,
            epoch=self.context.epoch,
            attempt=self.context.attempt,
            may_keep=self.context.may_keep,
            is_own=assigned.part.in_progress in self._suspended,
        )
        if action is Action.KEEP and (assigned.staging_file is not None) is self._is_staged(layout):
            try:
                return held_part(self._store.resume(assigned.part), self._form_of(layout), layout.schema, assigned)
            except LeaseUnavailable:
                action = Action.ABANDON
        self._left.leave(assigned, abandoned=action is Action.ABANDON)
        return None

    def _create(self, bucket: str, layout: RowLayout) -> ActivePart:
        self._max_count += 1
        fresh = fresh_part(
            self._description, self.context, layout, bucket=bucket, count=self._max_count, token=new_token()
        )
        return held_part(self._store.create(fresh.part), self._form_of(layout), layout.schema, fresh)

    def _is_staged(self, layout: RowLayout) -> bool:
        return layout.is_shared or self._may_stage

    def _form_of(self, layout: RowLayout) -> Format:
        return self._staged_in if self._is_staged(layout) else self._description.format

    def _roll(self, keys: Iterable[Key]) -> None:
        circuit_breaker = CircuitBreaker(1)
        for part in self._ended(keys, ActivePart.end):
            self._left.roll(part, self._store, self._description.format, circuit_breaker)

    def _suspend(self, keys: Iterable[Key]) -> None:
        for part in self._ended(keys, ActivePart.suspend):
            self._assigned[part.key] = part
            self._suspended.add(part.part.in_progress)

    def _ended(self, keys: Iterable[Key], end: Callable[[ActivePart], OpenPart]) -> list[OpenPart]:
        parts = [self._active.pop(key) for key in keys]
        try:
            ended = self._each(end, parts)
            self._closed_bytes += sum(part.added_bytes for part in parts)
            return ended
        finally:
            self._release(parts)

    def _release(self, parts: Sequence[ActivePart]) -> None:
        # One that fails keeps no other from being released.
        self._each(ActivePart.close, parts, CircuitBreaker(self._store.persist_threads))

    def _each(
        self,
        work: Callable[[ActivePart], Result],
        parts: Iterable[ActivePart],
        circuit_breaker: CircuitBreaker | None = None,
    ) -> list[Result]:
        threads = self._store.persist_threads
        return for_each(work, list(parts), threads, "partfile-persist", circuit_breaker=circuit_breaker)


class PendingOutput:
    """The parts of a subtask that wait to be published, encoded or deleted once a checkpoint is complete.

    Each is repeated in every snapshot until the subtask has heard of the completion of the first one that held it.

    Args:
        state: The subtask's share of the restored state.
    """

    def __init__(self, state: SubtaskSnapshot) -> None:
        self.pending = list(state.pending)
        """Parts to be published, as of the last snapshot."""
        self.closed = list(state.closed)
        """Staging files that the coordinator is to encode, as of the last snapshot."""
        self.encoded = list(state.encoded)
        """Staging files that are encoded, as of the last snapshot."""
        self._left: list[tuple[OpenPart, bool]] = []
        self._files: list[EncodedFile] = []
        self._encoded: list[OpenPart] = []

    def leave(self, part: OpenPart, *, abandoned: bool = False) -> None:
        """Take no more rows for a part.

        It is to be published, or to be encoded by the coordinator if it is a staging file.

        Args:
            part: The part at the length that is vouched for.
            abandoned: Another attempt may still be writing it.
        """
        self._left.append((part, abandoned))

    def roll(self, part: OpenPart, store: PartStore, sink_format: Format, circuit_breaker: CircuitBreaker) -> None:
        """Take no more rows for a part that the subtask has just ended itself; encode it here if it is a staging file.

        One at a time, for each holds a row group in memory. Storage that fails leaves it to the coordinator.

        Args:
            part: The part, durable and released.
            store: Where it is.
            sink_format: What the sink writes.
            circuit_breaker: Once it is over nothing more is tried here.

        Raises:
            LeaseUnavailable: The staging file was taken a moment after it was released: a coordinator has fenced this
                task.
            PartDamaged: It is not what was written.
        """
        if part.staging_file is None or circuit_breaker.is_over:
            self.leave(part)
            return
        try:
            files = encode_staging_file(store, part.part, part.staging_file, part.rows, sink_format=sink_format)
        except PartMissing as error:
            # Not a loss: nothing of it counts before this task's checkpoint, and the new owner has all that counted.
            raise part_refused(part.part, f"its staging file is gone; {error.message}") from error
        except StoreError as error:
            circuit_breaker.note(error)
            logger.warning("staging file %s is not wholly encoded yet: %s", part.part.path_of(part.part.name), error)
            done = error.files if isinstance(error, PartlyEncoded) else ()
            self._files += done
            self.leave(part.model_copy(update={"staging_file": less(part.staging_file, done)}))
        else:
            self._files += files
            self._encoded.append(part)

    def promise(self, checkpoint_id: int) -> None:
        """Name everything that was left since the last snapshot in this checkpoint, as the first that holds it."""
        for part, abandoned in self._left:
            if part.staging_file is None:
                pending = PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned)
                self.pending.append(pending)
            else:
                self.closed.append(closed_staging_file(part, part.staging_file, checkpoint_id, abandoned=abandoned))
        self.pending += [promised(file, checkpoint_id) for file in self._files]
        self.encoded += [encoded_staging_file(part, checkpoint_id) for part in self._encoded]
        self._left, self._files, self._encoded = [], [], []

    def forget(self, checkpoint_id: int) -> None:
        """Forget what every checkpoint up to this one holds; the coordinator answers for it now."""
        self.pending = [part for part in self.pending if part.since > checkpoint_id]
        self.closed = [staging_file for staging_file in self.closed if staging_file.since > checkpoint_id]
        self.encoded = [staging_file for staging_file in self.encoded if staging_file.since > checkpoint_id]


class ActivePart:
    """An open part held by this process.

    Args:
        stream: The part, leased.
        format: Makes the writer.
        schema: The rows' schema as written to the file.
        state: The part as of the last checkpoint, or as just created.
    """

    def __init__(self, stream: PartStream, format: Format, schema: pa.Schema, state: OpenPart) -> None:
        self._stream = stream
        self._state = state
        self._checksummed = _checksummed(stream, state)
        self._writer = format.open_part(self._checksummed or stream, schema, state.part.in_progress)
        self._rows = state.rows
        self._start_bytes = state.part.valid_length
        self._last_write_ms = state.last_write_ms
        self._most_buckets = 1 if state.staging_file is None else state.staging_file.least_buckets

    @property
    def progress(self) -> PartProgress:
        """The facts that the rolling policy decides by."""
        size_bytes = published_size_bytes(self._stream.position, self._state.staging_file)
        return PartProgress(size_bytes, self._rows, self._state.created_at_ms, self._last_write_ms)

    @property
    def is_staging_file(self) -> bool:
        """Whether it is encoded later, and so can be released instead of being rolled."""
        return self._state.staging_file is not None

    @property
    def added_bytes(self) -> int:
        """Bytes this process has added to the part so far."""
        return self._stream.position - self._start_bytes

    def write(self, batch: pa.RecordBatch, now_ms: int, *, buckets: int = 1) -> None:
        """Add rows, encoded by the writer; of so many buckets, if it is a staging file that they share."""
        self._writer.write(batch)
        self._most_buckets = max(self._most_buckets, buckets)
        self._rows += batch.num_rows
        self._last_write_ms = now_ms

    def write_encoded(self, data: bytes | memoryview, rows: int, now_ms: int) -> None:
        """Add rows that the format has encoded."""
        if not isinstance(self._writer, RowWriter):
            raise PartfileError(f"{type(self._writer).__name__} of a row format takes no encoded rows")
        self._writer.write_encoded(data, rows)
        self._rows += rows
        self._last_write_ms = now_ms

    def flush(self) -> None:
        """Hand every byte to the stream, so that its position is what the part will have."""
        self._writer.persist()

    def persist(self) -> OpenPart:
        """Make the part durable and return what a snapshot says of it."""
        length = self._writer.persist()
        handle = self._stream.persist()
        self._check(handle, length)
        # After the sync and before the task acknowledges: a part that lost its name vouches for nothing (R2).
        self._stream.verify()
        return self._at(handle)

    def end(self) -> OpenPart:
        """End the part, make it durable, release it, and return what a snapshot says of it.

        It is pending then; a staging file stays what it is, for it is encoded and never published.
        """
        if self._state.staging_file is not None:
            return self.suspend()
        self._writer.close()
        handle = self._stream.close_for_commit()
        return self._at(handle)

    def suspend(self) -> OpenPart:
        """Make the part durable and release it, to be resumed or encoded; return what a snapshot says of it."""
        state = self.persist()
        self._stream.close()
        return state

    def close(self) -> None:
        """Release the part; deletes nothing."""
        self._writer.abandon()
        self._stream.close()

    def _check(self, handle: PartHandle, length: int) -> None:
        if handle.valid_length != length:
            raise PartfileError(
                f"the writer counts {length} bytes, the stream {handle.valid_length}", path=handle.path_of(handle.name)
            )

    def _at(self, handle: PartHandle) -> OpenPart:
        staging_file = self._state.staging_file
        if staging_file is not None and staging_file.shared:
            staging_file = staging_file.model_copy(update={"least_buckets": self._most_buckets})
        if staging_file is not None and self._checksummed is not None:
            staging_file = staging_file.model_copy(update={"crc32": self._checksummed.crc32})
        self._state = self._state.model_copy(
            update={
                "part": handle,
                "rows": self._rows,
                "last_write_ms": self._last_write_ms,
                "staging_file": staging_file,
            }
        )
        return self._state


def held_part(stream: PartStream, format: Format, schema: pa.Schema, state: OpenPart) -> ActivePart:
    """An open part that this task alone holds. On failure its stream is released, and its file stays (R13).

    Arguments as of ``ActivePart``.
    """
    try:
        return ActivePart(stream, format, schema, state)
    except BaseException:
        # Why there is no writer is told; that the stream could not be released either is not.
        with suppress(StoreError):
            stream.close()
        raise


def _checksummed(stream: PartStream, state: OpenPart) -> ChecksummedStream | None:
    """A staging file is read back, so its bytes have a checksum."""
    return None if state.staging_file is None else ChecksummedStream(stream, state.staging_file.crc32)


def fresh_part(
    description: SinkDescription,
    context: SubtaskContext,
    layout: RowLayout,
    *,
    bucket: str,
    count: int,
    token: str,
) -> OpenPart:
    """A part as it is created.

    Args:
        description: The sink's.
        context: The subtask that creates it, and when.
        layout: Of its rows.
        bucket: Where it goes; empty for a multi-bucket staging file, which lies in the base.
        count: The part counter, new.
        token: 128 random bits drawn by this attempt.
    """
    staging_file = _staging_file(description, context, layout)
    number = PartNumber(context.chain, context.subtask, count)
    handle = description.naming.handle(bucket, number, suffix=description.format.suffix, token=token)
    return OpenPart(
        part=handle.model_copy(update={"is_staging_file": staging_file is not None}),
        count=count,
        schema_fingerprint=layout.fingerprint,
        epoch=context.epoch,
        created_at_ms=context.batch_time_ms,
        last_write_ms=context.batch_time_ms,
        rows=0,
        staging_file=staging_file,
    )


def final_path(description: SinkDescription, context: SubtaskContext, bucket: str, count: int) -> str:
    """The path of a part of a bucket once it is finished; arguments as for ``fresh_part``."""
    number = PartNumber(context.chain, context.subtask, count)
    handle = description.naming.handle(bucket, number, suffix=description.format.suffix, token="")
    return handle.path_of(handle.name)


def _staging_file(description: SinkDescription, context: SubtaskContext, layout: RowLayout) -> StagingFile | None:
    if layout.is_shared and description.multi_bucket_spec is not None:
        return StagingFile(spec=dict(description.multi_bucket_spec), shared=True)
    if description.spec is None or not context.may_stage:
        return None
    return StagingFile(spec=dict(description.spec), encoded_ratio=context.encoded_ratio or 1.0)
