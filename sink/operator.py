"""The sink's operator: one subtask's parts between two checkpoints. Runs without Spark; Spark's tasks run it too."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from partfile.bucketers.split import split
from partfile.filesystems.errors import LeaseUnavailable, PartfileError
from partfile.filesystems.tokens import new_token
from partfile.sink import lifecycle
from partfile.sink.active_part import ActivePart
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.lifecycle import Action
from partfile.sink.naming import PartNumber
from partfile.sink.row_layout import RowLayouts
from partfile.sink.states import OpenPart, PendingPart, SubtaskSnapshot
from partfile.writers.port import RowFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from partfile.bucketers.port import Bucketer
    from partfile.bucketers.split import Slice
    from partfile.filesystems.port import PartStore
    from partfile.sink.naming import PartNaming
    from partfile.sink.rolling import RollingPolicy
    from partfile.sink.row_layout import RowLayout
    from partfile.writers.port import EncodedRows, Format

Key = tuple[str, str]
Result = TypeVar("Result")
ROWS_A_RUN = 16


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """What an operator does with rows: everything that is the same for all subtasks and batches. Picklable."""

    format: Format
    bucketer: Bucketer
    rolling: RollingPolicy
    naming: PartNaming
    max_open_parts: int
    on_bad_bucket: str


@dataclass(frozen=True, slots=True)
class SubtaskContext:
    """Who the operator is in this batch, as the coordinator says."""

    subtask: int
    attempt: int
    """0 for a first run; a hint, not a fence (S2)."""
    generation: int
    chain: str
    batch_time_ms: int
    """The coordinator's time, in milliseconds since the epoch (S8)."""
    may_keep: bool = True
    """Whether parts may stay open over the checkpoint; False where the store cannot append, as its coordinator has
    found out, or leases are not proven (S13)."""


class SinkOperator:
    """Writes rows to parts: ``open``, ``write``, ``snapshot``, ``notify_checkpoint_complete``, ``close``.

    Args:
        store: Where the parts are.
        description: What to do with rows.
    """

    def __init__(self, store: PartStore, description: SinkDescription) -> None:
        self._store = store
        self._description = description
        self._layouts = RowLayouts(description.bucketer, description.format)
        self._assigned: dict[Key, OpenPart] = {}
        self._active: OrderedDict[Key, ActivePart] = OrderedDict()
        self._rolled: list[tuple[OpenPart, bool]] = []
        self._unconfirmed: list[PendingPart] = []
        self._max_count = -1
        self._context: SubtaskContext | None = None
        self._closed_bytes = 0
        self.rows_written = 0
        """Rows added since the operator was made."""

    @property
    def context(self) -> SubtaskContext:
        """Who this operator is."""
        if self._context is None:
            raise PartfileError("the operator is not open")
        return self._context

    def open(self, context: SubtaskContext, state: SubtaskSnapshot) -> None:
        """Begin with the subtask's share of the restored state. Opens no file yet: only rows do.

        Of two parts of one bucket, which rescaling can bring, the second is rolled.
        """
        self._context = context
        self._assigned, surplus = lifecycle.one_per_key(state.open)
        self._rolled = [(part, False) for part in surplus]
        self._unconfirmed = list(state.pending)
        self._max_count = state.max_count

    def advance(self, context: SubtaskContext) -> None:
        """Go on into the next batch with its context, keeping every open part."""
        self._context = context

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch to the parts of their buckets.

        Raises:
            ConfigError: The bucketer cannot work on these columns.
            UnsupportedTypeError: The format has no form for a column.
            BucketValueError: A value cannot name a bucket.
            StoreError: Storage failed; close the operator, nothing of this checkpoint counts.
        """
        if batch.num_rows == 0:
            return
        layout = self._layouts.of(batch.schema)
        buckets = self._description.bucketer.bucket_of(batch, self._layouts.context(self.context, self._description))
        if isinstance(self._description.format, RowFormat):
            # Lines are moved rather than rows: one column instead of many. A few runs are joined as they stand.
            order, slices = split(batch.num_rows, buckets, most_runs=batch.num_rows // ROWS_A_RUN)
            encoded = self._description.format.encode(layout.rows(batch))
            lines = encoded if order is None else encoded.take(order)
            for bucket, count, data in encoded_by_bucket(lines, slices):
                self._part(bucket, layout).write_encoded(data, count, self._now_ms)
        else:
            order, slices = split(batch.num_rows, buckets)
            rows = layout.rows(batch) if order is None else layout.rows(batch).take(order)
            for bucket, start, stop in slices:
                self._part(bucket, layout).write(rows.slice(start, stop - start), self._now_ms)
        self.rows_written += batch.num_rows

    def snapshot(self, checkpoint_id: int) -> SubtaskSnapshot:
        """Make everything written so far durable and return the state that vouches for it.

        Parts that roll are pending from now on; the others stay open and go on after the checkpoint.

        Raises:
            LeaseUnavailable: A part was taken away from under its name (S2).
            StoreError: A part could not be made durable; close the operator.
        """
        if self._description.format.appendable:
            for part in self._active.values():
                part.flush()
        self._roll(key for key, part in list(self._active.items()) if self._at_checkpoint(part) is Action.ROLL)
        stay, over = lifecycle.due(self._assigned.values(), self._description.rolling, self._now_ms)
        self._rolled += [(part, False) for part in over]
        self._assigned = {part.key: part for part in stay}
        self._unconfirmed += [
            PendingPart(part=part.part, rows=part.rows, since=checkpoint_id, abandoned=abandoned)
            for part, abandoned in self._rolled
        ]
        self._rolled = []
        persisted = self._each(ActivePart.persist, self._active.values())
        return SubtaskSnapshot(
            subtask=self.context.subtask,
            open=(*persisted, *self._assigned.values()),
            pending=tuple(self._unconfirmed),
            max_count=self._max_count,
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget the pending parts of every checkpoint up to this one; the coordinator answers for them now."""
        self._unconfirmed = [part for part in self._unconfirmed if part.since > checkpoint_id]

    def roll_all(self) -> None:
        """Close every open part: the end of the input."""
        self._roll(list(self._active))
        self._rolled += [(part, False) for part in self._assigned.values()]
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

    def _at_checkpoint(self, part: ActivePart) -> Action:
        may_keep = self.context.may_keep and self._description.format.appendable
        return lifecycle.at_checkpoint(part.progress, self._description.rolling, now_ms=self._now_ms, may_keep=may_keep)

    def _part(self, bucket: str, layout: RowLayout) -> ActivePart:
        key = (bucket, layout.fingerprint)
        part = self._active.get(key)
        if part is not None and lifecycle.before_rows(part.progress, self._description.rolling) is Action.ROLL:
            self._roll([key])
            part = None
        if part is None:
            self._roll(lifecycle.beyond_cap(list(self._active), self._description.max_open_parts - 1))
            part = self._active[key] = self._resume(key, layout) or self._create(bucket, layout)
        self._active.move_to_end(key)
        return part

    def _resume(self, key: Key, layout: RowLayout) -> ActivePart | None:
        assigned = self._assigned.pop(key, None)
        if assigned is None:
            return None
        action = lifecycle.before_resuming(
            assigned,
            self._description.rolling,
            generation=self.context.generation,
            attempt=self.context.attempt,
            may_keep=self.context.may_keep,
        )
        if action is Action.KEEP:
            try:
                stream = self._store.resume(assigned.part)
                return ActivePart(stream, self._description.format, layout.schema, assigned)
            except LeaseUnavailable:
                action = Action.ABANDON
        self._rolled.append((assigned, action is Action.ABANDON))
        return None

    def _create(self, bucket: str, layout: RowLayout) -> ActivePart:
        self._max_count += 1
        number = PartNumber(self.context.chain, self.context.subtask, self._max_count)
        handle = self._description.naming.handle(
            bucket, number, suffix=self._description.format.suffix, token=new_token()
        )
        fresh = OpenPart(
            part=handle,
            count=self._max_count,
            schema_fingerprint=layout.fingerprint,
            generation=self.context.generation,
            created_at_ms=self._now_ms,
            last_write_ms=self._now_ms,
            rows=0,
        )
        return ActivePart(self._store.create(handle), self._description.format, layout.schema, fresh)

    def _roll(self, keys: Iterable[Key]) -> None:
        parts = [self._active.pop(key) for key in keys]
        try:
            self._rolled += [(closed, False) for closed in self._each(ActivePart.close_for_commit, parts)]
            self._closed_bytes += sum(part.added_bytes for part in parts)
        finally:
            self._release(parts)

    def _release(self, parts: Sequence[ActivePart]) -> None:
        # One that fails keeps no other from being released.
        self._each(ActivePart.close, parts, Patience(self._store.persist_threads))

    def _each(
        self,
        work: Callable[[ActivePart], Result],
        parts: Iterable[ActivePart],
        patience: Patience | None = None,
    ) -> list[Result]:
        threads = self._store.persist_threads
        return for_each(work, list(parts), threads, "partfile-persist", patience=patience)


def encoded_by_bucket(encoded: EncodedRows, slices: Sequence[Slice]) -> Iterator[tuple[str, int, bytes | memoryview]]:
    """Bucket, number of rows and bytes, once a bucket, from slices of which several may be of one bucket."""
    runs: dict[str, list[Slice]] = {}
    for one in slices:
        runs.setdefault(one.bucket, []).append(one)
    for bucket, own in runs.items():
        pieces = [encoded.rows(one.start, one.stop) for one in own]
        yield bucket, sum(one.stop - one.start for one in own), pieces[0] if len(pieces) == 1 else b"".join(pieces)


def assigned_to(state: Iterable[SubtaskSnapshot], subtask: int) -> SubtaskSnapshot:
    """The share of one subtask, or an empty one."""
    for snapshot in state:
        if snapshot.subtask == subtask:
            return snapshot
    return SubtaskSnapshot(subtask=subtask)
