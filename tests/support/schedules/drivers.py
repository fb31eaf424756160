"""The drivers of the model and their tasks: real coordinators and operators, as an engine runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from partfile.errors import SnapshotCorrupt, StoreError
from partfile.sink.coordinator import Runtime
from partfile.sink.deduplicate import check_runs
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.spark.distinct import TaskKeys, key_plan
from partfile.sink.states import SubtaskSnapshot, assigned_to
from partfile.snapshot.key_hash import hashes_of
from partfile.snapshot.operator_state import write_operator_state
from partfile.snapshot.storage import open_storage

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

    from partfile.sink.file_sink import FileSink
    from partfile.sink.spark.distinct import KeyAnswer, KeyPlan
    from partfile.sink.states import SeenKeys
    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.stores.base import Store
    from partfile.stores.local.posix import PosixCalls
    from support.schedules.turns import Actor, Schedule


BUCKETS = "ab"


class Surroundings(Protocol):
    """What drivers need to know of the job that they are of."""

    rng: random.Random
    schedule: Schedule
    batches: int
    now_ms: int

    def rows(self, batch: int, subtask: int) -> list[str]:
        """The rows of a subtask in a batch; all of one key come to one subtask."""

    def subtasks(self, batch: int) -> int:
        """How many subtasks a batch has."""

    def open_store(self, calls: PosixCalls) -> Store:
        """A store on the base."""

    def sink(self, calls: PosixCalls | None) -> FileSink:
        """A sink on the base."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task answers; where the sink deduplicates, its state lies beside the checkpoint, in a file."""

    state: SubtaskSnapshot | StateHandle | None
    keys: KeyAnswer | None


@dataclass
class Submission:
    """One run of a batch by a driver: what its tasks have answered, by subtask."""

    keys: KeyPlan | None
    """What its tasks do about keys; None if the sink does not deduplicate."""
    answers: dict[int, Answer] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)
    damage: SnapshotCorrupt | None = None
    """A task has not found a run of keys, or not as it was written."""


class Driver:
    """One driver: restores, and runs batch after batch, with the timer and aborted checkpoints in between.

    Args:
        job: Its job.
        actor: The process that it is.
        may_stop: Whether it may end before the last batch.
    """

    def __init__(self, job: Surroundings, actor: Actor, *, may_stop: bool) -> None:
        self._job = job
        self._actor = actor
        self._may_stop = may_stop
        self._settings = job.sink(actor.calls).settings
        self._runtime = Runtime(self._settings, "life")

    def run(self) -> None:
        """Work until the batches are done, or until it stops."""
        job, coordinator = self._job, self._runtime.coordinator
        coordinator.start(lambda _position: None, job.now_ms, open_keys=self._check_keys)
        while (done := position_of(coordinator.state.position.user_position)) < job.batches:
            chance = job.rng.random()
            job.now_ms += job.rng.randrange(15_000)
            if chance < 0.15:
                coordinator.close_due(job.now_ms)
            elif chance < 0.25 and self._may_stop:
                coordinator.close_all(job.now_ms, keep=job.rng.random() < 0.7)
                return
            else:
                self._batch(done + 1)
        coordinator.close_all(job.now_ms)
        self._runtime.close()

    def _check_keys(self, seen: SeenKeys | None) -> None:
        check_runs(self._settings, None, self._runtime.storage, seen)

    def _batch(self, batch: int) -> None:
        job, coordinator = self._job, self._runtime.coordinator
        pending = coordinator.trigger(job.now_ms)
        subtasks = job.subtasks(batch)
        options, seen = self._settings.deduplicate, coordinator.state.position.seen_keys
        keys = key_plan(options, subtasks, seen, ("string",), pending.time_ms) if options is not None else None
        submission = Submission(keys)
        while len(submission.answers) < subtasks:
            if submission.damage is not None:
                # A rival merges runs and deletes them; it is the only reason why one may be gone.
                coordinator.check_fence()
                raise submission.damage
            for subtask in set(range(subtasks)) - submission.answers.keys():
                # A task that died is run again; one that lives may get a twin, at times with its own attempt number.
                if not submission.running[subtask] or (submission.attempts[subtask] < 3 and job.rng.random() < 0.03):
                    self._start_task(submission, batch, subtask, pending.checkpoint_id)
            self._actor.pause()
        if job.rng.random() < 0.1:
            coordinator.abort()
            return
        answers = [submission.answers[subtask] for subtask in range(subtasks)]
        changed: dict[str, object] = {"user_position": batch}
        if keys is not None:
            told = [answer.keys for answer in answers if answer.keys is not None]
            changed["seen_keys"] = keys.after(told, pending.checkpoint_id)
        stands = coordinator.state.position.model_copy(update=changed)
        try:
            snapshots = [self._snapshot(subtask, answer) for subtask, answer in enumerate(answers)]
        except SnapshotCorrupt:
            # A rival deletes its checkpoints, and what lies beside one of the same id.
            coordinator.check_fence()
            raise
        coordinator.complete(pending, snapshots, stands, job.now_ms)

    def _snapshot(self, subtask: int, answer: Answer) -> SubtaskSnapshot:
        if isinstance(answer.state, SubtaskSnapshot):
            return answer.state
        return SubtaskSnapshot.from_states(subtask, self._runtime.storage.read_state(answer.state))

    def _storage(self, actor: Actor) -> CheckpointStorage:
        settings = self._job.sink(actor.calls).settings
        return open_storage(settings.checkpoints, self._runtime.job, opener=settings.open_store)

    def _start_task(self, submission: Submission, batch: int, subtask: int, checkpoint_id: int) -> None:
        job, coordinator = self._job, self._runtime.coordinator
        attempt = submission.attempts[subtask] if job.rng.random() < 0.5 else 0
        submission.attempts[subtask] += 1
        submission.running[subtask] += 1
        share = assigned_to(coordinator.assignment(), subtask)
        share = share.model_copy(update={"max_count": coordinator.state.max_count})
        chain, may_stage = coordinator.state.position.chain, self._runtime.may_stage
        context = SubtaskContext(subtask, attempt, coordinator.epoch, chain, job.now_ms, may_stage=may_stage)

        def work(actor: Actor) -> None:
            store = job.open_store(actor.calls)
            storage = None if submission.keys is None else self._storage(actor)
            keys = None if submission.keys is None or storage is None else TaskKeys(submission.keys, storage)
            operator = SinkOperator(store, job.sink(None).settings.description)
            try:
                operator.open(context, share)
                batches = _records(job.rows(batch, subtask), submission.keys)
                for record in batches if keys is None else keys.distinct(batches):
                    operator.write(record)
                snapshot = operator.snapshot(checkpoint_id)
                operator.close()
                # After the parts are durable, as a task of Spark's does (R9).
                answer = Answer(snapshot, None)
                if keys and storage:
                    state = write_operator_state(snapshot.to_states(), storage.stream_factory(checkpoint_id))
                    answer = Answer(state, keys.answer(subtask, checkpoint_id))
                submission.answers.setdefault(subtask, answer)
            except StoreError:
                # The attempt has failed, and the engine makes another one.
                operator.close()
            except SnapshotCorrupt as damage:
                operator.close()
                submission.damage = damage
            finally:
                submission.running[subtask] -= 1

        job.schedule.start(f"task {batch}.{subtask}.{attempt}", work)


def _records(rows: Iterable[str], keys: KeyPlan | None) -> Iterator[pa.RecordBatch]:
    """A record batch for each row, with the hash of its key where the sink deduplicates, as of several partitions."""
    for number, row in enumerate(rows):
        columns: dict[str, Any] = {"bucket": [BUCKETS[number % 2]], "row": [row]}
        if keys is not None:
            hashes = hashes_of([pa.array([row])])
            columns |= {"__partfile_high": hashes.high.view(np.int64), "__partfile_low": hashes.low.view(np.int64)}
        yield pa.RecordBatch.from_pydict(columns)


def position_of(position: object) -> int:
    """How many batches are complete."""
    assert position is None or isinstance(position, int)
    return position or 0
