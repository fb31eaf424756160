"""The Spark job that encodes staging files which no task is writing.

The driver hands them out and reads the answers.
"""

from __future__ import annotations

import heapq
import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from partfile.errors import NotReady, StoreError
from partfile.sink.encode import EncodeResult, LocalEncoder
from partfile.sink.encoded_files import EncodedFile, JobFailed, SharedJobFailed
from partfile.sink.spark.identity import is_stopped
from partfile.sink.spark.write_job import Problem, begin_task, check_version
from partfile.snapshot.documents import MARKER
from partfile.snapshot.storage import open_storage
from partfile.stores.paths import new_token
from partfile.stores.registry import options_of_tasks
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from partfile.sink.encode import StagingEncoder
    from partfile.sink.settings import SinkSettings, StoreOpener
    from partfile.sink.states import ClosedStagingFile
    from partfile.snapshot.storage import CheckpointStorage, StorageSettings
    from partfile.writers.base import Format


MOST_FAILED_JOBS = 4
"""Of one call; each costs some tries of its tasks, while a batch waits."""
_TASK_BYTES = 128 << 20
"""Of staging files for one task: enough to be worth it, and little enough to be done again when its worker dies."""
_STAGING_FILE_BYTES = 1 << 20
"""The cost of opening a staging file and creating a file, as bytes that could have been encoded meanwhile."""


class EncodeGroups:
    """Remembers the staging files of jobs that failed, by the in-progress names that no other staging file has."""

    def __init__(self) -> None:
        self._suspects: list[frozenset[str]] = []
        """Each is to be one job."""

    def of(self, staging_files: Sequence[ClosedStagingFile]) -> list[list[ClosedStagingFile]]:
        """The staging files of each job, in the order of the jobs: all those that nothing is known of by the first.

        Args:
            staging_files: What is to be encoded now. Suspects that are not among them wait, and stay suspects.
        """
        suspected, asked = frozenset[str]().union(*self._suspects), frozenset(map(_name, staging_files))
        groups = [[staging_file for staging_file in staging_files if _name(staging_file) not in suspected]]
        groups += [
            [staging_file for staging_file in staging_files if _name(staging_file) in names] for names in self._suspects
        ]
        self._suspects = [names - asked for names in self._suspects if names - asked]
        return [group for group in groups if group]

    def failed(self, group: Sequence[ClosedStagingFile]) -> None:
        """Note that the job of these has failed: next time its halves are jobs of their own."""
        names, half = [_name(staging_file) for staging_file in group], len(group) // 2
        self._suspects += [frozenset(part) for part in (names[:half], names[half:]) if part]

    def not_tried(self, group: Sequence[ClosedStagingFile]) -> None:
        """Note that these have had no job, since too many failed: next time they come before those."""
        self._suspects.insert(0, frozenset(map(_name, group)))


def assign_to_tasks(staging_files: Sequence[ClosedStagingFile], slots: int) -> list[list[int]]:
    """Places of staging files, by the task that is to encode them.

    All slots busy for about as long, the longest tasks first.

    Args:
        staging_files: What is to be encoded.
        slots: How many tasks run at the same time, at least 1.
    """
    weights = [staging_file.part.valid_length + _STAGING_FILE_BYTES for staging_file in staging_files]
    tasks = min(len(staging_files), max(slots, -(-sum(weights) // _TASK_BYTES)))
    loads = [(0, task) for task in range(tasks)]
    shares: list[list[int]] = [[] for _ in range(tasks)]
    for place in sorted(range(len(staging_files)), key=lambda place: -weights[place]):
        load, task = heapq.heappop(loads)
        shares[task].append(place)
        heapq.heappush(loads, (load + weights[place], task))
    return [shares[task] for _, task in sorted(loads, key=lambda load: (-load[0], load[1]))]


def _name(staging_file: ClosedStagingFile) -> str:
    return staging_file.part.in_progress


ANSWER = StructType(
    [
        StructField("submission", StringType()),
        StructField("version", StringType()),
        StructField("answer", BinaryType()),
    ]
)
logger = logging.getLogger("partfile")
_POOL = "spark.scheduler.pool"
_DESCRIPTION = "spark.job.description"


class EncodeAnswer(BaseModel):
    """The answer of a task about one staging file."""

    model_config = ConfigDict(frozen=True)

    staging_file: str
    """Its in-progress name, which no other staging file has."""
    files: tuple[EncodedFile, ...] | None = None
    problem: Problem | None = None

    @classmethod
    def of(cls, encoded: EncodeResult) -> Self:
        """Describe what became of a staging file."""
        problem = None if encoded.problem is None else Problem.of(encoded.problem)
        return cls(staging_file=encoded.staging_file.part.in_progress, files=encoded.files, problem=problem)


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Everything a task needs; travels in the closure. Holds no open resource."""

    base: str
    checkpoints: StorageSettings
    job: str
    """The name of the checkpoint log, where the driver's marker is."""
    open_store: StoreOpener
    submission: str
    """Of this job alone: an answer to another one counts for nothing."""
    shares: tuple[tuple[ClosedStagingFile, ...], ...]
    """The staging files of each task."""
    sink_format: Format
    """Lends its encryption to the files."""
    base_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options of the store of the parts."""
    checkpoint_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Options of the store of the checkpoints."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode the shares whose numbers come in, one staging file after the other, and answer with a row for each.

        Idempotence: each attempt writes files of its own names; those of an attempt whose answer does not come are
        orphans.
        """
        begin_task()
        with self.open_store(self.base, self.base_options) as store:
            encoder = LocalEncoder(store, threads=1, sink_format=self.sink_format)
            elsewhere = self._why_elsewhere()
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    share = self.shares[number]
                    if elsewhere is None:
                        yield self._rows(encoder.encode(share))
                    else:
                        yield self._rows([EncodeResult(staging_file, problem=elsewhere) for staging_file in share])

    def _why_elsewhere(self) -> SharedJobFailed | None:
        """Why this worker is not where the driver is, if it is not: then nothing that it misses is gone (R13).

        That is the worker's trouble, whatever its staging files are.
        """
        storage = open_storage(self.checkpoints, self.job, self.checkpoint_options, opener=self.open_store)
        with closing(storage.store):
            try:
                # Whether it is a lock does not matter here: nothing is left open.
                storage.store.marker_is_held(storage.path(MARKER))
            except StoreError as error:
                return SharedJobFailed(error.message, hint=error.hint, path=error.path)
        return None

    def _rows(self, encoded: Sequence[EncodeResult]) -> pa.RecordBatch:
        answers = [EncodeAnswer.of(one).model_dump_json().encode() for one in encoded]
        row: dict[str, Any] = {
            "submission": [self.submission] * len(answers),
            "version": [__version__] * len(answers),
            "answer": pa.array(answers, pa.binary()),
        }
        return pa.RecordBatch.from_pydict(row)


class SparkEncoder:
    """Encodes staging files by Spark jobs of their own; on the driver once the Spark application has stopped.

    Args:
        settings: The sink's options.
        storage: Of the sink's checkpoints; its store holds the marker that tasks look for.
        here: Encodes in this process.
        session: Runs the jobs.
        pool: The scheduler pool that they run in.
        groups: Knows which staging files have been in jobs that failed.
    """

    def __init__(
        self,
        settings: SinkSettings,
        storage: CheckpointStorage,
        here: StagingEncoder,
        session: SparkSession,
        *,
        pool: str | None,
        groups: EncodeGroups,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._here = here
        self._session = session
        self._pool = pool
        self._groups = groups

    @property
    def is_elsewhere(self) -> bool:
        """Yes, in workers of any host."""
        return True

    def encode(self, staging_files: Sequence[ClosedStagingFile]) -> Sequence[EncodeResult]:
        """Encode staging files by Spark jobs, a task each. Spark tries a task again whose worker died.

        A job that fails does not end the query: the rows are safe in their staging files, and another try may work. The
        next try splits the job, so that a staging file that kills its worker does not hold back the others. A program
        that stops Spark as soon as its query has ended has no jobs any more: then this process encodes.
        """
        encoded = {} if is_stopped(self._session) else self._encode_by_jobs(staging_files)
        left = [one for one in staging_files if not _is_encoded(encoded.get(one.part.in_progress))]
        if left and is_stopped(self._session):
            uid = self._settings.uid
            logger.warning("%s: Spark has stopped, and the driver encodes %d parts itself", uid, len(left))
            encoded |= _by_staging_file(self._here.encode(left))
        return [encoded[one.part.in_progress] for one in staging_files]

    def _encode_by_jobs(self, staging_files: Sequence[ClosedStagingFile]) -> dict[str, EncodeResult]:
        encoded: dict[str, EncodeResult] = {}
        failure: Exception | None = None
        failures = 0
        for group in self._groups.of(staging_files):
            if failures == MOST_FAILED_JOBS:
                self._groups.not_tried(group)
                continue
            try:
                rows, submission = self._run(group)
            except Exception as error:
                logger.warning(
                    "%s: a job that was to encode staging files has failed", self._settings.uid, exc_info=True
                )
                failure, failures = error, failures + 1
                self._groups.failed(group)
                if len(group) == 1:
                    encoded[group[0].part.in_progress] = _not_encoded(group[0], error, JobFailed)
            else:
                encoded |= _by_staging_file(read_answers(group, submission, rows))
        left = [one for one in staging_files if one.part.in_progress not in encoded]
        return encoded | _by_staging_file(_not_encoded(one, failure, SharedJobFailed) for one in left)

    def _run(self, staging_files: Sequence[ClosedStagingFile]) -> tuple[Sequence[Any], str]:
        """Run one job; return the answers of its tasks and its submission. Raises the error that ends the job."""
        shares = assign_to_tasks(staging_files, self._session.sparkContext.defaultParallelism)
        self._storage.store.hold_marker(self._storage.path(MARKER))
        task = EncodeTask(
            base=self._settings.base,
            checkpoints=self._settings.checkpoints,
            job=self._storage.job,
            open_store=self._settings.open_store_in_tasks,
            submission=new_token(),
            shares=tuple(tuple(staging_files[place] for place in share) for share in shares),
            sink_format=self._settings.format,
            base_options=options_of_tasks(self._settings.base, self._settings.storage_options),
            checkpoint_options=options_of_tasks(self._settings.checkpoint_url, self._settings.checkpoint_options),
        )
        numbers = self._session.range(0, len(shares), 1, len(shares))
        with self._properties(f"partfile {self._settings.uid}: encode {len(staging_files)} parts"):
            return numbers.mapInArrow(task.run, ANSWER).collect(), task.submission

    @contextmanager
    def _properties(self, description: str) -> Iterator[None]:
        """The timer and the clean end have threads of their own, without what Spark has set for the query's."""
        context: Any = self._session.sparkContext
        wanted = {_POOL: self._pool, _DESCRIPTION: description}
        before = {name: context.getLocalProperty(name) for name in wanted}
        for name, value in wanted.items():
            context.setLocalProperty(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                context.setLocalProperty(name, value)


def staging_encoder(
    settings: SinkSettings, session: SparkSession | None
) -> Callable[[CheckpointStorage, StagingEncoder], SparkEncoder] | None:
    """A factory of encoders of a driver, in the pool of this thread; None where Spark does not run.

    Each encoder knows of the jobs that failed for those before it.

    Args:
        settings: The sink's options.
        session: Of the query; None takes the one that is active.
    """
    session = session or SparkSession.getActiveSession()
    if session is None or is_stopped(session):
        return None
    pool: str | None = session.sparkContext.getLocalProperty(_POOL)
    groups = EncodeGroups()
    return lambda storage, here: SparkEncoder(settings, storage, here, session, pool=pool, groups=groups)


def read_answers(
    staging_files: Sequence[ClosedStagingFile], submission: str, rows: Iterable[Any]
) -> list[EncodeResult]:
    """The result for each staging file, by the first answer to it; one without an answer is not encoded yet.

    Args:
        staging_files: What was to be encoded.
        submission: Of the job.
        rows: What it collected.

    Raises:
        PartfileError: A worker runs another version of partfile than the driver.
    """
    answers: dict[str, EncodeAnswer] = {}
    for row in rows:
        if row.submission == submission:
            check_version(row.version)
            answer = EncodeAnswer.model_validate_json(bytes(row.answer))
            answers.setdefault(answer.staging_file, answer)
    return [_encoded(staging_file, answers.get(staging_file.part.in_progress)) for staging_file in staging_files]


def _by_staging_file(results: Iterable[EncodeResult]) -> dict[str, EncodeResult]:
    return {one.staging_file.part.in_progress: one for one in results}


def _is_encoded(result: EncodeResult | None) -> bool:
    return result is not None and result.problem is None


def _encoded(staging_file: ClosedStagingFile, answer: EncodeAnswer | None) -> EncodeResult:
    if answer is None or (answer.files is None and answer.problem is None):
        return _not_encoded(staging_file, None)
    return EncodeResult(staging_file, answer.files, None if answer.problem is None else answer.problem.to_error())


def _not_encoded(
    staging_file: ClosedStagingFile, failure: Exception | None, kind: type[NotReady] = NotReady
) -> EncodeResult:
    what = "no task has answered for it"
    if failure is not None:
        first_line = (str(failure).splitlines() or [""])[0]
        what = f"the Spark job that was to encode it has failed: {type(failure).__name__}: {first_line}"
    hint = "It is tried again later. What ended the job is in the logs of driver and executors."
    return EncodeResult(
        staging_file, problem=kind(what, hint=hint, path=staging_file.part.path_of(staging_file.part.name))
    )
