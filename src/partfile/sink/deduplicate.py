"""Deduplication: which rows of a batch have keys that were not seen before, and the runs that hold the keys.

New keys are sorted in memory and become a run with the next checkpoint, which names it beside the parts, so that
neither is ever ahead of the other. Runs of about one size are merged, so that there are few to look in. Runs of keys
that expire at different times are not, so that a whole file falls when its last key has expired.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partfile.errors import CheckpointMismatch, ConfigError
from partfile.sink.policies import Latest
from partfile.sink.states import HASH_VERSION, RunFile, SeenKeys, UnneededRun
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.key_hash import hashes_of, kind_of
from partfile.snapshot.run_file import MAX_KEYS, Run, decode_run, encode_run, merged, run_of
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from partfile.sink.policies import Deduplicate
    from partfile.sink.settings import SinkSettings
    from partfile.snapshot.key_hash import Hashes, Words
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.snapshot.streams import CheckpointStreamFactory

    Bools = NDArray[np.bool_]


_ROWS_AT_ONCE = 1 << 19
"""Rows whose keys are hashed and looked for at a time."""
_MOST_KEYS_IN_MEMORY = 1 << 20
"""New keys, some 20 MiB. More go to a run file before the next checkpoint, which names it."""
_EXPIRY_CLASSES = 8
"""A ``ttl`` has so many classes: keys of one class are merged, and a file outlives its first key by an eighth more."""
_MAPPED_BYTES = 1 << 20
"""Larger runs are read where they lie on disk."""


@dataclass(frozen=True, slots=True)
class _HeldRun:
    """A run, and the file that it has."""

    run: Run
    file: RunFile | None
    """None if no checkpoint can name it yet."""


class Deduplicator:
    """Finds the rows of a sink whose keys are new. Belongs to one run of the sink, and to one thread.

    Memory: the keys since the last checkpoint, at most some 20 MiB, and while runs are merged as much as the largest
    has; the rest is mapped from files.

    Args:
        settings: The sink's, for messages.
        options: Which columns are the key, and for how long.
        storage: The checkpoints of the sink.
        seen: The keys of the checkpoint that this run goes on from, which ``check_same_keys`` has let pass; None if
            there are none.

    Raises:
        SnapshotCorrupt: A run is missing or damaged.
    """

    def __init__(
        self, settings: SinkSettings, options: Deduplicate, storage: CheckpointStorage, seen: SeenKeys | None
    ) -> None:
        self._settings = settings
        self._options = options
        self._storage = storage
        self._kinds = None if seen is None else seen.kinds
        self._time_ms = 0 if seen is None else seen.time_ms
        self._runs = [_HeldRun(self._opened(file), file) for file in seen.runs] if seen is not None else []
        """Oldest first; those without a file last."""
        self._given_up: list[str] = []
        """Files of runs that were merged or have expired since the last checkpoint."""
        self.duplicates = 0
        """Rows that were left out so far."""

    def kept(self, batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
        """The rows of a batch whose keys are new, in their order; their keys are not new any more.

        Args:
            batch: The rows.
            now_ms: The sink's time, in milliseconds since 1970.

        Raises:
            ConfigError: A column of the key is not there, or its type can be no key, or a row has no key and
                ``on_null="fail"``.
            CheckpointMismatch: A column of the key has values of another kind than before.
        """
        self._time_ms = max(self._time_ms, now_ms)
        self._drop_expired()
        columns = self._columns(batch)
        if self._options.keep != "any":
            columns.append(self._column(batch, self._options.keep.column, "of which it keeps one row of a key"))
        begins = range(0, batch.num_rows, _ROWS_AT_ONCE)
        pieces = [self._is_new([column.slice(begin, _ROWS_AT_ONCE) for column in columns], begin) for begin in begins]
        is_kept = np.concatenate([np.zeros(0, np.bool_), *pieces])
        left_out = batch.num_rows - int(is_kept.sum())
        self.duplicates += left_out
        return rows_of(batch, is_kept) if left_out else batch

    def _columns(self, batch: pa.RecordBatch) -> list[pa.Array[Any]]:
        columns, kinds = [], []
        for name in self._options.columns:
            column = self._column(batch, name, "by which it deduplicates")
            kind = kind_of(column.type)
            if kind is None:
                raise ConfigError(
                    f"column {name!r} of type {column.type} can be no key: keys are strings, binary, integers, "
                    "booleans, dates, timestamps and decimals of up to 38 digits",
                    hint="Cast it before, for instance to string; or name another column: "
                    f"deduplicate=partfile.Deduplicate({_meant(name, batch.schema)!r})",
                )
            columns.append(column)
            kinds.append(kind)
        self._kinds = self._kinds or tuple(kinds)
        if self._kinds != tuple(kinds):
            raise CheckpointMismatch(
                f"columns {list(self._options.columns)} of the key have values of the kinds {kinds}, and before "
                f"{list(self._kinds)}: the same values would be other keys",
                hint="Cast them to what they were before; or forget the keys, so that rows with them are written "
                f"again: {self._settings.forget_command(self._storage.job)}",
            )
        return columns

    def _column(self, batch: pa.RecordBatch, name: str, what: str) -> pa.Array[Any]:
        found = batch.schema.get_all_field_indices(name)
        if len(found) != 1:
            has = "no column" if not found else f"{len(found)} columns"
            raise ConfigError(
                f"the rows of sink {self._settings.uid!r} have {has} {name!r}, {what}; they have {batch.schema.names}",
                hint=f"Name a column of theirs: deduplicate=partfile.Deduplicate({_meant(name, batch.schema)!r})",
            )
        return batch.column(found[0])

    def _is_new(self, columns: list[pa.Array[Any]], begin: int) -> Bools:
        """Which rows are to be written; enters their keys."""
        hashes = self._hashes(columns[: len(self._options.columns)])
        self._check_nulls(hashes, begin)
        is_kept = hashes.is_null & (self._options.on_null == "keep")
        rows = self._in_order(columns, np.flatnonzero(~hashes.is_null))
        if not len(rows):
            return is_kept
        high, low, first = _first_of_each(hashes.high[rows], hashes.low[rows])
        is_seen = self._is_seen(high, low)
        is_kept[rows[first[~is_seen]]] = True
        # Without a ttl there is no time to begin anew.
        prolongs = self._options.refresh == "read" and self._options.ttl_ms is not None
        entered = slice(None) if prolongs else ~is_seen
        self._enter(high[entered], low[entered])
        return is_kept

    def _hashes(self, columns: list[pa.Array[Any]]) -> Hashes:
        try:
            return hashes_of(columns)
        except pa.ArrowInvalid as error:
            raise ConfigError(
                f"columns {list(self._options.columns)} of the key have a value that no key can have: {error}",
                hint="Cast them before, for instance to string: table.set_column(0, 'id', "
                "table['id'].cast(pyarrow.string()))",
            ) from error

    def _in_order(self, columns: list[pa.Array[Any]], rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Rows in such an order that of each key the first one is the one to keep."""
        if self._options.keep == "any":
            return rows
        order = "descending" if isinstance(self._options.keep, Latest) else "ascending"
        try:
            # Equal values stay in the order of their rows.
            sorted_rows = pc.array_sort_indices(columns[-1].take(pa.array(rows)), order=order, null_placement="at_end")
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(
                f"keep={self._options.keep!r}: values of type {columns[-1].type} have no order",
                hint="Name a column of numbers, text, dates or times: keep=partfile.Latest('ts')",
            ) from error
        return rows.take(np.asarray(sorted_rows))

    def _check_nulls(self, hashes: Hashes, begin: int) -> None:
        if self._options.on_null == "fail" and hashes.is_null.any():
            row = begin + int(np.argmax(hashes.is_null))
            raise ConfigError(
                f"row {row} of the batch has no key: {list(self._options.columns)} are null in it",
                hint="Give it one; or let such rows be written, each of them: Deduplicate(..., on_null='keep')",
            )

    def _is_seen(self, high: Words, low: Words) -> Bools:
        """Which of some keys, ascending, have been entered and have not expired."""
        is_seen = np.zeros(len(high), np.bool_)
        asked = np.arange(len(high))
        # A key that is in two runs has its latest time in the younger one.
        for held in reversed(self._runs):
            if not len(asked):
                break
            if self._is_expired(held.run.last_ms):
                continue
            places = held.run.find(high[asked], low[asked])
            is_in = places >= 0
            if self._is_expired(held.run.first_ms):
                times = held.run.times(places[is_in])
                is_in[is_in] = times + (self._options.ttl_ms or 0) > self._time_ms
            is_seen[asked[is_in]] = True
            asked = asked[~is_in]
        return is_seen

    def _is_expired(self, time_ms: int) -> bool:
        return self._options.ttl_ms is not None and time_ms + self._options.ttl_ms <= self._time_ms

    def _enter(self, high: Words, low: Words) -> None:
        if not len(high):
            return
        times = np.full(len(high), self._time_ms, np.int64)
        self._runs.append(_HeldRun(run_of(high, low, times), None))
        self._merge(self._fresh_from)
        if sum(held.run.keys for held in self._runs[self._fresh_from :]) >= _MOST_KEYS_IN_MEMORY:
            # No checkpoint names these files before the next one does. If it never comes, they are orphans.
            self._write_runs(self._storage.stream_factory(1))

    @property
    def _fresh_from(self) -> int:
        """The place of the first run that has no file."""
        return next((at for at, held in enumerate(self._runs) if held.file is None), len(self._runs))

    def _merge(self, begin: int) -> None:
        """Merge the youngest runs, from a place on, while the last is at least half as large as the one before it.

        So their number grows with the logarithm of the keys.
        """
        runs = self._runs
        while len(runs) >= begin + 2:
            one, other = runs[-2].run, runs[-1].run
            if (
                other.keys * 2 < one.keys
                or one.keys + other.keys > MAX_KEYS
                or self._class_of(one) != self._class_of(other)
            ):
                return
            self._give_up(runs[-2:])
            runs[-2:] = [_HeldRun(merged([one, other]), None)]

    def _drop_expired(self) -> None:
        self._give_up(held for held in self._runs if self._is_expired(held.run.last_ms))
        self._runs = [held for held in self._runs if not self._is_expired(held.run.last_ms)]

    def _give_up(self, runs: Iterable[_HeldRun]) -> None:
        handles = [held.file.handle for held in runs if held.file is not None]
        self._given_up += [handle.path for handle in handles if isinstance(handle, FileHandle)]

    def _class_of(self, run: Run) -> tuple[int, int]:
        if self._options.ttl_ms is None:
            return (0, 0)
        width_ms = max(1, self._options.ttl_ms // _EXPIRY_CLASSES)
        return (run.first_ms // width_ms, run.last_ms // width_ms)

    def snapshot(self, before: SeenKeys | None, checkpoint_id: int, now_ms: int) -> SeenKeys | None:
        """The keys as the next checkpoint is to hold them. What is new of them is durable when this returns.

        Args:
            before: What the newest checkpoint holds.
            checkpoint_id: The next checkpoint.
            now_ms: The sink's time, in milliseconds since 1970.
        """
        self._time_ms = max(self._time_ms, now_ms)
        if self._kinds is None:
            return before
        self._drop_expired()
        if any(held.file is None for held in self._runs):
            self._merge(0)
        self._write_runs(self._storage.stream_factory(checkpoint_id))
        given_up, self._given_up = self._given_up, []
        return SeenKeys(
            columns=self._options.columns,
            kinds=self._kinds,
            hash_version=HASH_VERSION,
            ttl_ms=self._options.ttl_ms,
            time_ms=self._time_ms,
            runs=tuple(held.file for held in self._runs if held.file is not None),
            unneeded=(
                *(before.unneeded if before else ()),
                *(UnneededRun(path=path, since=checkpoint_id) for path in given_up),
            ),
        )

    def _write_runs(self, streams: CheckpointStreamFactory) -> None:
        """Give each run without a file one, or its place in the checkpoint if it is small."""
        for at, held in enumerate(self._runs):
            if held.file is not None:
                continue
            handle, run = streams.keep(encode_run(held.run), Scope.SHARED), held.run
            file = RunFile(handle=handle, keys=run.keys, first_ms=run.first_ms, last_ms=run.last_ms)
            is_mapped = handle.size_bytes > _MAPPED_BYTES
            self._runs[at] = _HeldRun(self._opened(file) if is_mapped else held.run, file)

    def _opened(self, file: RunFile) -> Run:
        return opened_run(self._storage, file)


def _meant(name: str, schema: pa.Schema) -> str:
    """The column that was probably meant as a key: one of a similar name, or the first that can be one."""
    able = [field.name for field in schema if field.name != name and kind_of(field.type) is not None]
    near = [one for one in able if one.lower() == name.lower()] or difflib.get_close_matches(name, able, 1)
    return str([*near, *able, "id"][0])


def opened_run(storage: CheckpointStorage, file: RunFile) -> Run:
    """A run that a checkpoint names, all of it checked; a large one is not held in memory.

    Raises:
        SnapshotCorrupt: It is missing or damaged, or not the one that the checkpoint names.
    """
    handle = file.handle
    shown = f"{storage.store.base}/{storage.path(handle.path)}" if isinstance(handle, FileHandle) else "an inline run"
    data = storage.map_bytes(handle) if handle.size_bytes > _MAPPED_BYTES else storage.read_bytes(handle)
    return decode_run(data, shown)


def rows_of(batch: pa.RecordBatch, is_kept: Bools) -> pa.RecordBatch:
    """The rows of a batch that a mask names, in their order and with their columns as they are.

    Args:
        batch: The rows.
        is_kept: True for each that stays.
    """
    try:
        return batch.filter(pa.array(is_kept))
    except pa.ArrowNotImplementedError:
        # Arrow filters no views and no run-end encoded columns, and joins slices of them.
        edges = np.flatnonzero(np.diff(np.concatenate([[False], is_kept, [False]])))
        slices = [batch.slice(begin, end - begin) for begin, end in edges.reshape(-1, 2).tolist()]
        return pa.concat_batches(slices) if slices else batch.slice(0, 0)


def _first_of_each(high: Words, low: Words) -> tuple[Words, Words, NDArray[np.intp]]:
    """The keys, ascending and each once, and the first row that each is in."""
    rows = np.argsort(high)
    sorted_high, sorted_low = high[rows], low[rows]
    near = sorted_high[1:] == sorted_high[:-1]
    if not near.any():
        return sorted_high, sorted_low, rows
    if (near & (sorted_low[1:] != sorted_low[:-1])).any():
        rows = np.lexsort((low, high))
        sorted_high, sorted_low = high[rows], low[rows]
        near = (sorted_high[1:] == sorted_high[:-1]) & (sorted_low[1:] == sorted_low[:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~near]))
    return sorted_high[starts], sorted_low[starts], np.minimum.reduceat(rows, starts)
