"""The shipped sink harness with text rows whose beginning names their bucket, as the scenarios of Flink's suites have.

``counts()`` is (in-progress, pending, finished, sidecars).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

import partfile as pf
from partfile.testing.harness import SinkHarness
from support.sinks.life_cycle import finished_files

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.coordinator import SinkCoordinator


FOREVER = 1e9


def by_text(batch: pa.RecordBatch) -> Any:
    """The text before ``@``, or all of it, names the bucket."""
    return pc.list_element(pc.split_pattern(batch.column("row"), "@"), 0)


class Harness(SinkHarness):
    """A job of so many subtasks on one base, open from the start.

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
        rolling = pf.RollingPolicy(
            max_part_bytes=max_part_bytes or 1 << 40,
            rollover_interval_s=age_ms / 1000,
            inactivity_interval_s=idle_ms / 1000,
        )
        fixed: dict[str, Any] = {"uid": "job", "format": "text", "bucketer": by_text, "rolling": rolling}
        super().__init__(pf.FileSink(base, **(fixed | options)), parallelism)
        self.open()

    @property
    def coordinator(self) -> SinkCoordinator:
        """The coordinator of this run."""
        return self.runtime.coordinator

    def write(self, *rows: str, subtask: int = 0) -> None:
        """Rows come to one subtask, one batch a row."""
        for row in rows:
            self.process(pa.RecordBatch.from_pydict({"row": [row]}), subtask)

    def at(self, now_ms: int) -> None:
        """Time passes; the operators see it with the next row or checkpoint."""
        self.now_ms = now_ms

    def abort(self) -> None:
        """A checkpoint that every subtask took part in and that does not complete."""
        self.snapshot()
        self.notify_aborted()

    def counts(self) -> tuple[int, int, int, int]:
        """Files by state."""
        return self.files()

    def finished(self) -> dict[str, str]:
        """Bucket and content of each finished file, under its subtask and counter."""
        files = finished_files(self.base)
        return {_without_log_id(name): data.decode() for name, data in files.items() if "_partfile" not in name}


def _without_log_id(name: str) -> str:
    directory, slash, file = name.rpartition("/")
    prefix, _log, rest = file.split("-", 2)
    return f"{directory}{slash}{prefix}-{rest}"
