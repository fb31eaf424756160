"""The sink without Spark: one operator and its coordinator in one process."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from itertools import islice
from threading import RLock
from typing import TYPE_CHECKING, Any, Self, cast

from partfile.errors import CheckpointMismatch, ConfigError, PartfileError
from partfile.quantities import seconds_in
from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.report import progress_of, report
from partfile.sink.restore import RestoreTerms
from partfile.sink.restore_rules import check_same_keys
from partfile.sink.rows import (
    ROWS_AT_ONCE,
    batches_of,
    chunks_of,
    count_in,
    counted,
    items_of,
    kept_position,
)
from partfile.sink.savepoints import reserved_savepoint
from partfile.sink.schema import schema_of
from partfile.sink.states import assigned_to

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa
    from pydantic import JsonValue

    from partfile.sink.coordinator import TriggeredCheckpoint
    from partfile.sink.deduplicate import Deduplicator
    from partfile.sink.progress import BatchProgress
    from partfile.sink.rows import Row, Rows
    from partfile.sink.settings import SinkSettings
    from partfile.sink.states import RowSchema, SeenKeys, StreamPosition


_MIN_INTERVAL_S = 0.001
_MAX_INTERVAL_S = 365 * 24 * 60 * 60


def milliseconds_of(interval_s: object) -> int | None:
    """An interval between checkpoints, from seconds, a ``timedelta`` or text such as ``1m``; None for none.

    Raises:
        ConfigError: It is none of them, or makes no sense.
    """
    if interval_s is None:
        return None
    if isinstance(interval_s, timedelta):
        interval_s = interval_s.total_seconds()
    elif isinstance(interval_s, str):
        interval_s = seconds_in(interval_s) or interval_s
    if (
        isinstance(interval_s, int | float)
        and _MIN_INTERVAL_S <= interval_s <= _MAX_INTERVAL_S
        and interval_s is not True
    ):
        return round(interval_s * 1000)
    raise ConfigError(
        f"checkpoint_interval_s is {interval_s!r}; it must be from {_MIN_INTERVAL_S} to {_MAX_INTERVAL_S} s",
        hint="Write seconds, a timedelta, or for instance '1m'; without it checkpoint() alone takes checkpoints.",
    )


logger = logging.getLogger("partfile")

_MAX_SUBTASK = 999_999
_ANOTHER = "Make another one, with sink.local() as out, and go on from out.position."


class LocalSink:
    """Writes rows to part files from plain Python, exactly once between checkpoints.

    Rows count once ``checkpoint`` has returned. After a crash, go on from ``position``: what was passed to the last
    completed checkpoint. Leaving the ``with`` block ends cleanly: a last checkpoint publishes every part. Leaving it by
    an exception publishes nothing that was not checkpointed.

    Args:
        settings: The sink's options.
        subtask_index: Tells independent writers with one uid apart: each has a checkpoint log of its own.
        checkpoint_interval_s: From one checkpoint to the next that is taken without being asked for; None takes none.
            There is no thread: ``write`` and ``poll`` look at the clock.
        schema: The columns of rows that are handed over as dictionaries.
    """

    def __init__(
        self,
        settings: SinkSettings,
        subtask_index: int = 0,
        checkpoint_interval_s: float | str | timedelta | None = None,
        schema: pa.Schema | Mapping[str, object] | None = None,
    ) -> None:
        self._settings = settings
        self._schema = schema_of(schema)
        self._interval_ms = milliseconds_of(checkpoint_interval_s)
        self._runtime = Runtime(settings, _job(settings.uid, subtask_index), interval_ms=self._interval_ms)
        self._operator = SinkOperator(self._runtime.store, settings.description)
        self._deduplicator: Deduplicator | None = None
        self._told_duplicates = 0
        self._subtask = subtask_index
        self._told_rows = self._told_bytes = 0
        self._position: JsonValue = None
        self._is_behind = False
        """Whether rows have been written that ``_position`` does not cover."""
        self._has_warned = False
        self._row_schema: RowSchema | None = None
        """Of all rows written so far, those since the last checkpoint among them."""
        self._last_schema: pa.Schema | None = None
        """Of the last rows, so that equal ones are not compared again."""
        self._opened = False
        self._closed = False
        self._counts = False
        self._looked_at_ms = 0
        self._in_use = RLock()

    @property
    def position(self) -> JsonValue:
        """What was passed to the newest completed checkpoint; None before the first."""
        return deepcopy(self._runtime.coordinator.state.position.user_position)

    @property
    def history(self) -> str:
        """What the rows of this sink go on from; another text once they have gone back to a savepoint."""
        position = self._runtime.coordinator.state.position
        return f"{position.chain}/{position.restored_from or ''}"

    def open(self) -> Self:
        """Restore: finalize and publish what the last run left, and take the sink over from it.

        Raises:
            SnapshotCorrupt: The newest checkpoint cannot be read; nothing was changed.
            CheckpointMismatch: A Spark query writes with this uid; nothing was changed.
        """
        if self._opened or self._closed:
            raise PartfileError(f"the sink has been {'closed' if self._closed else 'opened'} already", hint=_ANOTHER)
        try:
            self._restore(self._settings.now_ms())
        except BaseException:
            self.close()
            raise
        self._opened = True
        return self

    def _restore(self, now_ms: int) -> None:
        terms = RestoreTerms(restore_from=self._settings.restore_from)
        self._runtime.coordinator.start(self._check_writer, now_ms, terms, open_keys=self._open_keys)
        state = assigned_to(self._runtime.coordinator.assignment(), 0)
        fresh = state.model_copy(
            update={"subtask": self._subtask, "max_count": self._runtime.coordinator.state.max_count}
        )
        self._operator.open(self._context(now_ms), fresh)
        self._position = self.position
        self._row_schema = self._runtime.coordinator.state.position.row_schema
        self._looked_at_ms = now_ms

    def _check_writer(self, stands: StreamPosition) -> None:
        settings = self._settings
        check_same_keys(settings, self._runtime.job, stands.seen_keys, settings.deduplicate, settings.restore_from)
        if stands.query is not None:
            chosen = self._settings.restore_from
            what = f"uid {self._settings.uid!r}" if chosen is None else f"what restore_from={chosen!r} or the uid names"
            raise CheckpointMismatch(
                f"{what} has been written by Spark query {stands.query.query_id}",
                hint=(
                    "Spark keeps that stream's position, which means nothing here. Use another uid=NAME or snapshot."
                ),
            )

    def _open_keys(self, seen: SeenKeys | None) -> None:
        """Open the keys of the rows so far, before there is a takeover: raises what ``Deduplicator`` does."""
        options = self._settings.deduplicate
        if options is None:
            return
        from partfile.sink.deduplicate import Deduplicator  # noqa: PLC0415 - few sinks need it.

        self._deduplicator = Deduplicator(self._settings, options, self._runtime.storage, seen)

    def write(self, rows: Rows, position: JsonValue = None) -> None:
        """Add rows. They are not durable before the next checkpoint, which is taken here if the interval is over.

        If it fails, some of the rows may be in their parts and others not; so the sink is closed, and nothing since the
        last checkpoint counts.

        Args:
            rows: A pyarrow table or batch, a frame of polars or pandas (without its index), a relation of DuckDB,
                anything else that has ``__arrow_c_stream__`` or ``__arrow_c_array__``; or a list of dictionaries, with
                ``local(schema=...)``. A stream is read while it is written.
            position: Where the input stands after these rows, for instance an offset; the next checkpoint keeps it. Any
                JSON value that is not None, of at most 1 MiB. Required with ``checkpoint_interval_s``. Once one was
                passed, pass one with the last rows before a checkpoint: the log warns of a checkpoint with rows behind
                its position.

        Raises:
            ConfigError: ``rows`` or ``position`` is of a wrong type, ``position`` is too large, or values of
                dictionaries do not fit the schema; nothing was written, and the sink stays open. Where the bucketer,
                the format or ``deduplicate`` refuses the rows, it is closed.
            CheckpointMismatch: ``on_schema_change`` does not let the columns pass; the sink is closed.
            Fenced, OutcomeUnknown: As of ``checkpoint``.
        """
        with self._alone():
            position = kept_position(position)
            if position is None and self._interval_ms is not None:
                raise ConfigError(
                    "write needs a position where checkpoint_interval_s is set: any write may end with a checkpoint",
                    hint="Pass where the input stands after these rows; or set no interval, and call checkpoint().",
                )
            batches, before = batches_of(rows, self._schema), self._operator.rows_written
            now_ms, taken = self._settings.now_ms(), 0
            try:
                with self._runtime.coordinator.fence_told():
                    self._operator.advance(self._context(now_ms))
                    for batch in batches:
                        if batch.num_rows:
                            # Before the rows: what is refused must not be in a part.
                            self._note_schema(batch.schema)
                        kept = batch if self._deduplicator is None else self._deduplicator.kept(batch, now_ms, taken)
                        self._operator.write(kept)
                        taken += batch.num_rows
            except BaseException:
                self.close()
                raise
            if position is not None:
                self._position, self._is_behind = position, False
            elif self._position is not None and self._operator.rows_written > before:
                self._is_behind = True
            self.poll()

    def write_all(
        self,
        rows: Iterable[Rows | Row],
        *,
        checkpoint_every: int = 100_000,
        position: Callable[[Any], object] | None = None,
    ) -> int:
        """Write all that an iterable yields, with a checkpoint after every so many rows and one at the end.

        Without ``position`` the items are counted, and a run after a crash passes over those that count already. So one
        iterable belongs to one uid, and each run must yield the same items, in the same order: lines of one file, rows
        of a sorted query. The position has the count, and a checksum of the last item, if that is a dictionary: a run
        that yields another one in its place is refused.

        Args:
            rows: Dictionaries, a row each, or whatever ``write`` takes. What a dictionary holds is taken when the next
                item is asked for at the latest; other values in it must not be changed in place.
            checkpoint_every: A checkpoint is taken once so many rows have come since the last one, duplicates too.
            position: Tells where the input stands after an item, for instance its offset. Then nothing is passed over:
                begin the iterable behind ``self.position``.

        Returns:
            How many rows this call has written.

        Raises:
            ConfigError: As of ``write``; or the iterable has fewer items than were written before, or others; or the
                position that the sink stands at is no count, or is one and ``position`` is passed. What was
                checkpointed before counts.
            CheckpointMismatch: As of ``write``; names the item.
            PartfileError: It has counted the items of another iterable since it was opened.
            Fenced, OutcomeUnknown: As of ``checkpoint``.
        """
        with self._alone():
            if type(checkpoint_every) is not int or checkpoint_every < 1:
                raise ConfigError(
                    f"checkpoint_every is {checkpoint_every!r}; it must be a number of rows, at least 1",
                    hint="Write for instance checkpoint_every=100_000; for time, local(checkpoint_interval_s=60).",
                )
            if position is not None and not callable(position):
                raise ConfigError(
                    f"position of write_all is {position!r}; it must be a function",
                    hint="Write position=lambda item: ..., which returns where the input stands after the item.",
                )
            items = items_of(rows)
            done = self._pass_over(items) if position is None else self._start_behind()
            most = min(ROWS_AT_ONCE, checkpoint_every)
            before, last = self._operator.rows_written, self._rows_taken
            for chunk in chunks_of(items, position, done=done, most=most, is_due=self._is_interval_over):
                try:
                    self.write(cast("Rows", chunk.rows), chunk.stands)
                except (ConfigError, CheckpointMismatch) as error:
                    where = f"position {chunk.stands!r}" if position is not None else f"item {count_in(chunk.stands)}"
                    those = "rows" if chunk.items == 1 else f"{chunk.items} rows"
                    error.message = f"{error.message} (of the {those} up to {where} of the iterable)"
                    raise
                if self._rows_taken - last >= checkpoint_every:
                    self.checkpoint()
                    last = self._rows_taken
            self.checkpoint()
            return self._operator.rows_written - before

    def _note_schema(self, schema: pa.Schema) -> None:
        """Take in the schema of the rows that come now; raises CheckpointMismatch."""
        if self._last_schema is None or not schema.equals(self._last_schema):
            self._row_schema = self._settings.row_schema_after(self._row_schema, schema)
            self._last_schema = schema

    def _start_behind(self) -> int:
        """Refuse a position of items where the last run counted them: all that it wrote would be written again."""
        done = count_in(self._position)
        if done:
            raise ConfigError(
                f"the sink has counted {done} items, so it does not know which position comes behind them",
                hint=(
                    f"Leave position= out. Or begin the iterable behind item {done}, and say once before where that "
                    "is: out.checkpoint(position=17)"
                ),
            )
        return 0

    def _pass_over(self, items: Iterator[Any]) -> int:
        """Pass over the items that count already; returns how many."""
        if self._counts:
            raise PartfileError(
                "write_all has counted the items of another iterable since this sink was opened",
                hint="Write them as one: write_all(itertools.chain(these, those)); or pass position=.",
            )
        done = count_in(self._position)
        if done is None:
            raise ConfigError(
                f"the sink stands at position {self._position!r}, which is no count of items: write was told it",
                hint=(
                    "Begin the iterable behind out.position, and pass for instance position=lambda item: "
                    "item['offset']."
                ),
            )
        passed, last = 0, None
        for item in islice(items, done):
            passed, last = passed + 1, item
        if passed < done:
            raise ConfigError(
                f"the iterable has {passed} items, and {done} were written before",
                hint=(
                    "Let it yield the same items as before, from the first on. If it begins behind them, say once "
                    "where that is, out.checkpoint(position=17), and pass position=lambda item: item['offset']."
                ),
            )
        if done and counted(done, last) != self._position:
            raise ConfigError(
                f"item {done} of the iterable is another one than the item {done} that was written before",
                hint=(
                    "Where its rows were changed, as by a column more, tell them by what stays: say once where they "
                    "stand, out.checkpoint(position=17), and pass position=lambda item: item['offset']. For other "
                    "rows, as another day's, take another uid=NAME."
                ),
            )
        if done:
            logger.info("%s: %d items count already, and are passed over", self._settings.uid, done)
        self._counts = True
        return done

    def _is_interval_over(self) -> bool:
        """Whether rows that wait may keep a periodic checkpoint waiting: they are written four times an interval."""
        if self._interval_ms is None:
            return False
        now_ms = self._settings.now_ms()
        # R8: a clock that was set back says nothing of how long they have waited.
        if not 0 <= now_ms - self._looked_at_ms < self._interval_ms // 4:
            self._looked_at_ms = now_ms
            return True
        return False

    def poll(self) -> BatchProgress | None:
        """Take the periodic checkpoint if it is due; call it while there are no rows to write.

        Returns:
            None if it is not due, or ``checkpoint_interval_s`` is not set.

        Raises:
            Fenced, OutcomeUnknown: As of ``checkpoint``.
        """
        with self._alone():
            if self._interval_ms is None:
                return None
            try:
                triggered = self._runtime.coordinator.trigger_if_due(self._settings.now_ms())
                return None if triggered is None else self._complete(triggered)
            except BaseException:
                self.close()
                raise

    def checkpoint(self, position: JsonValue = None) -> BatchProgress:
        """Make every row written so far count, exactly once, and publish the parts that have rolled.

        Args:
            position: Where the input stands, at most 1 MiB of JSON; None keeps what ``write`` was told last. Given back
                as ``position`` after a restore.

        Raises:
            ConfigError: ``position`` is no JSON value, or is too large; there is no checkpoint, and the sink stays
                open.
            Fenced: Another process has taken the sink over; this one is closed.
            OutcomeUnknown: The checkpoint may be complete; open a new sink and look at its ``position``.
        """
        with self._alone():
            position = kept_position(position)
            if position is not None:
                self._position, self._is_behind = position, False
            try:
                return self._checkpoint()
            except BaseException:
                self.close()
                raise

    def savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """Make every row written so far count, publish every part, and take a savepoint; the sink goes on.

        Args:
            directory: Where to make it; None takes ``savepoint_dir``.

        Returns:
            Its location, for ``restore_from``.

        Raises:
            ConfigError: There is no directory for it; nothing was changed.
            PartfileError: A part could not be published; there is no savepoint.
            StoreError: The directory cannot be written; there is no savepoint.
        """
        return self._savepoint(directory, ends_the_job=False)

    def stop_with_savepoint(self, directory: str | os.PathLike[str] | None = None) -> str:
        """End with a savepoint instead of ``finish``: nothing is written after it; raises as ``savepoint``."""
        location = self._savepoint(directory, ends_the_job=True)
        self.close()
        return location

    def _savepoint(self, directory: str | os.PathLike[str] | None, *, ends_the_job: bool) -> str:
        with self._alone():
            coordinator = self._runtime.coordinator
            with reserved_savepoint(self._settings, coordinator.job, directory) as reserved:
                try:
                    self._roll_all()
                    self._checkpoint()
                    coordinator.close_all(self._settings.now_ms())
                except BaseException:
                    self.close()
                    raise
                try:
                    return reserved.complete(coordinator, self._settings.now_ms(), ends_the_job=ends_the_job)
                except BaseException:
                    if ends_the_job:
                        self.close()
                    raise

    def close(self) -> None:
        """Release everything without a checkpoint: rows since the last one do not count.

        Waits for a call of another thread: a file that is closed under it may be another file by its next write.
        """
        with self._in_use:
            self._opened = False
            self._closed = True
            # Its runs are mapped: what is not let go of keeps their copies on disk.
            self._deduplicator = None
            try:
                self._operator.close()
            finally:
                self._runtime.close()

    def finish(self, position: JsonValue = None) -> BatchProgress:
        """End cleanly: a last checkpoint that publishes every part, or keeps them all with ``on_stop="keep"``.

        Args:
            position: As of ``checkpoint``.

        Raises:
            NotReady: The sink has ended, and not all is published yet: a later start, or recover, does it.
        """
        with self._alone():
            keep, coordinator = self._settings.on_stop == "keep", self._runtime.coordinator
            try:
                if not keep:
                    self._roll_all()
                done = self.checkpoint(position)
                self._operator.close()
                coordinator.close_all(self._settings.now_ms(), keep=keep)
                if not keep:
                    coordinator.discard_staging_files(self._settings.now_ms())
            finally:
                self.close()
            if not keep:
                coordinator.check_all_is_visible()
            return done

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._opened:
                self.finish()
        finally:
            self.close()

    def _warn_of_rows_behind(self) -> None:
        """Log once that a checkpoint holds rows which its position does not cover."""
        if self._is_behind and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: rows were written without a position after position=%r. A run that goes on from there writes them "
                "again: call checkpoint(position=...), or write(rows, position=...)",
                self._settings.uid,
                self._position,
            )

    def _checkpoint(self) -> BatchProgress:
        return self._complete(self._runtime.coordinator.trigger(self._settings.now_ms()))

    def _complete(self, triggered: TriggeredCheckpoint) -> BatchProgress:
        coordinator = self._runtime.coordinator
        self._warn_of_rows_behind()
        changed = {"user_position": self._position, "row_schema": self._row_schema}
        with self._runtime.coordinator.fence_told():
            self._operator.advance(self._context(triggered.time_ms))
            snapshot = self._operator.snapshot(triggered.checkpoint_id)
            if self._deduplicator is not None:
                # Durable before the checkpoint that names them, as the parts are.
                known = coordinator.state.position.seen_keys
                changed["seen_keys"] = self._deduplicator.snapshot(known, triggered.checkpoint_id, triggered.time_ms)
        stands = coordinator.state.position.model_copy(update=changed)
        # Inside its own checkpoint log the operator is the only subtask; its index shows in the names of parts alone.
        acknowledged = [snapshot.model_copy(update={"subtask": 0})]
        done = coordinator.complete(triggered, acknowledged, stands, self._settings.now_ms())
        self._operator.notify_checkpoint_complete(done.checkpoint_id)
        progress = progress_of(
            self._settings.uid,
            coordinator,
            done,
            acknowledged,
            rows=self._operator.rows_written - self._told_rows,
            added_bytes=self._operator.bytes_written - self._told_bytes,
            duplicates=self._duplicates - self._told_duplicates,
        )
        self._told_duplicates = self._duplicates
        self._told_rows, self._told_bytes = self._operator.rows_written, self._operator.bytes_written
        report(progress, self._settings.on_progress)
        return progress

    @property
    def _rows_taken(self) -> int:
        return self._operator.rows_written + self._duplicates

    @property
    def _duplicates(self) -> int:
        return 0 if self._deduplicator is None else self._deduplicator.duplicates

    def _roll_all(self) -> None:
        with self._runtime.coordinator.fence_told():
            self._operator.roll_all()

    def _context(self, now_ms: int) -> SubtaskContext:
        coordinator = self._runtime.coordinator
        return SubtaskContext(
            subtask=self._subtask,
            attempt=0,
            epoch=coordinator.epoch,
            chain=coordinator.state.position.chain,
            batch_time_ms=now_ms,
            may_keep=self._runtime.may_append,
            may_stage=self._runtime.may_stage,
            encoded_ratio=coordinator.state.position.encoded_ratio,
        )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a call while another thread is in one; the other one goes on."""
        if not self._in_use.acquire(blocking=False):
            raise PartfileError(
                "another thread is using this LocalSink at this moment; nothing of this call was done",
                hint="Let one thread write what the others put into a queue, or give each its own: "
                "local(subtask_index=N).",
            )
        try:
            self._check_open()
            yield
        finally:
            self._in_use.release()

    def _check_open(self) -> None:
        if not self._opened:
            if self._closed:
                raise PartfileError("the sink is not open any more: it was closed, perhaps by an error", hint=_ANOTHER)
            raise PartfileError("the sink is not open", hint="Use it in a with block, or call open() first.")


def _job(uid: str, subtask_index: object) -> str:
    if not isinstance(subtask_index, int) or not 0 <= subtask_index <= _MAX_SUBTASK:
        raise ConfigError(
            f"subtask_index is {subtask_index!r}; it must be a number from 0 to {_MAX_SUBTASK}",
            hint="Write sink.local(subtask_index=0) in the first writer, 1 in the next.",
        )
    # No uid has a tilde in it, so no other sink's checkpoint log has this name.
    return uid if subtask_index == 0 else f"{uid}~{subtask_index}"
