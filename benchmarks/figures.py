"""What a suite hands back: figures with goals, and the runs behind them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streams import Run

NOISY_CORES = 0.3
"""Load of other processes, in cores, above which a run is pointed out."""


@dataclass(slots=True)
class Figure:
    """One number with its goal."""

    name: str
    value: float
    goal: float
    direction: Literal["at least", "at most"]
    rounds: list[float] = field(default_factory=list)
    """The value of each round; ``value`` is their median."""
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.value >= self.goal if self.direction == "at least" else self.value <= self.goal


@dataclass(slots=True)
class Report:
    """The outcome of one suite."""

    figures: list[Figure] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain data, with ``met`` beside each figure."""
        return {
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
            "runs": [asdict(run) for run in self.runs],
            "extra": self.extra,
        }


def figure_of_rounds(
    name: str, rounds: Sequence[float], goal: float, direction: Literal["at least", "at most"], note: str = ""
) -> Figure:
    """A figure that is the median of its rounds."""
    return Figure(name, statistics.median(rounds), goal, direction, list(rounds), note)
