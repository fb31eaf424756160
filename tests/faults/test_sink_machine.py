"""The sink under random schedules; oracle: finished rows are the rows of completed checkpoints, once each.

A small job without Spark but with its shape: each batch has its own number of subtasks, each subtask a fresh operator.
Batches complete, fail, are aborted or lose to a twin; zombies go on writing; the timer ticks; the driver crashes or
ends cleanly. A second machine drives one long-lived operator, as LocalSink does, with aborts and lost notifications.
Finished files stay, or a consumer takes each at once (R5): what it has taken counts as what lies in the tree does. No
driver dies between showing a part and noting that, so a sink need not be told of consumers either.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import partfile as pf
from partfile.errors import PartfileError
from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.states import assigned_to
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import intercept
from support.crash.worlds import temporary_directory
from support.sinks.life_cycle import LONG, SteppingClock, Taking, files_seen, rows_of, taken_by
from support.sinks.staged_streams import STAGED

EXAMPLES = settings().max_examples
PARTITIONS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "ab"])), max_size=3)


class Job:
    """What both machines share: a base, a clock, numbered rows, the runtime and the oracle."""

    def __init__(self, *, has_consumer: bool, is_told: bool, **options: Any) -> None:
        self.base = temporary_directory("partfile-machine-")
        self.clock = SteppingClock()
        self.next_row = 0
        self.committed: Counter[str] = Counter()
        self.seen: dict[str, bytes] = {}
        rolling = pf.RollingPolicy(max_part_bytes=40, rollover_interval_s=40, inactivity_interval_s=20)
        fixed: dict[str, Any] = {"format": "text", "rolling": rolling, "consumers_take_files": is_told}
        calls = intercept(PosixCalls(), Taking(self.base)) if has_consumer else PosixCalls()
        self.sink = pf.FileSink(
            self.base,
            uid="machine",
            bucketer=pf.HiveBucketer("bucket"),
            open_store=lambda url, _options: LocalStore(url, calls=calls),
            publish_threads=1,
            **(fixed | options),
        )
        self.runtime = self.restored()

    def restored(self) -> Runtime:
        """Begin an epoch."""
        runtime = Runtime(self.sink.settings, "machine")
        runtime.coordinator.start(lambda _position: None, self.clock())
        return runtime

    def restart(self) -> None:
        """The driver dies; the next one restores."""
        self.runtime.close()
        self.runtime = self.restored()

    def rows(self, count: int, buckets: str) -> tuple[pa.RecordBatch, Counter[str]]:
        """New rows, over the buckets in turn."""
        names = [f"row-{self.next_row + number:05d}" for number in range(count)]
        self.next_row += count
        columns = {"bucket": [buckets[number % len(buckets)] for number in range(count)], "row": names}
        return pa.RecordBatch.from_pydict(columns, pa.schema({"bucket": pa.string(), "row": pa.string()})), Counter(
            names
        )

    def operator(self, subtask: int, attempt: int = 0) -> SinkOperator:
        """A fresh operator with its share, as a task opens it."""
        coordinator = self.runtime.coordinator
        operator = SinkOperator(self.runtime.store, self.sink.settings.description)
        share = assigned_to(coordinator.assignment(), subtask)
        share = share.model_copy(update={"max_count": coordinator.state.max_count})
        operator.open(self.context(subtask, attempt), share)
        return operator

    def context(self, subtask: int, attempt: int = 0) -> SubtaskContext:
        """Who an operator is now."""
        coordinator = self.runtime.coordinator
        return SubtaskContext(
            subtask,
            attempt,
            coordinator.epoch,
            coordinator.state.position.chain,
            self.clock.now_ms,
            may_stage=self.runtime.may_stage,
        )

    def check(self) -> None:
        """Nothing visible that was not committed, nothing twice, nothing changed or gone; no part in two states."""
        state = self.runtime.coordinator.state
        opened = [part.part.name for parts in state.open.values() for part in parts]
        waiting = [*opened, *(one.part.name for one in state.pending), *(one.part.name for one in state.closed)]
        assert len(set(waiting)) == len(waiting)
        files = files_seen(self.base)
        assert not rows_of(files) - self.committed
        for name, data in self.seen.items():
            assert files.get(name) == data
        self.seen = files

    def close(self) -> None:
        """After a last restore every committed row is visible, once."""
        self.restart()
        assert rows_of(files_seen(self.base)) == self.committed
        self.runtime.close()
        shutil.rmtree(self.base)
        shutil.rmtree(taken_by(self.base), ignore_errors=True)


class BatchMachine(RuleBasedStateMachine):
    """Batches as Spark runs them."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.zombies: list[SinkOperator] = []

    @initialize(has_consumer=st.booleans(), is_told=st.booleans())
    def begin(self, has_consumer: bool, is_told: bool) -> None:
        """A first driver restores nothing."""
        self.job = Job(has_consumer=has_consumer, is_told=is_told, **self.options)

    @rule(partitions=PARTITIONS, outcome=st.sampled_from(["complete", "complete", "complete", "fail", "abort"]))
    def batch(self, partitions: list[tuple[int, str]], outcome: str) -> None:
        """Every subtask writes and takes its snapshot; then the batch completes, fails or is aborted."""
        coordinator = self.job.runtime.coordinator
        pending = coordinator.trigger(self.job.clock())
        written: Counter[str] = Counter()
        snapshots = []
        for subtask, (count, buckets) in enumerate(partitions):
            operator = self.job.operator(subtask)
            batch, names = self.job.rows(count, buckets)
            operator.write(batch)
            snapshots.append(operator.snapshot(pending.checkpoint_id))
            operator.close()
            written += names
        if outcome == "complete":
            coordinator.complete(pending, snapshots, coordinator.state.position)
            self.job.committed += written
        elif outcome == "abort":
            coordinator.abort()
        else:
            self.job.restart()

    @rule(count=st.integers(1, 3), buckets=st.sampled_from(["a", "ab"]), first=st.booleans())
    def twins(self, count: int, buckets: str, first: bool) -> None:
        """One partition runs twice with attempt number 0; one twin is acknowledged, the other becomes a zombie."""
        coordinator = self.job.runtime.coordinator
        pending = coordinator.trigger(self.job.clock())
        batch, names = self.job.rows(count, buckets)
        twins = [self.job.operator(0), self.job.operator(0)]
        for twin in twins:
            twin.write(batch)
        winner, zombie = twins if first else twins[::-1]
        snapshot = winner.snapshot(pending.checkpoint_id)
        winner.close()
        self.zombies.append(zombie)
        coordinator.complete(pending, [snapshot], coordinator.state.position)
        self.job.committed += names

    @rule(count=st.integers(1, 3), then_snapshot=st.booleans(), dies=st.booleans())
    def zombie_goes_on(self, count: int, then_snapshot: bool, dies: bool) -> None:
        """A zombie writes on, perhaps takes a snapshot that it was not asked for, perhaps dies."""
        if not self.zombies:
            return
        zombie = self.zombies.pop()
        with suppress(PartfileError):
            zombie.write(self.job.rows(count, "ab")[0])
            if then_snapshot:
                zombie.snapshot(self.job.runtime.coordinator.newest_checkpoint_id + 1)
        if dies:
            zombie.close()
        else:
            self.zombies.append(zombie)

    @rule(seconds=st.integers(1, 30))
    def timer(self, seconds: int) -> None:
        """Time passes and the idle timer ticks."""
        self.job.clock.now_ms += seconds * 1000
        self.job.runtime.coordinator.close_due(self.job.clock.now_ms)

    @rule()
    def crash(self) -> None:
        """The driver dies between two batches."""
        self.job.restart()

    @rule(keep=st.booleans())
    def clean_end(self, keep: bool) -> None:
        """A clean end publishes everything or keeps it; the next run goes on."""
        self.job.runtime.coordinator.close_all(self.job.clock(), keep=keep)
        if not keep:
            assert rows_of(files_seen(self.job.base)) == self.job.committed
        self.job.restart()

    @invariant()
    def finished_rows_are_committed_rows(self) -> None:
        """The oracle."""
        self.job.check()

    def teardown(self) -> None:
        """The last restore, with zombies still alive."""
        self.job.close()
        for zombie in self.zombies:
            zombie.close()


class OperatorMachine(RuleBasedStateMachine):
    """One operator over many checkpoints, as the sink without Spark runs it."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()

    @initialize(has_consumer=st.booleans(), is_told=st.booleans())
    def begin(self, has_consumer: bool, is_told: bool) -> None:
        """Open the operator."""
        self.job = Job(has_consumer=has_consumer, is_told=is_told, **self.options)
        self.operator = self.job.operator(0)

    @rule(count=st.integers(1, 4), buckets=st.sampled_from(["a", "b", "ab"]))
    def write(self, count: int, buckets: str) -> None:
        """Rows come."""
        self.job.clock()
        self.operator.advance(self.job.context(0))
        batch, names = self.job.rows(count, buckets)
        self.operator.write(batch)
        self.written += names

    @rule(is_notified=st.booleans())
    def checkpoint(self, is_notified: bool) -> None:
        """A checkpoint completes; the operator may not hear of it."""
        coordinator = self.job.runtime.coordinator
        pending = coordinator.trigger(self.job.clock())
        snapshot = self.operator.snapshot(pending.checkpoint_id)
        done = coordinator.complete(pending, [snapshot], coordinator.state.position)
        self.job.committed += self.written
        self.written = Counter()
        if is_notified:
            self.operator.notify_checkpoint_complete(done.checkpoint_id)

    @rule()
    def abort(self) -> None:
        """A checkpoint is given up after the operator took part; its rows count with the next one."""
        coordinator = self.job.runtime.coordinator
        pending = coordinator.trigger(self.job.clock())
        self.operator.snapshot(pending.checkpoint_id)
        coordinator.abort()

    @rule(in_checkpoint=st.booleans(), keep=st.booleans())
    def end_and_restore(self, in_checkpoint: bool, keep: bool) -> None:
        """The process dies, perhaps inside a checkpoint, or stops after one keeping its parts; another restores."""
        if in_checkpoint:
            self.operator.snapshot(self.job.runtime.coordinator.newest_checkpoint_id + 1)
        self.operator.close()
        if keep and not self.written and not in_checkpoint:
            self.job.runtime.coordinator.close_all(self.job.clock(), keep=True)
        self.written = Counter()
        self.job.restart()
        self.operator = self.job.operator(0)

    @invariant()
    def finished_rows_are_committed_rows(self) -> None:
        """The oracle."""
        self.job.check()

    def teardown(self) -> None:
        """The last restore."""
        self.operator.close()
        self.job.close()


class StagedBatchMachine(BatchMachine):
    """The same with staged parts, of which fewer may be open than there are buckets."""

    options = STAGED | {"rolling": LONG.model_copy(update={"inactivity_interval_s": 20}), "max_open_parts": 2}


class StagedOperatorMachine(OperatorMachine):
    """Likewise."""

    options = StagedBatchMachine.options


for machine in (StagedBatchMachine, StagedOperatorMachine):
    machine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
BatchMachine.TestCase.settings = settings(max_examples=2 * EXAMPLES, stateful_step_count=25, deadline=None)
OperatorMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=25, deadline=None)
TestBatches = pytest.mark.slow(BatchMachine.TestCase)
TestOperator = OperatorMachine.TestCase
TestStagedBatches = pytest.mark.slow(StagedBatchMachine.TestCase)
TestStagedOperator = StagedOperatorMachine.TestCase
