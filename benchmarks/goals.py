"""The table of goals: each figure that is promised, and its bound. Every one is a ratio within one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from figures import Figure, figure_of_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

Direction = Literal["at least", "at most"]


@dataclass(frozen=True, slots=True)
class Goal:
    """One promised figure.

    Args:
        name: How the table calls it; rows of one number belong together.
        what: What is divided by what.
        bound: Where it is met.
        direction: Which side of the bound is the good one.
        suite: The suite that measures it.
    """

    name: str
    what: str
    bound: float
    direction: Direction
    suite: str

    def figure(self, rounds: Sequence[float], note: str = "", bound: float | None = None) -> Figure:
        """The median of the rounds against the bound, or against another one that a shorter run has."""
        reached = self.bound if bound is None else bound
        return figure_of_rounds(self.title, rounds, reached, self.direction, note, goal_name=self.name)

    @property
    def title(self) -> str:
        """How a table shows it."""
        return f"{self.name}: {self.what}"

    @property
    def number(self) -> str:
        """``P1`` of ``P1 shuffled``."""
        return self.name.split()[0]


_ALL = (
    Goal("P1 shuffled", "Parquet by hour, rows/s / native Parquet", 2.0, "at least", "throughput"),
    Goal("P1 ordered", "Parquet by hour, rows/s / native Parquet", 1.3, "at least", "throughput"),
    Goal("P2 shuffled", "JSON lines, rows/s / native JSON", 1.9, "at least", "throughput"),
    Goal("P2 ordered", "JSON lines, rows/s / native JSON", 1.1, "at least", "throughput"),
    Goal("P3 files", "Parquet files after 20 batches / native's", 1 / 20, "at most", "throughput"),
    Goal("P3 size", "median Parquet file / native's", 20.0, "at least", "throughput"),
    Goal("P4 JSON", "one-row micro-batch / native partitioned Parquet", 0.95, "at most", "latency"),
    Goal("P4 Parquet", "one-row micro-batch / native partitioned Parquet", 0.95, "at most", "latency"),
    Goal("P5 time", "checkpoint 10 000 / checkpoint 100", 1.05, "at most", "history"),
    Goal("P5 metadata", "metadata of checkpoint 10 000 / of 100", 1.05, "at most", "history"),
    Goal("P8", "JSON from the same CSV, rows/s / Flink's SQL sink", 1.5, "at least", "flink"),
    Goal("P9", "DuckDB aggregate over our files, speed / over native's", 3.0, "at least", "reading"),
    Goal("P10 speed", "2 000 buckets a batch, rows/s / 24 buckets", 0.5, "at least", "buckets"),
    Goal("P10 memory", "2 000 buckets a batch, peak worker memory / 24", 2.0, "at most", "buckets"),
    Goal("P11 speed", "staged Parquet, rows/s / one file a checkpoint", 0.9, "at least", "throughput"),
    Goal("P11 files", "staged Parquet, files / one file a checkpoint", 1 / 20, "at most", "throughput"),
    Goal("P12", "Parquet shuffled, CPU seconds a row / native Parquet", 0.6, "at most", "throughput"),
)
GOALS = {goal.name: goal for goal in _ALL}


def suite_of(word: str) -> str:
    """The suite that measures a goal, named in full (``P1 shuffled``) or by its number; else the word itself."""
    return next((goal.suite for goal in _ALL if word.lower() in {goal.name.lower(), goal.number.lower()}), word)
