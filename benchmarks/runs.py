"""What one measured run of one case took and left, and ratios of runs within their rounds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processes import Meter


@dataclass(slots=True)
class Run:
    """One measured run of one case, most often a stream into a sink."""

    case: str
    seconds: float = 0.0
    """From the start of the query to its clean end, with everything published."""
    cpu_s: float = 0.0
    """Of all processes of ours: the driver, the JVM, the workers, another engine's."""
    foreign_cores: float = 0.0
    """Load of processes that are not ours meanwhile."""
    rows: int = 0
    files: int = 0
    bytes: int = 0
    file_bytes_deciles: list[int] = field(default_factory=list)
    """The sizes of the files: smallest, nine deciles, largest."""
    batch_ms: list[float] = field(default_factory=list)
    """Spark's own figure for each batch that had rows (triggerExecution), in milliseconds."""
    phases_ms: dict[str, float] = field(default_factory=dict)
    """Medians over the batches of what partfile says about itself."""
    peak_worker_bytes: int = 0
    """The most that the largest Python worker held at once; 0 where it was not measured."""
    round: int = 0
    """Of which round it is, from 1; 0 outside rounds."""
    discarded: bool = False
    """Whether its round was repeated since others kept the machine busy, so that no figure counts it."""

    @property
    def median_file_bytes(self) -> float:
        """The size of the file in the middle."""
        return self.file_bytes_deciles[5]

    @property
    def rows_per_s(self) -> float:
        """Rows a second of wall time."""
        return self.rows / self.seconds


Round = dict[str, Run]
"""The runs of one round by case."""


def with_outcome(run: Run, meter: Meter, sizes: Sequence[int]) -> Run:
    """The run with what was measured and the sizes of the files it left."""
    run.seconds, run.cpu_s, run.foreign_cores = meter.seconds, meter.cpu_s, meter.foreign_cores
    return with_files(run, sizes)


def with_files(run: Run, sizes: Sequence[int]) -> Run:
    """The run with the sizes of the files it left."""
    run.files, run.bytes = len(sizes), sum(sizes)
    run.file_bytes_deciles = deciles(sizes)
    return run


def deciles(sizes: Sequence[int]) -> list[int]:
    """The smallest, the nine deciles and the largest; nothing of nothing."""
    if not sizes:
        return []
    if len(sizes) == 1:
        return [sizes[0]] * 11
    inner = statistics.quantiles(sizes, n=10, method="inclusive")
    return [min(sizes), *(round(value) for value in inner), max(sizes)]


def ratios(rounds: Sequence[Mapping[str, Run]], above: str, below: str, value: Callable[[Run], float]) -> list[float]:
    """In each round, a value of one case divided by that of another."""
    return [value(each[above]) / value(each[below]) for each in rounds]
