"""The Spark job that encodes stages which no task is writing: the driver hands them out and reads the answers."""

from __future__ import annotations

import heapq
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from partfile.filesystems import errors
from partfile.filesystems.errors import NotReady, PartfileError
from partfile.filesystems.opening import options_of_tasks
from partfile.filesystems.port import PartHandle
from partfile.filesystems.tokens import new_token
from partfile.sink.encoding import EncodedStage, StagesInProcess
from partfile.sink.spark.worker import check_version, spare_modules_from_collection
from partfile.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from partfile.sink.restore_settings import StoreOpener
    from partfile.sink.settings import SinkSettings
    from partfile.sink.states import RolledStage
    from partfile.writers.port import Format

ANSWER = StructType(
    [
        StructField("submission", StringType()),
        StructField("version", StringType()),
        StructField("answer", BinaryType()),
    ]
)
_TASK_BYTES = 128 << 20
"""Of stages for one task: enough to be worth it, and little enough to be done again when its worker dies."""
_STAGE_BYTES = 1 << 20
"""What opening a stage and creating a file cost, as bytes that could have been encoded meanwhile."""
_POOL = "spark.scheduler.pool"
_DESCRIPTION = "spark.job.description"


class Problem(BaseModel):
    """An error on its way from a task to the driver."""

    model_config = ConfigDict(frozen=True)

    kind: str
    """Name of a class in ``filesystems/errors.py``."""
    message: str
    hint: str = ""
    path: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Describe an error; one from outside the tree becomes a plain PartfileError that names its class."""
        if not isinstance(error, PartfileError):
            return cls(kind=PartfileError.__name__, message=f"{type(error).__name__}: {error}")
        kind = next(base.__name__ for base in type(error).__mro__ if base.__module__ == errors.__name__)
        return cls(kind=kind, message=error.message, hint=error.hint, path=error.path)

    def to_error(self) -> PartfileError:
        """The error, of the class that it had or of the nearest above it."""
        kind: type[PartfileError] = getattr(errors, self.kind, PartfileError)
        return kind(self.message, hint=self.hint, path=self.path)


class EncodeAnswer(BaseModel):
    """What a task says of one stage."""

    model_config = ConfigDict(frozen=True)

    stage: str
    """Its in-progress name, which no other stage has."""
    target: PartHandle | None = None
    problem: Problem | None = None

    @classmethod
    def of(cls, encoded: EncodedStage) -> Self:
        """Describe what became of a stage."""
        problem = None if encoded.problem is None else Problem.of(encoded.problem)
        return cls(stage=encoded.stage.part.in_progress, target=encoded.target, problem=problem)


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """Everything a task needs; travels in the closure. Holds no open resource."""

    base: str
    open_store: StoreOpener
    submission: str
    """Of this job alone: an answer to another one counts for nothing."""
    shares: tuple[tuple[RolledStage, ...], ...]
    """The stages of each task."""
    sink_format: Format
    """Lends its encryption to the files."""
    base_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """What the store of the parts is opened with."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Encode the shares whose numbers come in, one stage after the other, and answer with a row for each stage.

        Idempotence: each attempt writes files of its own names; those of an attempt whose answer does not come are
        orphans.
        """
        spare_modules_from_collection()
        with self.open_store(self.base, self.base_options) as store:
            encoder = StagesInProcess(store, threads=1, sink_format=self.sink_format)
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield self._rows(encoder.encode(self.shares[number]))

    def _rows(self, encoded: Sequence[EncodedStage]) -> pa.RecordBatch:
        answers = [EncodeAnswer.of(one).model_dump_json().encode() for one in encoded]
        row: dict[str, Any] = {
            "submission": [self.submission] * len(answers),
            "version": [__version__] * len(answers),
            "answer": pa.array(answers, pa.binary()),
        }
        return pa.RecordBatch.from_pydict(row)


class StagesBySpark:
    """Encodes stages by Spark jobs of their own, in the scheduler pool of the thread that made this.

    Args:
        settings: The sink's options.
        session: Runs the jobs.
    """

    def __init__(self, settings: SinkSettings, session: SparkSession) -> None:
        self._settings = settings
        self._session = session
        self._pool: str | None = session.sparkContext.getLocalProperty(_POOL)

    def encode(self, stages: Sequence[RolledStage]) -> Sequence[EncodedStage]:
        """See ``StageEncoder.encode``. Spark tries a task again whose worker died; raises what ends the job."""
        shares = shared_out(stages, self._session.sparkContext.defaultParallelism)
        task = EncodeTask(
            base=self._settings.base,
            open_store=self._settings.open_store_in_tasks,
            submission=new_token(),
            shares=tuple(tuple(stages[place] for place in share) for share in shares),
            sink_format=self._settings.format,
            base_options=options_of_tasks(self._settings.base, self._settings.storage_options),
        )
        numbers = self._session.range(0, len(shares), 1, len(shares))
        with self._properties(f"partfile {self._settings.uid}: encode {len(stages)} parts"):
            rows = numbers.mapInArrow(task.run, ANSWER).collect()
        return read_answers(stages, task.submission, rows)

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


def stage_encoder(settings: SinkSettings, session: SparkSession | None) -> StagesBySpark | None:
    """The encoder of a driver; None where there is no Spark to do it.

    Args:
        settings: The sink's options.
        session: Of the query; None takes the one that is active.
    """
    session = session or SparkSession.getActiveSession()
    return None if session is None else StagesBySpark(settings, session)


def shared_out(stages: Sequence[RolledStage], slots: int) -> list[list[int]]:
    """Places of stages, by the task that is to encode them: all slots busy for about as long, the longest tasks first.

    Args:
        stages: What is to be encoded.
        slots: How many tasks run at the same time, at least 1.
    """
    weights = [stage.part.valid_length + _STAGE_BYTES for stage in stages]
    tasks = min(len(stages), max(slots, -(-sum(weights) // _TASK_BYTES)))
    loads = [(0, task) for task in range(tasks)]
    shares: list[list[int]] = [[] for _ in range(tasks)]
    for place in sorted(range(len(stages)), key=lambda place: -weights[place]):
        load, task = heapq.heappop(loads)
        shares[task].append(place)
        heapq.heappush(loads, (load + weights[place], task))
    return [shares[task] for _, task in sorted(loads, key=lambda load: (-load[0], load[1]))]


def read_answers(stages: Sequence[RolledStage], submission: str, rows: Iterable[Any]) -> list[EncodedStage]:
    """What became of each stage, by the first answer to it; a stage without one is not encoded yet.

    Args:
        stages: What was to be encoded.
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
            answers.setdefault(answer.stage, answer)
    return [_encoded(stage, answers.get(stage.part.in_progress)) for stage in stages]


def _encoded(stage: RolledStage, answer: EncodeAnswer | None) -> EncodedStage:
    if answer is None or (answer.target is None and answer.problem is None):
        path = stage.part.path_of(stage.part.name)
        return EncodedStage(stage, problem=NotReady("no task has answered for it", path=path))
    return EncodedStage(stage, answer.target, None if answer.problem is None else answer.problem.to_error())
