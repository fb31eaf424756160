"""Deduplication in a Spark query: the shuffle by key, what tasks are told of the keys so far, and what they answer.

The JVM hashes the keys and sends all rows with one key to one task; a task that gets all rows hashes them itself. The
task looks for them in the runs of the newest checkpoint, and writes its new keys as runs of its own. The driver plans
which runs are merged, and tasks merge them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so.
from pyspark.sql.types import DoubleType, FloatType

from partfile.errors import ConfigError
from partfile.sink.batches import coalesce_batches
from partfile.sink.deduplicate import (
    HeldRun,
    KnownKeys,
    groups_to_merge,
    held_run,
    kept_run,
    rows_of,
    unneeded_since,
)
from partfile.sink.plan import is_expired
from partfile.sink.policies import Latest
from partfile.sink.restore_rules import damage_told
from partfile.sink.states import RunFile, SeenKeys
from partfile.snapshot.documents import HASH_VERSION, FileHandle
from partfile.snapshot.key_hash import SECOND, Hashes, hashes_of, mark_of, of_kind
from partfile.snapshot.run_file import merged
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from partfile.sink.policies import Deduplicate
    from partfile.snapshot.run_file import Run
    from partfile.snapshot.storage import CheckpointStorage


_HASHES = ("__partfile_high", "__partfile_low")
"""Columns that carry the hash of a row's key from the JVM to the task."""
_ROWS_AT_ONCE = 1 << 18
"""Rows whose keys are looked for at a time: the more, the closer they lie in a run."""


class MergedGroup(Persisted):
    """A group of runs that a task has merged."""

    group: int
    """Its place in the plan."""
    files: tuple[RunFile, ...]
    """The runs that it has become."""


class KeyAnswer(Persisted):
    """What a task answers of the keys of its rows."""

    fresh: tuple[RunFile, ...] = ()
    """Runs of its new keys."""
    merged: tuple[MergedGroup, ...] = ()
    duplicates: int = 0
    """Rows that it left out."""


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What is known of keys before a batch, and which runs its tasks merge. Pure; travels to the tasks."""

    options: Deduplicate
    partitions: int
    """Tasks that rows are sent to by their keys."""
    before: SeenKeys | None
    """The keys of the newest checkpoint."""
    kinds: tuple[str, ...]
    """Of the values of the key's columns."""
    time_ms: int
    """The sink's time, which never goes back (R8)."""
    sink: str = ""
    """The name of the sink, for messages."""
    forget_command: str = ""
    """What forgets its keys, for messages."""

    @property
    def runs(self) -> tuple[RunFile, ...]:
        """The runs in which keys are looked for."""
        return tuple(run for run in self._runs_before if not self._is_expired(run))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The runs that are merged, by their places in ``runs``."""
        return groups_to_merge(self.runs, self.options, self.partitions)

    @property
    def _runs_before(self) -> tuple[RunFile, ...]:
        return () if self.before is None else self.before.runs

    def _is_expired(self, run: RunFile) -> bool:
        return is_expired(run.last_ms, self.options.ttl_ms, self.time_ms)

    def after(self, answers: Sequence[KeyAnswer], checkpoint_id: int) -> SeenKeys:
        """The keys as the batch's checkpoint is to hold them.

        Args:
            answers: Of the tasks that count. What others have written is named by no checkpoint.
            checkpoint_id: The checkpoint.
        """
        done = {one.group: one.files for answer in answers for one in answer.merged}
        groups = self.groups
        gone = {at for group in done for at in groups[group]}
        runs = [run for at, run in enumerate(self.runs) if at not in gone]
        runs += [run for files in (*done.values(), *(answer.fresh for answer in answers)) for run in files]
        unneeded = [self.runs[at] for at in sorted(gone)]
        unneeded += [run for run in self._runs_before if self._is_expired(run)]
        paths = [run.handle.path for run in unneeded if isinstance(run.handle, FileHandle)]
        return SeenKeys(
            columns=self.options.columns,
            kinds=self.kinds,
            hash_version=HASH_VERSION,
            ttl_ms=self.options.ttl_ms,
            time_ms=self.time_ms,
            runs=tuple(sorted(runs, key=lambda run: (run.first_ms, run.last_ms))),
            unneeded=unneeded_since(self.before, paths, checkpoint_id),
        )


def key_plan(
    options: Deduplicate, partitions: int, before: SeenKeys | None, kinds: tuple[str, ...], now_ms: int
) -> KeyPlan:
    """What the tasks of a batch are to do about keys.

    Args:
        options: Which columns are the key, and for how long.
        partitions: Tasks that rows are sent to by their keys.
        before: The keys of the newest checkpoint; None if it has none.
        kinds: Of the values of the key's columns.
        now_ms: What the clock says, in milliseconds since 1970.
    """
    return KeyPlan(options, partitions, before, kinds, max(now_ms, 0 if before is None else before.time_ms))


def by_key(df: DataFrame, plan: KeyPlan) -> DataFrame:
    """Shuffle rows so that all with one key come to one task, in the order in which it takes the first of each.

    The two halves of the hash follow as the last columns. Rows that are in one partition, and go to one task, stay
    where they are, and the task hashes their keys: a plan with hashes costs a batch of few rows more than all else.
    """
    sent = df
    if plan.partitions > 1 or not is_in_one_partition(df):
        high, low = hash_expressions(plan.options.columns, plan.kinds)
        # As text of SQL: columns of PySpark's are a hundred calls of the JVM, a tenth of a batch of few rows.
        hashed = df.selectExpr("*", f"{high} AS {_HASHES[0]}", f"{low} AS {_HASHES[1]}")
        # By ranges of hashes: the keys of a task lie close together in a run, and its own runs overlap with no other's.
        task = F.expr(f"CAST(shiftright(shiftrightunsigned({_HASHES[0]}, 32) * {plan.partitions}, 32) AS INT)")
        sent = sent_to_tasks(hashed, plan.partitions, task)
    keep = plan.options.keep
    if keep == "any":
        return sent
    value = F.col(quoted(keep.column))
    if df.schema[keep.column].dataType in {FloatType(), DoubleType()}:
        # Arrow's sort, by which plain Python chooses, has what is no number behind all numbers.
        value = F.nanvl(value, F.lit(None))
    return sent.sortWithinPartitions(value.desc_nulls_last() if isinstance(keep, Latest) else value.asc_nulls_last())


def is_in_one_partition(df: DataFrame) -> bool:
    """Whether all rows of a batch are in one partition, as those of one file or of one partition of Kafka are.

    Only a batch as Spark hands it over is looked at: of any other it takes a plan, which costs more than a shuffle.
    """
    plan = df._jdf.queryExecution().logical()  # noqa: SLF001 - PySpark itself tells no number without a plan.
    return bool(plan.getClass().getSimpleName() == "LogicalRDD" and plan.rdd().getNumPartitions() == 1)


def check_names(names: Sequence[str]) -> None:
    """Refuse columns that those of hashes would replace.

    Args:
        names: Of the batch's columns.

    Raises:
        ConfigError: One has the name of one of them; to Spark, names in other case are the same.
    """
    for name in names:
        if name.lower() in _HASHES:
            raise ConfigError(
                f"column {name!r} has a name that partfile needs for the hashes of keys",
                hint=f"Name it otherwise: df.withColumnRenamed({name!r}, 'NAME')",
            )


def sent_to_tasks(df: DataFrame, partitions: int, task: Column) -> DataFrame:
    """Shuffle rows to the tasks that a column numbers.

    Where Spark has no ``repartitionById``, the task has another number. Rows of one number still meet in one task.

    Args:
        df: The rows.
        partitions: The number of tasks.
        task: From 0 to one less.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, task)
    return df.repartition(partitions, task)


def hash_expressions(columns: Sequence[str], kinds: Sequence[str]) -> tuple[str, str]:
    """The two halves of a key's hash in Spark's SQL, as ``snapshot.key_hash`` computes them.

    Args:
        columns: The columns of the key.
        kinds: The kind of values of each.
    """
    chain = []
    for name, kind in zip(columns, kinds, strict=True):
        value, mark = quoted(name), mark_of(kind)
        # A null has no value behind its mark: Spark's hash passes over it.
        chain += [f"CASE WHEN {value} IS NULL THEN {mark + 1} ELSE {mark} END", f"CAST({value} AS {_widest(kind)})"]
    return f"xxhash64({', '.join(chain)})", f"xxhash64({SECOND}, {', '.join(chain)})"


def _widest(kind: str) -> str:
    name, _, scale = kind.partition("(")
    return f"decimal(38,{scale}" if name == "decimal" else {"integer": "bigint"}.get(name, name)


def quoted(name: str) -> str:
    """The name of a column as Spark's SQL has it.

    Args:
        name: As the schema has it.
    """
    return f"`{name.replace('`', '``')}`"


class TaskKeys:
    """The keys of one task of a batch. Belongs to one attempt of it.

    Args:
        plan: The driver's.
        storage: The checkpoints of the sink.
    """

    def __init__(self, plan: KeyPlan, storage: CheckpointStorage) -> None:
        self._plan = plan
        self._storage = storage
        self._runs = [HeldRun(file, partial(held_run, storage, file)) for file in plan.runs]
        self._keys = KnownKeys(plan.options, storage, self._runs, plan.time_ms)
        self._duplicates = 0
        self._damage_told = partial(damage_told, plan.sink, plan.forget_command)

    def distinct(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows whose keys are new, without the columns of hashes.

        Args:
            batches: As ``by_key`` has sent them, or those of the one partition.

        Raises:
            ConfigError: A row has no key, and ``on_null="fail"``.
            SnapshotCorrupt: A run in which one of the keys may be is missing.
            StoreError: It cannot be read.
        """
        for batch in coalesce_batches(batches, _ROWS_AT_ONCE):
            is_hashed = batch.schema.names[-len(_HASHES) :] == list(_HASHES)
            hashes = self._hashes_sent(batch) if is_hashed else self._hashes(batch)
            with self._damage_told():
                is_kept = self._keys.enter(hashes)
            left_out = batch.num_rows - int(is_kept.sum())
            self._duplicates += left_out
            rows = batch.select(range(batch.num_columns - len(_HASHES))) if is_hashed else batch
            yield rows_of(rows, is_kept) if left_out else rows

    def _hashes_sent(self, batch: pa.RecordBatch) -> Hashes:
        """The hashes that came with the rows."""
        high, low = (np.asarray(column).view(np.uint64) for column in batch.columns[-len(_HASHES) :])
        nulls = [np.asarray(batch.column(name).is_null()) for name in self._plan.options.columns]
        return Hashes(high, low, np.logical_and.reduce(nulls))

    def _hashes(self, batch: pa.RecordBatch) -> Hashes:
        """The same hashes of rows that were not sent."""
        named = zip(self._plan.options.columns, self._plan.kinds, strict=True)
        return hashes_of([of_kind(batch.column(name), kind) for name, kind in named])

    def _checked(self, at: int) -> Run:
        """A run to merge, checked again: a merge would give damage that came since a checksum of its own."""
        return held_run(self._storage, self._plan.runs[at], is_checked=False)

    def answer(self, subtask: int, checkpoint_id: int) -> KeyAnswer:
        """Write the new keys, and merge this task's share of groups. All is durable when this returns.

        Args:
            subtask: The task's number in the batch.
            checkpoint_id: The batch's checkpoint.
        """
        named = set(map(id, self._plan.runs))
        # The small runs of many tasks would be a large checkpoint, which the driver writes with each batch.
        streams = self._storage.stream_factory(checkpoint_id, sharers=self._plan.partitions)
        with self._damage_told():
            return KeyAnswer(
                fresh=tuple(file for file in self._keys.write_runs(streams, is_last=True) if id(file) not in named),
                merged=tuple(
                    MergedGroup(
                        group=at,
                        files=tuple(
                            kept_run(run, streams) for run in merged([self._checked(place) for place in group])
                        ),
                    )
                    for at, group in enumerate(self._plan.groups)
                    if at % self._plan.partitions == subtask
                ),
                duplicates=self._duplicates,
            )
