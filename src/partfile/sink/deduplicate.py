"""Deduplication: which rows of a batch have keys that were not seen before, and the runs that hold the keys.

New keys are sorted in memory and become a run with the next checkpoint, which names it beside the parts, so that
neither is ever ahead of the other. Runs of about one size are merged, so that there are few to look in. Runs of keys
that expire at different times are not, so that a whole file falls when its last key has expired.
"""

from __future__ import annotations

import difflib
import itertools
import logging
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from partfile.errors import CheckpointMismatch, ConfigError, SnapshotCorrupt
from partfile.sink.plan import is_expired, needed_runs
from partfile.sink.policies import Earliest, Latest
from partfile.sink.restore_rules import damage_told
from partfile.sink.states import RunFile, SeenKeys, UnneededRun
from partfile.snapshot.documents import HASH_VERSION, FileHandle
from partfile.snapshot.key_hash import decoded, hashes_of, kind_of, of_kind
from partfile.snapshot.run_file import MAX_KEYS, Run, decode_run, encode_run, merged, run_of
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from mmap import mmap

    from numpy.typing import NDArray

    from partfile.sink.policies import Deduplicate
    from partfile.sink.settings import RestoreSettings, SinkSettings
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
_LARGE = 4
"""A run of more than a fourth of ``MAX_KEYS`` is merged only with runs whose hashes have the same first bits."""
_PAIRS_LEFT = 4
"""One checkpoint merges a fourth of the pairs of large runs that are due, at least one for each task."""
_HASH_BITS = 32
"""Of the first and the last hash of a run, as a checkpoint notes them."""
_CLOCK_SKEW_MS = 60 * 60 * 1000
"""Clocks may differ by so much before the log warns."""

logger = logging.getLogger("partfile")


class HeldRun:
    """A run that is opened when a key may be in it.

    Args:
        file: None if no checkpoint can name it yet.
        open_run: Opens it; called once at most.
    """

    def __init__(self, file: RunFile | None, open_run: Callable[[], Run]) -> None:
        self.file = file
        self._open_run = open_run

    @classmethod
    def opened(cls, run: Run, file: RunFile | None = None) -> Self:
        """One that is open.

        Args:
            run: The run.
            file: None if no checkpoint can name it yet.
        """
        return cls(file, lambda: run)

    @cached_property
    def run(self) -> Run:
        """The run; raises what opening it does."""
        return self._open_run()

    @property
    def keys(self) -> int:
        """The number of its keys."""
        return self._told.keys

    @property
    def first_ms(self) -> int:
        """Time of its oldest key, in milliseconds since 1970."""
        return self._told.first_ms

    @property
    def last_ms(self) -> int:
        """Time of its youngest key."""
        return self._told.last_ms

    @property
    def first_hash(self) -> int:
        """The first 32 bits of its first hash."""
        return int(self.run.high[0]) >> 32 if self.file is None else self.file.first_hash

    @property
    def last_hash(self) -> int:
        """The first 32 bits of its last hash."""
        return int(self.run.high[-1]) >> 32 if self.file is None else self.file.last_hash

    @property
    def _told(self) -> Run | RunFile:
        return self.file or self.run

    def may_have(self, high: Words) -> bool:
        """Whether one of some keys, ascending, may be in it; a run that another task has written has none of them."""
        if self.file is None:
            return bool(self.run.high[0] <= high[-1] and high[0] <= self.run.high[-1])
        return self.file.first_hash <= int(high[-1]) >> 32 and int(high[0]) >> 32 <= self.file.last_hash


class KnownKeys:
    """The keys that a sink knows, in runs: which of others are new, and what is new since the last checkpoint.

    Belongs to one thread. Memory: the keys since the last checkpoint, at most some 20 MiB, and while runs are merged as
    much as ``merged`` takes; the rest is mapped from files.

    Args:
        options: Which columns are the key, and for how long.
        storage: The checkpoints of the sink.
        runs: Those in force.
        time_ms: The latest time that the sink's clock has told.
    """

    def __init__(self, options: Deduplicate, storage: CheckpointStorage, runs: Iterable[HeldRun], time_ms: int) -> None:
        self._options = options
        self._storage = storage
        self._time_ms = time_ms
        self._runs = [*runs]
        """Those without a file last."""
        self._given_up: list[str] = []
        """Files of runs that were merged or have expired since the last checkpoint."""

    def advance(self, now_ms: int) -> int:
        """Go on in time, drop what has expired, and return the sink's time, which never goes back (R8).

        Args:
            now_ms: What the clock says, in milliseconds since 1970.
        """
        self._time_ms = max(self._time_ms, now_ms)
        self._drop_expired()
        return self._time_ms

    def enter(self, hashes: Hashes, begin: int | None = None, order_by: pa.Array[Any] | None = None) -> Bools:
        """Enter the keys of some rows, and return which of the rows are to be written.

        Args:
            hashes: Of the keys.
            begin: Rows that were handed over before these, for messages; None where their order is not the caller's.
            order_by: The values by which ``keep`` chooses; None takes the first row of each key.

        Raises:
            ConfigError: A row has no key, and ``on_null="fail"``.
        """
        self._check_nulls(hashes, begin)
        is_kept = hashes.is_null & (self._options.on_null == "keep")
        rows = np.flatnonzero(~hashes.is_null)
        if order_by is not None:
            rows = self._in_order(order_by, rows)
        if not len(rows):
            return is_kept
        high, low, first = _first_of_each(hashes.high[rows], hashes.low[rows])
        is_seen = self._is_seen(high, low)
        is_kept[rows[first[~is_seen]]] = True
        entered = slice(None) if self._options.enters_again else ~is_seen
        self._enter(high[entered], low[entered])
        return is_kept

    def _in_order(self, order_by: pa.Array[Any], rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Rows in such an order that of each key the first one is the one to keep."""
        order = "descending" if isinstance(self._options.keep, Latest) else "ascending"
        # Equal values stay in the order of their rows.
        values = decoded(order_by).take(pa.array(rows))
        sorted_rows = pc.array_sort_indices(values, order=order, null_placement="at_end")
        return rows.take(np.asarray(sorted_rows))

    def _check_nulls(self, hashes: Hashes, begin: int | None) -> None:
        if self._options.on_null != "fail" or not hashes.is_null.any():
            return
        columns = self._options.columns
        row, find = "a row of the batch", ""
        if begin is None:
            nulls = " AND ".join(f"`{name.replace('`', '``')}` IS NULL" for name in columns)
            find = f"Such rows are found by df.filter({nulls!r}). "
        else:
            row = f"row {begin + int(np.argmax(hashes.is_null))} of those that were handed over, counted from 0,"
        empty = f"column {columns[0]!r} is" if len(columns) == 1 else f"columns {list(columns)} are"
        raise ConfigError(
            f"{row} has no key: {empty} null in it",
            hint=f"{find}Give it one; or let such rows be written, each of them: Deduplicate(..., on_null='keep')",
        )

    def _is_seen(self, high: Words, low: Words) -> Bools:
        """Which of some keys, ascending, have been entered and have not expired."""
        is_seen = np.zeros(len(high), np.bool_)
        asked = np.arange(len(high))
        # What comes again mostly does so soon, and is in a young run.
        for held in reversed(self._runs):
            if not len(asked):
                break
            if self._is_expired(held.last_ms) or not held.may_have(high[asked]):
                continue
            places = held.run.find(high[asked], low[asked])
            is_in = places >= 0
            if self._is_expired(held.first_ms):
                times = held.run.times(places[is_in])
                is_in[is_in] = times + (self._options.ttl_ms or 0) > self._time_ms
            is_seen[asked[is_in]] = True
            asked = asked[~is_in]
        return is_seen

    def _is_expired(self, time_ms: int) -> bool:
        return is_expired(time_ms, self._options.ttl_ms, self._time_ms)

    def _enter(self, high: Words, low: Words) -> None:
        if not len(high):
            return
        # A batch whose rows are chosen by a column is entered as a whole, and a run has a limit.
        for begin in range(0, len(high), MAX_KEYS):
            some = slice(begin, begin + MAX_KEYS)
            times = np.full(len(high[some]), self._time_ms, np.int64)
            self._runs.append(HeldRun.opened(run_of(high[some], low[some], times)))
        self._merge(groups_to_merge(self._runs[self._fresh_from :], self._options), self._fresh_from)
        if sum(held.keys for held in self._runs[self._fresh_from :]) >= _MOST_KEYS_IN_MEMORY:
            # No checkpoint names these files before the next one does. If it never comes, they are orphans.
            self.write_runs(self._storage.stream_factory(1))

    @property
    def _fresh_from(self) -> int:
        """The place of the first run that has no file."""
        return next((at for at, held in enumerate(self._runs) if held.file is None), len(self._runs))

    def _merge(self, groups: list[tuple[int, ...]], begin: int) -> None:
        """Merge groups of the runs from a place on, among them each without a file; these stay last."""
        runs = self._runs
        places = {begin + at for group in groups for at in group}
        self._give_up(runs[at] for at in sorted(places))
        made = [held for group in groups for held in self._merged([runs[begin + at] for at in group])]
        left = [held for at, held in enumerate(runs) if at not in places]
        self._runs = sorted([*left, *made], key=lambda held: held.file is None)

    def _merged(self, runs: list[HeldRun]) -> Iterator[HeldRun]:
        is_one = sum(held.keys for held in runs) <= MAX_KEYS
        for run in merged([self._checked(held) for held in runs]):
            # Not both halves in memory together: each has its file at once, which the next checkpoint names.
            file = None if is_one else kept_run(run, self._storage.stream_factory(1))
            yield HeldRun.opened(run) if file is None else HeldRun.opened(opened_run(self._storage, file), file)

    def _checked(self, held: HeldRun) -> Run:
        """A run, with its file read again: a merge would give damage that came since a checksum of its own."""
        return held.run if held.file is None else opened_run(self._storage, held.file)

    def _drop_expired(self) -> None:
        self._give_up(held for held in self._runs if self._is_expired(held.last_ms))
        self._runs = [held for held in self._runs if not self._is_expired(held.last_ms)]

    def _give_up(self, runs: Iterable[HeldRun]) -> None:
        handles = [held.file.handle for held in runs if held.file is not None]
        self._given_up += [handle.path for handle in handles if isinstance(handle, FileHandle)]

    def merge_fresh(self) -> None:
        """Merge what is new with what is of its size, before all gets files."""
        if self._fresh_from < len(self._runs):
            self._merge(groups_to_merge(self._runs, self._options), 0)

    def write_runs(self, streams: CheckpointStreamFactory, *, is_last: bool = False) -> tuple[RunFile, ...]:
        """Give each run without a file one, or its place in the checkpoint if it is small, and return all runs.

        Args:
            streams: Of the checkpoint that is to name them.
            is_last: Whether no more keys come, so that nothing is mapped that would only be looked into later.
        """
        for at, held in enumerate(self._runs):
            if held.file is None:
                file = kept_run(held.run, streams)
                is_mapped = file.handle.size_bytes > _MAPPED_BYTES and not is_last
                run = opened_run(self._storage, file) if is_mapped else held.run
                self._runs[at] = HeldRun.opened(run, file)
        return tuple(held.file for held in self._runs if held.file is not None)

    def take_given_up(self) -> list[str]:
        """Files of runs that were merged or have expired since this was asked last."""
        given_up, self._given_up = self._given_up, []
        return given_up


class Deduplicator:
    """Finds the rows of a sink in plain Python whose keys are new. Belongs to one run of it, and to one thread.

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
        self._kinds = known_kinds(seen)
        runs = opened_runs(settings, options, storage, seen)
        self._keys = KnownKeys(options, storage, runs, 0 if seen is None else seen.time_ms)
        self.duplicates = 0
        """Rows that were left out so far."""

    def kept(self, batch: pa.RecordBatch, now_ms: int, before: int = 0) -> pa.RecordBatch:
        """The rows of a batch whose keys are new, in their order; their keys are not new any more.

        Args:
            batch: The rows.
            now_ms: The sink's time, in milliseconds since 1970.
            before: Rows that were handed over before these at once, for messages.

        Raises:
            ConfigError: A column of the key is not there, or its type can be no key, or a row has no key and
                ``on_null="fail"``.
            CheckpointMismatch: A column of the key has values of another kind than before.
        """
        self._keys.advance(now_ms)
        if not batch.num_rows:
            return batch
        self._kinds = checked_kinds(batch.schema, self._settings, self._options, self._storage.job, self._kinds)
        columns = [
            of_kind(batch.column(name), kind) for name, kind in zip(self._options.columns, self._kinds, strict=True)
        ]
        order_by = None if self._options.keep == "any" else batch.column(self._options.keep.column)
        pieces = [np.zeros(0, np.bool_)]
        # By another column rows are chosen of the whole batch: a key of an earlier piece would have won already.
        at_once = _ROWS_AT_ONCE if order_by is None else max(1, batch.num_rows)
        for begin in range(0, batch.num_rows, at_once):
            hashes = self._hashes([column.slice(begin, at_once) for column in columns])
            values = None if order_by is None else order_by.slice(begin, at_once)
            pieces.append(self._keys.enter(hashes, before + begin, values))
        is_kept = np.concatenate(pieces)
        left_out = batch.num_rows - int(is_kept.sum())
        self.duplicates += left_out
        return rows_of(batch, is_kept) if left_out else batch

    def _hashes(self, columns: list[pa.Array[Any]]) -> Hashes:
        try:
            return hashes_of(columns)
        except pa.ArrowInvalid as error:
            name = next(
                name for name, column in zip(self._options.columns, columns, strict=True) if not _has_hashes(column)
            )
            raise ConfigError(
                f"column {name!r} of the key has a value that no key can have: {error}",
                hint=f"Cast it before, for instance to integer: table.set_column(table.column_names.index({name!r}), "
                f"{name!r}, table[{name!r}].cast(pyarrow.int64()))",
            ) from error

    def snapshot(self, before: SeenKeys | None, checkpoint_id: int, now_ms: int) -> SeenKeys | None:
        """The keys as the next checkpoint is to hold them. What is new of them is durable when this returns.

        Args:
            before: What the newest checkpoint holds.
            checkpoint_id: The next checkpoint.
            now_ms: The sink's time, in milliseconds since 1970.
        """
        time_ms = self._keys.advance(now_ms)
        if self._kinds is None:
            return before
        with damage_told(self._settings.uid, self._settings.forget_command(self._storage.job)):
            self._keys.merge_fresh()
            runs = self._keys.write_runs(self._storage.stream_factory(checkpoint_id))
        return SeenKeys(
            columns=self._options.columns,
            kinds=self._kinds,
            hash_version=HASH_VERSION,
            ttl_ms=self._options.ttl_ms,
            time_ms=time_ms,
            runs=runs,
            unneeded=unneeded_since(before, self._keys.take_given_up(), checkpoint_id),
        )


def groups_to_merge(runs: Sequence[HeldRun | RunFile], options: Deduplicate, tasks: int = 1) -> list[tuple[int, ...]]:
    """Which runs are to be merged, by their places: those of one expiry class that are of about one size.

    From the smallest on, a run joins those before it while it has at most twice as many keys as they have together. So
    the number of runs grows with the logarithm of the keys, and so does how often a key is written.

    Where keys are entered again, two large runs become two again, each of one half of their hashes. Large runs of one
    half are merged among themselves from then on. So no merge has more keys than two runs, however many there are.

    Args:
        runs: In any order.
        options: How long a key is remembered, and whether it is entered again.
        tasks: Processes that share the work.
    """

    def kind_of_run(at: int) -> tuple[tuple[int, int], tuple[int, int]]:
        run = runs[at]
        return _class_of(run, options.ttl_ms), _shared_bits(run) if options.enters_again else (0, 0)

    groups: list[list[int]] = []
    keys, last = 0, None
    for at in sorted(range(len(runs)), key=lambda at: (kind_of_run(at), runs[at].keys)):
        run, of = runs[at], kind_of_run(at)
        if of == last and run.keys <= 2 * keys and run.keys + keys <= MAX_KEYS:
            groups[-1].append(at)
            keys += run.keys
        else:
            groups.append([at])
            keys, last = run.keys, of
    several = [tuple(group) for group in groups if len(group) > 1]
    if not options.enters_again:
        return several
    large = (group[0] for group in groups if len(group) == 1 and 2 * runs[group[0]].keys > MAX_KEYS)
    pairs = [pair for _, of_kind in itertools.groupby(large, kind_of_run) for pair in _pairs(list(of_kind))]
    # The halves of all hashes fill at the same time: that all are merged then would hold one checkpoint up for long.
    return several + pairs[: max(tasks, len(pairs) // _PAIRS_LEFT)]


def _pairs(places: list[int]) -> list[tuple[int, ...]]:
    return list(zip(places[::2], places[1::2], strict=False))


def _shared_bits(run: HeldRun | RunFile) -> tuple[int, int]:
    """How many first bits all hashes of a large run share, and which; none of a smaller run, where it is chance."""
    if run.keys * _LARGE <= MAX_KEYS:
        return 0, 0
    free = (run.first_hash ^ run.last_hash).bit_length()
    return _HASH_BITS - free, run.first_hash >> free


def _class_of(run: HeldRun | RunFile, ttl_ms: int | None) -> tuple[int, int]:
    """Runs of one class may be merged: the file outlives its first key by an eighth of the ttl more, and no longer."""
    if ttl_ms is None:
        return (0, 0)
    width_ms = max(1, ttl_ms // _EXPIRY_CLASSES)
    return (run.first_ms // width_ms, run.last_ms // width_ms)


def unneeded_since(before: SeenKeys | None, paths: Iterable[str], checkpoint_id: int) -> tuple[UnneededRun, ...]:
    """The files of runs that a checkpoint does not need, those of the checkpoints before it included.

    Args:
        before: The keys of the checkpoint before; None if it has none.
        paths: Files that it does not need any more.
        checkpoint_id: The checkpoint.
    """
    fresh = (UnneededRun(path=path, since=checkpoint_id) for path in paths)
    return (*(before.unneeded if before is not None else ()), *fresh)


def checked_kinds(
    schema: pa.Schema,
    settings: SinkSettings,
    options: Deduplicate,
    job: str,
    before: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """The kinds of values that the columns of the key have.

    Args:
        schema: Of the rows.
        settings: The sink's, for messages.
        options: Which columns are the key.
        job: The name of the checkpoint log.
        before: The kinds of the keys so far; None if there are none.

    Raises:
        ConfigError: A column of the key, or the one that ``keep`` names, is not there, or its type is of no use for it.
        CheckpointMismatch: A column of the key has values of another kind than before.
    """
    kinds = []
    for at, name in enumerate(options.columns):
        key_with = partial(_key_with, name, options)
        data_type = _field(schema, settings.uid, name, "by which it deduplicates", key_with).type
        # A column of nulls alone has no type of its own: its nulls are of the kind that the values before were.
        kind = before[at] if before is not None and pat.is_null(data_type) else kind_of(data_type)
        if kind is None and pat.is_null(data_type):
            raise ConfigError(
                f"column {name!r} of the key has no type: all of its values are null, and there are no keys yet",
                hint="Give it the type that later values have, or they would be other keys. In Spark: "
                f"df.withColumn({name!r}, df[{name!r}].cast('bigint')). In Arrow: "
                f"table.set_column({schema.names.index(name)}, {name!r}, table[{name!r}].cast(pyarrow.int64()))",
            )
        if kind is None:
            raise ConfigError(
                f"column {name!r} of type {_shown(data_type)} can be no key: keys are strings, binary, integers, "
                "booleans, dates, timestamps and decimals of up to 38 digits and no negative scale",
                # What has parts is cast to text by no engine.
                hint=f"Take a part of it; or name another column: {key_with(schema)}"
                if pat.is_nested(data_type)
                else f"Cast it before, for instance to string; or name another column: {key_with(schema)}",
            )
        kinds.append(kind)
    if options.keep != "any":
        what, keep_by = "by which it keeps one row of a key", partial(_keep_by, options)
        data_type = _field(schema, settings.uid, options.keep.column, what, keep_by).type
        if not _has_order(data_type):
            raise ConfigError(
                f"keep={options.keep!r}: values of type {data_type} have no order",
                hint=f"Name a column of numbers, text, dates or times: {keep_by(schema)}",
            )
    if before is not None and before != tuple(kinds):
        raise CheckpointMismatch(
            f"columns {list(options.columns)} of the key have values of the kinds {kinds}, and before "
            f"{list(before)}: the same values would be other keys",
            hint="Cast them to what they were before; or forget the keys, so that rows with them are written "
            f"again: {settings.forget_command(job)}",
        )
    return tuple(kinds)


def _shown(data_type: pa.DataType) -> str:
    """A type as its user knows it: Spark hands its VARIANT over as a struct with a mark."""
    if pat.is_struct(data_type) and any((field.metadata or {}).get(b"variant") == b"true" for field in data_type):
        return "variant"
    return str(data_type)


def known_kinds(seen: SeenKeys | None) -> tuple[str, ...] | None:
    """The kinds of the keys so far; None where there are no keys, so that they may be of any kind."""
    return seen.kinds if seen is not None and seen.runs else None


def _field(schema: pa.Schema, uid: str, name: str, what: str, instead: Callable[[pa.Schema], str]) -> pa.Field[Any]:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        has = "no column" if not found else f"{len(found)} columns"
        raise ConfigError(
            f"the rows of sink {uid!r} have {has} {name!r}, {what}; they have {schema.names}",
            hint=f"Name a column of theirs: {instead(schema)}",
        )
    return schema.field(found[0])


def _key_with(name: str, options: Deduplicate, schema: pa.Schema) -> str:
    """The option with another column in the place of one, and all else as it is: fewer columns would drop rows."""
    names = [field.name for field in schema if kind_of(field.type) is not None]
    able = [one for one in names if one not in options.columns and schema.names.count(one) == 1]
    columns = [_meant(name, able) if one == name else one for one in options.columns]
    words = [repr(columns[0] if len(columns) == 1 else columns)]
    for option, value in options:
        if option != "columns" and value != type(options).model_fields[option].default:
            shown = f"partfile.{type(value).__name__}({value.column!r})" if isinstance(value, Earliest) else repr(value)
            words.append(f"{option}={shown}")
    return f"deduplicate=partfile.Deduplicate({', '.join(words)})"


def _keep_by(options: Deduplicate, schema: pa.Schema) -> str:
    """The option ``keep`` with a column that has an order."""
    asked = cast("Earliest", options.keep)
    ordered = [one.name for one in schema if one.name not in options.columns and _has_order(one.type)]
    return f"keep=partfile.{type(asked).__name__}({_meant(asked.column, ordered)!r})"


def _has_order(data_type: pa.DataType) -> bool:
    if pat.is_dictionary(data_type) or pat.is_run_end_encoded(data_type):
        return _has_order(cast("pa.DictionaryType[Any, Any]", data_type).value_type)
    if pat.is_string_view(data_type) or pat.is_binary_view(data_type):
        return True
    try:
        pc.array_sort_indices(pa.array([], data_type))
    except pa.ArrowNotImplementedError:
        return False
    return not pat.is_nested(data_type)


def _has_hashes(column: pa.Array[Any]) -> bool:
    try:
        hashes_of([column])
    except pa.ArrowInvalid:
        return False
    return True


def _meant(name: str, able: Sequence[str]) -> str:
    """The column that was probably meant: one of a similar name, or the first that is able; NAME where none is."""
    near = [one for one in able if one.lower() == name.lower()] or difflib.get_close_matches(name, able, 1)
    return [*near, *able, "NAME"][0]


def opened_runs(
    settings: SinkSettings, options: Deduplicate, storage: CheckpointStorage, seen: SeenKeys | None
) -> list[HeldRun]:
    """The runs of the keys so far. Those with a key that is not forgotten yet are open, each checked as a whole.

    Args:
        settings: The sink's, for messages.
        options: How long a key is remembered.
        storage: Its checkpoints.
        seen: Its keys; None if it has none.

    Raises:
        SnapshotCorrupt: A run is missing or damaged; the hint says how the sink goes on without its keys.
    """
    with damage_told(settings.uid, settings.forget_command(storage.job)):
        _warn_of_clock(settings, storage.job, seen)
        needed = needed_runs(seen, options.ttl_ms, settings.now_ms())
        return [
            HeldRun.opened(opened_run(storage, file), file)
            if file in needed
            else HeldRun(file, partial(opened_run, storage, file))
            for file in (() if seen is None else seen.runs)
        ]


def check_runs(
    settings: RestoreSettings, ttl_ms: int | None, storage: CheckpointStorage, seen: SeenKeys | None
) -> None:
    """Check the runs with a key that is not forgotten yet, each as a whole, and keep none: other processes look.

    The other arguments and the errors are those of ``opened_runs``. Memory: as much as the largest run has.

    Args:
        settings: The sink's, for messages.
        ttl_ms: How long a key is remembered; None is for ever.
        storage: Its checkpoints.
        seen: Its keys; None if it has none.
    """
    with damage_told(settings.uid, settings.forget_command(storage.job)):
        _warn_of_clock(settings, storage.job, seen)
        for file in needed_runs(seen, ttl_ms, settings.now_ms()):
            check_run(storage, file)


def check_run(storage: CheckpointStorage, file: RunFile) -> None:
    """Check a run that a checkpoint names as a whole, and keep nothing of it.

    Raises:
        SnapshotCorrupt: It is missing or damaged, or not the one that the checkpoint names.
    """
    decode_run(storage.read_bytes(file.handle), storage.shown(file.handle))


def _warn_of_clock(settings: RestoreSettings, job: str, seen: SeenKeys | None) -> None:
    ahead_ms = 0 if seen is None else seen.time_ms - settings.now_ms()
    if seen is not None and seen.ttl_ms is not None and ahead_ms > max(seen.ttl_ms // _EXPIRY_CLASSES, _CLOCK_SKEW_MS):
        logger.warning(
            "%s: the clock was ahead of this one by %.1f hours when it entered keys. They expire, and so do those that "
            "come now, when the clock has caught up. To end that, forget the keys: %s",
            settings.uid,
            ahead_ms / 3_600_000,
            settings.forget_command(job),
        )


def kept_run(run: Run, streams: CheckpointStreamFactory) -> RunFile:
    """Give a run a file, durable when this returns, or a place in the checkpoint if it is small.

    Args:
        run: The run.
        streams: Of the checkpoint that is to name it.
    """
    handle = streams.keep(encode_run(run), Scope.SHARED)
    return RunFile(
        handle=handle,
        keys=run.keys,
        first_ms=run.first_ms,
        last_ms=run.last_ms,
        first_hash=int(run.high[0]) >> 32,
        last_hash=int(run.high[-1]) >> 32,
    )


def opened_run(storage: CheckpointStorage, file: RunFile) -> Run:
    """A run that a checkpoint names, all of it checked; a large one is not held in memory.

    Raises:
        SnapshotCorrupt: It is missing or damaged, or not the one that the checkpoint names.
    """
    handle = file.handle
    shown = storage.shown(handle)
    data = storage.map_bytes(handle) if handle.size_bytes > _MAPPED_BYTES else storage.read_bytes(handle)
    return decode_run(data, shown)


def held_run(storage: CheckpointStorage, file: RunFile, *, is_checked: bool = True) -> Run:
    """A run that was checked before on behalf of this epoch: a large file is mapped.

    Where the storage has no files on this host, a copy of it stays here for the tasks to come.

    Args:
        storage: The checkpoints of the sink.
        file: The run.
        is_checked: Whether that is enough; otherwise all of it is checked again, and a copy that has been damaged is
            made again.

    Raises:
        SnapshotCorrupt: It is missing or damaged, or not the one that the checkpoint names.
    """
    data, shown = storage.map_held(file.handle), storage.shown(file.handle)
    try:
        return decode_run(_mapped(data), shown, is_checked=is_checked)
    except SnapshotCorrupt:
        # A copy on this host may have been damaged where the file was not: this reads the file.
        return decode_run(_mapped(storage.map_bytes(file.handle)), shown)


def _mapped(data: bytes | mmap) -> bytes | mmap:
    """What was mapped; a small file in memory, for what is mapped has an open file."""
    return bytes(data) if len(data) <= _MAPPED_BYTES else data


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
