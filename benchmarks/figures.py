"""What a suite hands back: figures, most of them with goals, the runs behind them, and what could not be measured."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runs import Run


@dataclass(slots=True)
class Figure:
    """One number, with its goal if it has one."""

    name: str
    value: float
    goal: float | None
    """None for what is only shown, such as a peer's figure."""
    direction: Literal["at least", "at most"]
    rounds: list[float] = field(default_factory=list)
    """The value of each round; ``value`` is their median."""
    note: str = ""
    goal_name: str = ""
    """Which row of the table of goals it is; empty for figures of other suites."""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.direction == "at least" else self.value <= self.goal


@dataclass(slots=True)
class Report:
    """The outcome of one suite."""

    figures: list[Figure] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Goals and peers that were not measured, each with the reason."""

    def as_json(self) -> dict[str, Any]:
        """Plain data, with ``met`` beside each figure."""
        return {
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
            "runs": [asdict(run) for run in self.runs],
            "extra": self.extra,
            "missing": self.missing,
        }


def figure_of_rounds(
    name: str,
    rounds: Sequence[float],
    goal: float | None,
    direction: Literal["at least", "at most"],
    note: str = "",
    *,
    goal_name: str = "",
) -> Figure:
    """A figure that is the median of its rounds."""
    return Figure(name, statistics.median(rounds), goal, direction, list(rounds), note, goal_name)


def shown(name: str, rounds: Sequence[float], note: str = "") -> Figure:
    """A figure without a goal."""
    return figure_of_rounds(name, rounds, None, "at least", note)
