"""The drivers of the model and their tasks: real coordinators and operators, as an engine runs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from partfile.errors import StoreError
from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import assigned_to

if TYPE_CHECKING:
    import random

    from partfile.sink.file_sink import FileSink
    from partfile.sink.states import SubtaskSnapshot
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
        """The rows of a subtask in a batch."""

    def subtasks(self, batch: int) -> int:
        """How many subtasks a batch has."""

    def open_store(self, calls: PosixCalls) -> Store:
        """A store on the base."""

    def sink(self, calls: PosixCalls | None) -> FileSink:
        """A sink on the base."""


@dataclass
class Submission:
    """One run of a batch by a driver: what its tasks have answered, by subtask."""

    answers: dict[int, SubtaskSnapshot] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)


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
        self._runtime = Runtime(job.sink(actor.calls).settings, "life")

    def run(self) -> None:
        """Work until the batches are done, or until it stops."""
        job, coordinator = self._job, self._runtime.coordinator
        coordinator.start(lambda _position: None, job.now_ms)
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

    def _batch(self, batch: int) -> None:
        job, coordinator = self._job, self._runtime.coordinator
        pending = coordinator.trigger(job.now_ms)
        submission = Submission()
        subtasks = job.subtasks(batch)
        while len(submission.answers) < subtasks:
            for subtask in set(range(subtasks)) - submission.answers.keys():
                # A task that died is run again; one that lives may get a twin, at times with its own attempt number.
                if not submission.running[subtask] or (submission.attempts[subtask] < 3 and job.rng.random() < 0.03):
                    self._start_task(submission, batch, subtask, pending.checkpoint_id)
            self._actor.pause()
        if job.rng.random() < 0.1:
            coordinator.abort()
            return
        stands = coordinator.state.position.model_copy(update={"user_position": batch})
        answers = [submission.answers[subtask] for subtask in range(subtasks)]
        coordinator.complete(pending, answers, stands, job.now_ms)

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
            operator = SinkOperator(job.open_store(actor.calls), job.sink(None).settings.description)
            try:
                operator.open(context, share)
                for number, row in enumerate(job.rows(batch, subtask)):
                    operator.write(_record(number, row))
                snapshot = operator.snapshot(checkpoint_id)
                operator.close()
                submission.answers.setdefault(subtask, snapshot)
            except StoreError:
                # The attempt has failed, and the engine makes another one.
                operator.close()
            finally:
                submission.running[subtask] -= 1

        job.schedule.start(f"task {batch}.{subtask}.{attempt}", work)


def _record(number: int, row: str) -> Any:
    return pa.RecordBatch.from_pydict({"bucket": [BUCKETS[number % 2]], "row": [row]})


def position_of(position: object) -> int:
    """How many batches are complete."""
    assert position is None or isinstance(position, int)
    return position or 0
