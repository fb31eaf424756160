"""The sink without Spark, one step at a time: write, let time pass, checkpoint, abort, crash, restore; count files.

``counts()`` is (in-progress, pending, finished, sidecars), as the scenarios of Flink's suites count them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from life_cycle import finished_files

import partfile as pf
from partfile.sink.operator import SinkOperator, SubtaskContext, assigned_to
from partfile.sink.runtime import Runtime

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.coordinator import CommitReport
    from partfile.sink.states import SubtaskSnapshot

FOREVER = 1e9


def by_text(batch: pa.RecordBatch) -> Any:
    """The text before ``@``, or all of it, names the bucket."""
    return pc.list_element(pc.split_pattern(batch.column("row"), "@"), 0)


class Harness:
    """A job of so many subtasks on one base.

    Args:
        base: The base path.
        parallelism: Number of subtasks.
        max_part_bytes: Rolls by size; None never does.
        age_ms: Rolls by age.
        idle_ms: Rolls by inactivity.
        **options: Further options of the sink.
    """

    def __init__(
        self,
        base: Path,
        parallelism: int = 1,
        *,
        max_part_bytes: int | None = None,
        age_ms: float = FOREVER,
        idle_ms: float = FOREVER,
        **options: Any,
    ) -> None:
        self.base = base
        self.now_ms = 0
        rolling = pf.RollingPolicy(
            max_part_bytes=max_part_bytes or 1 << 40,
            rollover_interval_s=age_ms / 1000,
            inactivity_interval_s=idle_ms / 1000,
        )
        fixed: dict[str, Any] = {
            "uid": "job",
            "format": "text",
            "bucketer": by_text,
            "rolling": rolling,
            "clock": lambda: self.now_ms,
        }
        self.sink = pf.FileSink(base, **(fixed | options))
        self.runtime: Runtime | None = None
        self.operators: list[SinkOperator] = []
        self.restore(parallelism)

    def restore(self, parallelism: int = 1) -> None:
        """Whatever ran before is gone; another run takes over."""
        self.crash()
        self.runtime = Runtime(self.sink.settings, "job")
        self.coordinator = self.runtime.coordinator
        self.coordinator.start(lambda _position: None, self.now_ms)
        self.operators = [SinkOperator(self.runtime.store, self.sink.settings.description) for _ in range(parallelism)]
        for subtask, operator in enumerate(self.operators):
            share = assigned_to(self.coordinator.assignment(), subtask)
            share = share.model_copy(update={"max_count": self.coordinator.state.max_count})
            operator.open(self._context(subtask), share)

    def crash(self) -> None:
        """The process dies: locks go, nothing else happens."""
        for operator in self.operators:
            operator.close()
        self.operators = []
        if self.runtime is not None:
            self.runtime.close()

    def write(self, *rows: str, subtask: int = 0) -> None:
        """Rows come to one subtask, one batch a row."""
        self.operators[subtask].advance(self._context(subtask))
        for row in rows:
            self.operators[subtask].write(pa.RecordBatch.from_pydict({"row": [row]}))

    def at(self, now_ms: int) -> None:
        """Time passes; the operators see it with the next row or checkpoint."""
        self.now_ms = now_ms

    def checkpoint(self) -> CommitReport:
        """A checkpoint that completes."""
        pending = self.coordinator.trigger(self.now_ms)
        snapshots = self._snapshots(pending.checkpoint_id)
        done = self.coordinator.complete(pending, snapshots, self.coordinator.state.position)
        for operator in self.operators:
            operator.notify_checkpoint_complete(done.checkpoint_id)
        return done

    def abort(self) -> None:
        """A checkpoint that every subtask took part in and that does not complete."""
        pending = self.coordinator.trigger(self.now_ms)
        self._snapshots(pending.checkpoint_id)
        self.coordinator.abort()

    def counts(self) -> tuple[int, int, int, int]:
        """Files by state."""
        names = [path.name for path in self.base.rglob("*") if path.is_file() and "_partfile" not in path.parts]
        staged = [sum(name.endswith(f".{state}") for name in names) for state in ("in-progress", "pending")]
        sidecars = sum(name.endswith(".valid-length") for name in names)
        return staged[0], staged[1], len(names) - sum(staged) - sidecars, sidecars

    def finished(self) -> dict[str, str]:
        """Bucket and content of each finished file, under its subtask and counter."""
        files = finished_files(self.base)
        return {_without_chain(name): data.decode() for name, data in files.items() if "_partfile" not in name}

    def _snapshots(self, checkpoint_id: int) -> list[SubtaskSnapshot]:
        snapshots = []
        for subtask, operator in enumerate(self.operators):
            operator.advance(self._context(subtask))
            snapshots.append(operator.snapshot(checkpoint_id))
        return snapshots

    def _context(self, subtask: int) -> SubtaskContext:
        position = self.coordinator.state.position
        return SubtaskContext(subtask, 0, self.coordinator.generation, position.chain, self.now_ms)


def _without_chain(name: str) -> str:
    directory, slash, file = name.rpartition("/")
    prefix, _chain, rest = file.split("-", 2)
    return f"{directory}{slash}{prefix}-{rest}"
