"""A Spark driver between two batches, without Spark: its store, its idle timer's ticks, and a rival."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from partfile.errors import NotReady, OutcomeUnknown
from partfile.sink.coordinator import Runtime
from partfile.sink.layout import SubtaskContext
from partfile.sink.operator import SinkOperator
from partfile.sink.restore_rules import position_after
from partfile.sink.spark.identity import QueryRun
from partfile.sink.spark.stream import SparkStream
from partfile.sink.states import QueryPosition, assigned_to
from partfile.stores.local.store import LocalStore
from support.sinks.life_cycle import LONG, make_sink

if TYPE_CHECKING:
    from pathlib import Path


RUN = QueryRun(1, "query", "run")
BATCH = QueryPosition(query_id="query", batch_id=0)
ROWS = pa.schema({"value": pa.string()})
IDLE_S = 1.0
INTERVAL_MS = 250


class Commits:
    """Says how local stores answer who creates a checkpoint.

    ``made``, ``refused``, ``lost`` (made, but no answer says so).
    """

    def __init__(self) -> None:
        self.answer = "made"

    def open_store(self, url: str, _options: object) -> LocalStore:
        """A store on a local directory."""
        return _Store(url, self)


class _Store(LocalStore):
    def __init__(self, url: str, commits: Commits) -> None:
        super().__init__(url)
        self._commits = commits

    def create_file(self, path: str, data: bytes) -> None:
        if not path.endswith("_metadata") or self._commits.answer == "made":
            super().create_file(path, data)
        elif self._commits.answer == "refused":
            raise NotReady("not now", path=path)
        else:
            self._commits.answer = "refused"
            super().create_file(path, data)
            raise OutcomeUnknown("no answer", path=path)


class IdleDriver:
    """A driver whose query has written a batch of two rows, and is idle. Its own thread has no tick.

    Args:
        base: Where the rows go.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.now_ms = 1_000_000
        self.commits = Commits()
        rolling = LONG.model_copy(update={"inactivity_interval_s": IDLE_S})
        self.settings = make_sink(
            base, rolling=rolling, clock=lambda: self.now_ms, open_store=self.commits.open_store
        ).settings
        self.stream = SparkStream(self.settings)
        self.stream._mutex.acquire()
        self.restores()
        self.writes(0)

    def restores(self) -> None:
        """A batch begins."""
        self.stream._restore(RUN, BATCH, ROWS)

    def tick(self) -> int | None:
        """The timer is due; in how many milliseconds it is so again."""
        assert self.stream._timer is not None
        at_ms = self.stream._tick(RUN)
        return None if at_ms is None else at_ms - self.now_ms

    def goes_on(self) -> None:
        """The query has rows, and its batch is in the epoch that is there."""
        self.stream._check_fence(RUN)
        if self.stream._runtime is None or self.stream._run != RUN:
            self.restores()

    def epoch(self) -> int:
        """By the newest checkpoint."""
        runtime = Runtime(self.settings, "life")
        checkpoint = runtime.coordinator._log.look().restored
        runtime.close()
        assert checkpoint is not None
        return checkpoint.epoch

    def rival(self) -> Runtime:
        """Another driver takes over."""
        rival = Runtime(self.settings, "life")
        rival.coordinator.start(lambda _position: None, self.now_ms)
        return rival

    def writes(self, first: int) -> None:
        """A batch of two rows, in parts that are idle by now."""
        coordinator = self.stream._live().coordinator
        triggered = coordinator.trigger(self.now_ms)
        with closing(SinkOperator(self.stream._live().store, self.settings.description)) as operator:
            context = SubtaskContext(0, 0, coordinator.epoch, coordinator.state.position.chain, self.now_ms)
            share = assigned_to(coordinator.assignment(), 0)
            operator.open(context, share.model_copy(update={"max_count": coordinator.state.max_count}))
            operator.write(
                pa.RecordBatch.from_pydict(
                    {"bucket": ["b0", "b1"], "row": [f"row-{row:04d}" for row in (first, first + 1)]}
                )
            )
            snapshot = operator.snapshot(triggered.checkpoint_id)
        coordinator.complete(triggered, [snapshot], position_after(coordinator.state.position, BATCH))
        self.now_ms += 2000
