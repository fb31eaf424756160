"""The record of a benchmark: read back, put together from several, and laid out as a table of goals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from goals import GOALS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = ("", "figure", "goal", "", "rounds", "")
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Record:
    """What one run of the benchmarks found, or several put together."""

    started: str
    """Local time of its start."""
    share: float
    """The share of the data that was written; 1 is a measurement."""
    machine: dict[str, str | int | float]
    suites: dict[str, dict[str, Any]]
    """Each suite's report, as ``Report.as_json`` makes it."""

    @property
    def figures(self) -> list[dict[str, Any]]:
        """Every figure of every suite."""
        return [figure for suite in self.suites.values() for figure in suite["figures"]]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Every run of every suite."""
        return [run for suite in self.suites.values() for run in suite["runs"]]

    @property
    def missing(self) -> dict[str, str]:
        """What could not be measured, and why."""
        return {name: why for suite in self.suites.values() for name, why in suite.get("missing", {}).items()}


def read_record(path: Path) -> Record:
    """Read a record back."""
    return Record(**json.loads(path.read_text()))


def merged(records: Sequence[Record]) -> Record:
    """Put records together; of a suite that several hold, the later record counts."""
    suites = {name: report for record in records for name, report in record.suites.items()}
    started = ", ".join(dict.fromkeys(record.started for record in records))
    return Record(started, min(record.share for record in records), records[-1].machine, suites)


def table_rows(record: Record) -> list[tuple[str, ...]]:
    """Each goal of the table with its figure, or why there is none; then the figures that belong to no goal of it."""
    found = {figure["goal_name"]: figure for figure in record.figures if figure["goal_name"]}
    rows: list[tuple[str, ...]] = [HEADER]
    for goal in GOALS.values():
        if goal.name in found:
            rows.append(figure_row(found[goal.name]))
        else:
            why = record.missing.get(goal.name, "its suite was not run")
            rows.append((goal.title, NOT_MEASURED, bound_text(goal.direction, goal.bound), "", "", why))
    return rows + [figure_row(figure) for figure in record.figures if not figure["goal_name"]]


def figure_row(figure: dict[str, Any]) -> tuple[str, ...]:
    """One figure as cells."""
    met = {True: "met", False: "MISSED", None: ""}[figure["met"]]
    goal = "" if figure["goal"] is None else bound_text(figure["direction"], figure["goal"])
    rounds = " ".join(number_text(value) for value in figure["rounds"]) if len(figure["rounds"]) > 1 else ""
    return (figure["name"], number_text(figure["value"]), goal, met, rounds, figure["note"])


def bound_text(direction: str, bound: float) -> str:
    """A bound as a table shows it."""
    return f"{'>=' if direction == 'at least' else '<='} {number_text(bound)}"


def number_text(value: float) -> str:
    """A ratio with as many places as say something."""
    return f"{value:.3f}" if abs(value) < 0.2 else f"{value:.2f}"
