"""The sink's operator: one subtask's parts between two checkpoints. Runs without Spark; Spark's tasks run it too."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from partfile.bucketers.split import check_buckets
from partfile.filesystems.errors import LeaseUnavailable, PartfileError
from partfile.filesystems.tokens import new_token
from partfile.sink import lifecycle
from partfile.sink.active_part import ActivePart, held_part
from partfile.sink.bucket_slices import encoded_by_bucket, rows_by_bucket
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.fresh_parts import final_path, fresh_part
from partfile.sink.left_parts import LeftParts
from partfile.sink.lifecycle import Action
from partfile.sink.row_layout import RowLayouts
from partfile.sink.shared_names import own_path
from partfile.sink.shared_stages import OpenParts, longest_bucket, parted, shared_rows
from partfile.sink.states import SubtaskSnapshot
from partfile.writers.port import EncodedRows, RowFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from partfile.filesystems.port import PartStore
    from partfile.sink.description import SinkDescription, SubtaskContext
    from partfile.sink.row_layout import RowLayout
    from partfile.sink.states import OpenPart
    from partfile.writers.port import Format

Key = tuple[str, str]
Result = TypeVar("Result")


class SinkOperator:
    """Writes rows to parts: ``open``, ``write``, ``snapshot``, ``notify_checkpoint_complete``, ``close``.

    Args:
        store: Where the parts are.
        description: What to do with rows.
    """

    def __init__(self, store: PartStore, description: SinkDescription) -> None:
        self._store = store
        self._description = description
        self._staged_in = description.staged_in(travels=store.stages_travel)
        stage = None if description.recipe is None else self._staged_in
        self._layouts = RowLayouts(description.bucketer, description.format, stage)
        self._assigned: dict[Key, OpenPart] = {}
        self._active: OrderedDict[Key, ActivePart] = OrderedDict()
        self._suspended: set[str] = set()
        """In-progress names of assigned parts that this operator has written to: it may resume them in any case."""
        self._left = LeftParts(SubtaskSnapshot(subtask=0))
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
        self._left = LeftParts(state)
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
        content = form.encode(rows) if isinstance(form, RowFormat) else rows
        own = self._share(content, buckets, layout)
        if own is None:
            self._write_own(content, buckets, layout)
        elif len(own):
            self._write_own(content.take(own), buckets.take(own), layout)
        self.rows_written += batch.num_rows

    def _share(
        self, content: pa.RecordBatch | EncodedRows, buckets: pa.DictionaryArray[Any, Any], layout: RowLayout
    ) -> pa.Array[Any] | None:
        """Write what goes to the shared stage, if anything does, and return which rows are left then."""
        if self._description.shared_recipe is None or not self.context.may_stage:
            return None
        size_bytes = len(content.data) if isinstance(content, EncodedRows) else content.nbytes
        opened = OpenParts((self._active, self._assigned), layout.fingerprint)
        ways = parted(buckets, size_bytes, self._description.sharing, opened)
        if ways is None:
            return None
        shared = self._layouts.shared(layout)
        rows = shared_rows(content, ways.shared, buckets, shared.schema)
        # Its stage lies in the base: a path that is too long would be found out when it is too late.
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
            LeaseUnavailable: A part was taken away from under its name (S2).
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
            rolled=tuple(self._left.rolled),
            spent=tuple(self._left.spent),
            max_count=self._max_count,
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget the pending parts and stages of every checkpoint up to this one; the coordinator answers for them."""
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
    def _stages(self) -> bool:
        return self._description.recipe is not None and self.context.may_stage

    @property
    def _form(self) -> Format:
        return self._staged_in if self._stages else self._description.format

    @property
    def _may_keep(self) -> bool:
        return self.context.may_keep and self._form.appendable

    def _at_checkpoint(self, part: ActivePart) -> Action:
        policy, may_keep = self._description.rolling, self._may_keep
        return lifecycle.at_checkpoint(part.progress, policy, now_ms=self._now_ms, may_keep=may_keep)

    def _leave_due(self) -> None:
        """Let go of the parts nobody is writing whose time has come."""
        stay, over = lifecycle.due_at_checkpoint(
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
        if part is not None and lifecycle.before_rows(part.progress, self._description.rolling) is Action.ROLL:
            self._roll([key])
            part = None
        if part is None:
            over = lifecycle.beyond_cap(list(self._active), self._description.max_open_parts - 1)
            # A stage can be gone on with, and a file made of it now would be a small one.
            self._suspend(one for one in over if self._active[one].is_stage)
            self._roll(one for one in over if one in self._active)
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
            is_own=assigned.part.in_progress in self._suspended,
        )
        if action is Action.KEEP and (assigned.stage is not None) is self._is_staged(layout):
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
        return layout.is_shared or self._stages

    def _form_of(self, layout: RowLayout) -> Format:
        return self._staged_in if self._is_staged(layout) else self._description.format

    def _roll(self, keys: Iterable[Key]) -> None:
        patience = Patience(1)
        for part in self._ended(keys, ActivePart.end):
            self._left.roll(part, self._store, self._description.format, patience)

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
        self._each(ActivePart.close, parts, Patience(self._store.persist_threads))

    def _each(
        self,
        work: Callable[[ActivePart], Result],
        parts: Iterable[ActivePart],
        patience: Patience | None = None,
    ) -> list[Result]:
        threads = self._store.persist_threads
        return for_each(work, list(parts), threads, "partfile-persist", patience=patience)
