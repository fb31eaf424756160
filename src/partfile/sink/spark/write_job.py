"""The write task in Spark: one subtask of one micro-batch, from record batches to one row of acknowledgement."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import logging
import re
import socket
import sys
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, ValidationError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own documentation names it so.
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from partfile import errors
from partfile.bucketers.base import BucketContext
from partfile.errors import ConfigError, PartfileError, UnsupportedTypeError
from partfile.sink.batches import coalesce_batches, prefetch
from partfile.sink.deduplicate import checked_kinds
from partfile.sink.encoded_files import NotItsOwn, SharedJobFailed
from partfile.sink.layout import RowLayouts, SinkDescription, SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.spark.distinct import (
    KeyAnswer,
    KeyPlan,
    TaskKeys,
    by_key,
    check_names,
    is_in_one_partition,
    quoted,
    sent_to_tasks,
)
from partfile.sink.states import SubtaskSnapshot, assigned_to
from partfile.snapshot.documents import SubtaskState
from partfile.snapshot.operator_state import write_operator_state
from partfile.snapshot.storage import open_storage
from partfile.stores.checksums import crc32_of
from partfile.stores.registry import options_of_tasks
from partfile.version import __version__
from partfile.writers.base import RowFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from partfile.bucketers.base import Bucketer, HashKey
    from partfile.sink.coordinator import Runtime, TriggeredCheckpoint
    from partfile.sink.settings import SinkSettings, StoreOpener
    from partfile.sink.states import StreamPosition
    from partfile.snapshot.storage import CheckpointStorage, StorageSettings
    from partfile.stores.base import Store


logger = logging.getLogger("partfile")
_SUBTASK_COLUMN = "__partfile_subtask"
ACKNOWLEDGEMENT = StructType(
    [
        StructField("submission", StringType()),
        StructField("version", StringType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("state", BinaryType()),
        StructField("keys", BinaryType()),
    ]
)
_WORKER = StructType([StructField("version", StringType()), StructField("python", StringType())])
_NOTE = "partfile tells the driver: "
_PROBLEM = re.compile(rf"^{_NOTE}(.*)$", re.MULTILINE)
_CHAINED = re.compile(
    r"^(?:The above exception was the direct cause|During handling of the above exception)", re.MULTILINE
)
_NOT_IMPORTED = re.compile(
    r"ModuleNotFoundError: .*|ImportError: .*|\[?PYTHON_VERSION_MISMATCH.*|Cannot run program .*|"
    r"(?<=\n)AttributeError: .*partfile.*"
)


_BLAMELESS = {kind.__name__: kind for kind in (NotItsOwn, SharedJobFailed)}
"""Errors that are not the staging file's own: it does not wait because of them."""


class Problem(BaseModel):
    """An error on its way from a task to the driver."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """Name of a class in ``partfile.errors``, or of one for a staging file that was not to blame."""
    message: str
    hint: str = ""
    path: str | None = None
    checkpoint_id: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Describe an error; one from outside the tree becomes a plain PartfileError that names its class."""
        if not isinstance(error, PartfileError):
            return cls(kind=PartfileError.__name__, message=f"{type(error).__name__}: {error}")
        bases, blameless = type(error).__mro__, _BLAMELESS.values()
        kind = next(base.__name__ for base in bases if base.__module__ == errors.__name__ or base in blameless)
        return cls(
            kind=kind, message=error.message, hint=error.hint, path=error.path, checkpoint_id=error.checkpoint_id
        )

    def to_error(self) -> PartfileError:
        """The error, of the class that it had or of the nearest above it."""
        kind: type[PartfileError] = _BLAMELESS.get(self.kind, getattr(errors, self.kind, PartfileError))
        return kind(self.message, hint=self.hint, path=self.path, checkpoint_id=self.checkpoint_id)


def run_write_job(
    df: DataFrame,
    settings: SinkSettings,
    runtime: Runtime,
    triggered: TriggeredCheckpoint,
    shuffle: KeyPlan | int | None,
) -> list[Acknowledgement]:
    """Write the rows of a batch as one task a partition, and collect what the tasks answer.

    Args:
        df: The batch.
        settings: The sink's options.
        runtime: The driver's side of this epoch.
        triggered: The checkpoint that the batch is.
        shuffle: What the tasks do about keys, by which rows are sent to them; or the number of partitions that buckets
            are hashed over; None keeps the batch's own partitions.

    Raises:
        PartfileError: A task refused its rows, or its storage failed; it is raised from Spark's error.
        PySparkException: The job failed for another reason.
    """
    if not runtime.storage.store.hold_marker(runtime.marker_path):
        logger.warning("%s: another process holds the marker, perhaps an older driver", settings.uid)
    coordinator = runtime.coordinator
    task = WriteTask(
        base=settings.base,
        checkpoints=settings.checkpoints,
        job=runtime.job,
        marker_path=runtime.marker_path,
        open_store=settings.open_store_in_tasks,
        description=settings.description,
        shares=coordinator.assignment(),
        max_count=coordinator.state.max_count,
        checkpoint_id=triggered.checkpoint_id,
        submission=triggered.submission,
        epoch=coordinator.epoch,
        chain=coordinator.state.position.chain,
        batch_time_ms=triggered.time_ms,
        may_keep=runtime.tasks_may_keep,
        may_stage=runtime.may_stage,
        encoded_ratio=coordinator.state.position.encoded_ratio,
        keys=shuffle if isinstance(shuffle, KeyPlan) else None,
        base_options=options_of_tasks(settings.base, settings.storage_options),
        checkpoint_options=options_of_tasks(settings.checkpoint_url, settings.checkpoint_options),
    )
    if isinstance(shuffle, KeyPlan):
        df = by_key(df, shuffle)
    elif shuffle is not None:
        context = BucketContext(batch_time_ms=triggered.time_ms, on_bad_bucket=settings.on_bad_bucket)
        df = by_bucket(df, settings.bucketer, context, shuffle)
    try:
        rows = df.mapInArrow(task.run, ACKNOWLEDGEMENT).collect()
    except Exception as error:
        told = error_of_task(error)
        if told is None:
            raise
        raise told from error
    return [read_acknowledgement(row) for row in rows]


@contextmanager
def problem_told() -> Iterator[None]:
    """Have an error of partfile's reach the driver whole: Spark hands a traceback over as text, and notes with it."""
    try:
        yield
    except PartfileError as error:
        error.add_note(f"{_NOTE}{Problem.of(error).model_dump_json()}")
        raise


def error_of_task(error: Exception) -> PartfileError | None:
    """The error that a task raised, as Spark's error tells it; None if a task failed with none of partfile's.

    Args:
        error: What Spark raised for the job.
    """
    found = _PROBLEM.search(_CHAINED.split(str(error))[-1])
    try:
        return Problem.model_validate_json(found[1]).to_error() if found else None
    except ValidationError:
        return None


def check_workers(session: SparkSession) -> None:
    """Refuse Python workers that cannot import this version of partfile, by a job of one task.

    One worker speaks for all: a cluster whose hosts differ is found out by the write job, whose answers have a version.

    Args:
        session: Of the stream.

    Raises:
        ConfigError: The worker has no partfile, another version of it, or another Python; or the driver has no pandas.
    """
    try:
        answers = session.range(0, 1, 1, 1).mapInArrow(_answer_of_worker, _WORKER).collect()
    except ImportError as error:
        told = str(error).splitlines()[0]
        what = f"PySpark cannot run Python functions here: {told}"
        raise ConfigError(what, hint="pip install 'partfile[spark]'") from error
    except Exception as error:
        missing = _NOT_IMPORTED.search(_CHAINED.split(str(error))[-1])
        if missing is None:
            raise
        raise _unusable_workers(f"cannot run it: {missing[0]}") from error
    for answer in answers:
        if answer.version != __version__:
            raise _unusable_workers(f"import partfile {answer.version} ({answer.python})")


def _answer_of_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _batch in batches:
        yield pa.RecordBatch.from_pydict({"version": [__version__], "python": [sys.executable]})


def _unusable_workers(doing: str) -> ConfigError:
    return ConfigError(
        f"the driver runs partfile {__version__} ({sys.executable}), and Spark's Python workers {doing}",
        hint=f"Before the session begins: export PYSPARK_PYTHON={sys.executable} (on a cluster a Python that has "
        f"partfile {__version__} on every host).",
    )


def acknowledged_snapshots(
    runtime: Runtime, triggered: TriggeredCheckpoint, acknowledged: Sequence[Acknowledgement]
) -> list[SubtaskSnapshot]:
    """The snapshots of a checkpoint's subtasks, one for each row that the write job returned.

    Args:
        runtime: The driver's side of this epoch.
        triggered: The checkpoint that the rows answer.
        acknowledged: The rows.

    Raises:
        PartfileError: A row answers another trigger: the rows of a subtask would be missing.
    """
    for one in acknowledged:
        if one.submission != triggered.submission:
            raise PartfileError(
                f"the acknowledgement of partition {one.state.subtask} belongs to another try of the batch",
                checkpoint_id=triggered.checkpoint_id,
            )
    read = runtime.storage.read_state
    return [SubtaskSnapshot.from_states(one.state.subtask, read(one.state.handle)) for one in acknowledged]


def check_columns(df: DataFrame, settings: SinkSettings) -> pa.Schema:
    """Refuse columns that the tasks would refuse with their first rows, before any job runs.

    Args:
        df: The stream, or a batch of it.
        settings: The sink's options.

    Returns:
        The schema of the record batches that a task gets.

    Raises:
        ConfigError: There are none, two have one name, one has a dot or a backtick in its name, or the bucketer cannot
            work on them.
        UnsupportedTypeError: The format has no form for one, or Spark has none in Arrow, as for intervals of months.
    """
    if not df.columns:
        raise ConfigError(
            f"{settings.uid}: the stream has no columns, and Spark hands no rows of it over",
            hint="Select at least one column: df.select(COLUMN)",
        )
    odd = next((name for name in df.columns if "." in name or "`" in name), None)
    if odd is not None:
        raise ConfigError(
            f"{settings.uid}: Spark hands over no rows of a column that is called {odd!r}",
            hint=f"Rename it: df.withColumnRenamed({odd!r}, {odd.replace('.', '_').replace('`', '_')!r})",
        )
    twice = _called_twice(df)
    if twice is not None:
        names = ", ".join(repr(f"{name}_2" if name == twice else name) for name in df.columns)
        raise ConfigError(
            f"{settings.uid}: two columns are called {twice!r}, but for capitals, which Spark does not tell apart",
            hint=f"Name all columns anew: df.toDF({names})",
        )
    schema = pa.schema([_arrow_field(df, column) for column in df.schema])
    description = settings.description
    staging_file = None if description.spec is None else description.staged_in(travels=False)
    RowLayouts(description.bucketer, description.format, staging_file).of(schema)
    if settings.deduplicate is not None:
        check_names(df.columns)
        checked_kinds(schema, settings, settings.deduplicate, settings.uid, None)
    return schema


def _called_twice(df: DataFrame) -> str | None:
    """A name of two columns that differ in capitals alone, where Spark does not tell those apart; None if none is."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return None
    seen: dict[str, str] = {}
    return next((name for name in df.columns if seen.setdefault(name.lower(), name) != name), None)


def _arrow_field(df: DataFrame, column: StructField) -> pa.Field[Any]:
    """A column of the record batches that a task gets; raises UnsupportedTypeError where it gets none of that type."""
    zone = str(df.sparkSession.conf.get("spark.sql.session.timeZone"))
    # PySpark 4.0 takes no zone, and gives every timestamp UTC.
    options: dict[str, Any] = {"timezone": zone} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    try:
        return to_arrow_schema(StructType([column]), **options).field(0)
    except PySparkException as error:
        raise UnsupportedTypeError(
            f"Column {column.name!r} has the type {column.dataType.simpleString()}, which Spark hands over to no task",
            hint=f"Write it as text: df.withColumn({column.name!r}, df[{column.name!r}].cast('string'))",
        ) from error


def hash_partitions(df: DataFrame, settings: SinkSettings, stands: StreamPosition) -> int | None:
    """Number of partitions that buckets or keys are hashed over: as set, else the engine's; None for no shuffle.

    Of buckets it stays what it was, so that each goes on in the task that has it open. Keys belong to no task: those of
    a batch that is in one partition go to one task, which needs no shuffle.
    """
    of_the_engine = int(df.sparkSession.sparkContext.defaultParallelism)
    if settings.deduplicate is not None:
        return settings.hash_partitions or (1 if is_in_one_partition(df) else of_the_engine)
    if settings.distribution == "none":
        return None
    return settings.hash_partitions or stands.hash_partitions or of_the_engine


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One row of the write job, as the driver reads it."""

    submission: str
    version: str
    rows: int
    bytes: int
    state: SubtaskState
    keys: KeyAnswer | None
    """Of the keys of its rows; None if the sink does not deduplicate."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Everything a task needs; travels in the closure. Holds no open resource."""

    base: str
    checkpoints: StorageSettings
    job: str
    marker_path: str
    open_store: StoreOpener
    description: SinkDescription
    shares: tuple[SubtaskSnapshot, ...]
    max_count: int
    checkpoint_id: int
    submission: str
    epoch: int
    chain: str
    batch_time_ms: int
    may_keep: bool
    """Whether parts may stay open as far as the driver knows, which has asked the stores what they can do."""
    may_stage: bool
    """Whether columnar parts may be staged, as far as the driver knows."""
    encoded_ratio: float | None
    """Bytes of encoded files for each byte of their staging files; None until a first one was encoded."""
    keys: KeyPlan | None = None
    """What it does about keys; None if the sink does not deduplicate."""
    base_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options of the store of the parts."""
    checkpoint_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options of the store of the checkpoints."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write every row, make it durable, release everything, then acknowledge with one row."""
        task = TaskContext.get()
        if task is None:
            raise PartfileError("a write task runs inside a Spark task only")
        begin_task()
        with problem_told(), self.open_store(self.base, self.base_options) as store:
            storage = open_storage(self.checkpoints, self.job, self.checkpoint_options, opener=self.open_store)
            with closing(storage.store):
                yield self._acknowledge(self._write(store, storage, task, batches))

    def _write(
        self, store: Store, storage: CheckpointStorage, task: TaskContext, batches: Iterator[pa.RecordBatch]
    ) -> Acknowledgement:
        # Where this host does not see the driver's lock, nothing would fence a zombie: keep nothing open (R13).
        may_keep = storage.store.marker_is_held(self.marker_path) and self.may_keep
        context = SubtaskContext(
            subtask=task.partitionId(),
            attempt=task.attemptNumber(),
            epoch=self.epoch,
            chain=self.chain,
            batch_time_ms=self.batch_time_ms,
            may_keep=may_keep,
            may_stage=may_keep and self.may_stage,
            encoded_ratio=self.encoded_ratio,
        )
        share = assigned_to(self.shares, context.subtask).model_copy(update={"max_count": self.max_count})
        keys = None if self.keys is None else TaskKeys(self.keys, storage)
        rows_of_task = batches if keys is None else keys.distinct(batches)
        operator = SinkOperator(store, self.description)
        try:
            operator.open(context, share)
            prefetch(self._worth_splitting(rows_of_task), operator.write)
            snapshot = operator.snapshot(self.checkpoint_id)
            rows, size = operator.rows_written, operator.bytes_written
        finally:
            # Before the answer: no lock outlives the task (R13).
            operator.close()
        # After the parts are durable, for the state holds their lengths (R9).
        streams = storage.stream_factory(self.checkpoint_id)
        handle = write_operator_state(snapshot.to_states(), streams)
        answer = None if keys is None else keys.answer(context.subtask, self.checkpoint_id)
        return Acknowledgement(
            self.submission,
            __version__,
            rows,
            size,
            SubtaskState(subtask=context.subtask, handle=handle),
            answer,
        )

    def _worth_splitting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Lines are made in one pass and cut by offsets, best as long as a batch stays in the processor's cache.
        return batches if isinstance(self.description.format, RowFormat) else coalesce_batches(batches)

    @staticmethod
    def _acknowledge(done: Acknowledgement) -> pa.RecordBatch:
        row: dict[str, Any] = {
            "submission": [done.submission],
            "version": [done.version],
            "rows": pa.array([done.rows], pa.int64()),
            "bytes": pa.array([done.bytes], pa.int64()),
            "state": pa.array([done.state.model_dump_json().encode()], pa.binary()),
            "keys": pa.array([None if done.keys is None else done.keys.model_dump_json().encode()], pa.binary()),
        }
        return pa.RecordBatch.from_pydict(row)


def read_acknowledgement(row: Any) -> Acknowledgement:
    """A collected row as an acknowledgement.

    Raises:
        PartfileError: The worker runs another version of partfile than the driver.
    """
    check_version(row.version)
    state = SubtaskState.model_validate_json(bytes(row.state))
    keys = None if row.keys is None else KeyAnswer.model_validate_json(bytes(row.keys))
    return Acknowledgement(row.submission, row.version, row.rows, row.bytes, state, keys)


def begin_task() -> None:
    """Make the transfer of a task's rows as quick as a worker can, before it reads them."""
    spare_modules_from_collection()
    acknowledge_at_once()


def spare_modules_from_collection() -> None:
    """Take what imports have made since the last task out of the garbage collector's sight.

    Spark's worker runs a full collection after every task. Modules are never garbage, yet each collection walks their
    objects: ninety thousand before the first task, 57 ms of CPU, and thirty thousand more that the first task imports,
    15 ms. What else is alive is spared with them, so it is done once for each number of modules. See ``gc.freeze``.
    """
    _spare(len(sys.modules))


@functools.cache
def _spare(_modules: int) -> None:
    gc.collect()
    gc.freeze()


def acknowledge_at_once() -> None:
    """Have Linux acknowledge at once what the JVM sends this worker next over the loopback interface.

    Spark's JVM sends a batch in small packets and, by Nagle's algorithm, each only when the one before is acknowledged,
    which the worker's side puts off for 40 ms: a fifth of a micro-batch of few rows. It lasts for a while only (see
    ``TCP_QUICKACK`` in tcp(7)), so it is asked for before a task reads. Elsewhere than on Linux, and on the Unix domain
    sockets of ``spark.python.unix.domain.socket.enabled``, there is nothing to do.
    """
    option: int | None = getattr(socket, "TCP_QUICKACK", None)
    if option is None:
        return
    # Not by a socket of Python's: made of a descriptor, it may leave the connection without blocking, also for Spark.
    system, on = ctypes.CDLL(None), ctypes.c_int(1)
    for descriptor in _sockets():
        # What is no connection by TCP refuses, and stays as it is.
        system.setsockopt(descriptor, socket.IPPROTO_TCP, option, ctypes.byref(on), ctypes.sizeof(on))


def _sockets() -> list[int]:
    """Descriptors of sockets of this process, some perhaps closed since; none where there is no /proc."""
    found = []
    with suppress(OSError):
        for path in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # The listing's own descriptor, or another thread's.
                # Not by looking at the file, which may be on a mount that does not answer.
                if str(path.readlink()).startswith("socket:"):
                    found.append(int(path.name))
    return found


def check_version(version: str) -> None:
    """Refuse an answer of a worker that runs another version of partfile than the driver.

    Args:
        version: The worker's, by its answer.

    Raises:
        PartfileError: It is another one.
    """
    if version != __version__:
        raise PartfileError(
            f"an executor has partfile {version}, the driver {__version__}",
            hint=f"Install the same version on every node: pip install partfile=={__version__}",
        )


def by_bucket(df: DataFrame, bucketer: Bucketer, context: BucketContext, partitions: int) -> DataFrame:
    """Shuffle rows so that those of one bucket come to one of ``partitions`` subtasks.

    Where the bucketer knows a key that Spark can compute, Spark does; else the bucketer runs once more before the
    shuffle. Correctness never depends on it: a bucket may be open in several subtasks, it only makes more files.
    """
    key = bucketer.hash_key
    if key is not None:
        missing = [name for name in key.columns if name not in df.columns]
        if missing:
            raise ConfigError(
                f"{bucketer!r} needs column {missing[0]!r}; the columns are {', '.join(df.columns)}",
                hint=f"Add it to the DataFrame: df.withColumn({missing[0]!r}, ...).",
            )
        hashed = F.xxhash64(*_key_columns(key))
        return sent_to_tasks(df, partitions, F.pmod(hashed, F.lit(partitions)).cast("int"))
    marked = df.mapInArrow(_marker(bucketer, context, partitions), _with_subtask(df))
    return sent_to_tasks(marked, partitions, F.col(_SUBTASK_COLUMN)).drop(_SUBTASK_COLUMN)


def _key_columns(key: HashKey) -> list[Column]:
    columns = [F.col(quoted(name)) for name in key.columns]
    if key.truncate_to is None:
        return columns
    local = F.convert_timezone(F.current_timezone(), F.lit(key.time_zone), columns[0].cast("timestamp_ntz"))
    return [F.date_trunc(key.truncate_to, local)]


def _with_subtask(df: DataFrame) -> StructType:
    return StructType(list(df.schema.fields)).add(_SUBTASK_COLUMN, IntegerType())


def _marker(
    bucketer: Bucketer, context: BucketContext, partitions: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with problem_told():
                buckets = bucketer.bucket_of(batch, context)
            ids = [crc32_of(str(path).encode()) % partitions for path in buckets.dictionary.to_pylist()]
            subtasks = pc.take(pa.array(ids, pa.int32()), buckets.indices)
            yield batch.append_column(_SUBTASK_COLUMN, subtasks)

    return mark
