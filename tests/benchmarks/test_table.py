"""The table of goals: every goal has a row, measured or not, and says whether it is met."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from figures import Report, figure_of_rounds, shown
from goals import GOALS, suite_of
from records import NOT_MEASURED, Record, merged, number_text, read_record, table_rows
from runs import Run
from suites import OF_THE_TABLE, SUITES, chosen, listing
from tables import aligned, markdown, noise_lines

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def record(share: float = 1.0, **reports: Report) -> Record:
    """A record of some suites, as it is after writing and reading."""
    suites: dict[str, dict[str, Any]] = {name: report.as_json() for name, report in reports.items()}
    return Record("2026-01-01T000000", share, {"cpu": "none", "cores": 2}, json.loads(json.dumps(suites)))


def row_of(found: Record, name: str) -> tuple[str, ...]:
    """The row of one goal or figure."""
    (row,) = [row for row in table_rows(found) if row[0].startswith(name)]
    return row


def test_a_record_without_suites_has_a_row_for_each_goal() -> None:
    """What was not run is not left out: its row says so."""
    rows = table_rows(record())[1:]
    assert [row[0].split(":")[0] for row in rows] == list(GOALS)
    assert {(row[1], row[5]) for row in rows} == {(NOT_MEASURED, "its suite was not run")}


def test_a_goal_is_met_on_its_good_side_and_at_the_bound() -> None:
    """``at least`` and ``at most`` are told apart, and the median of the rounds decides."""
    met = Report([GOALS["P4 JSON"].figure([0.5, 0.95, 2.0]), GOALS["P1 shuffled"].figure([1.0, 2.0, 9.0])])
    assert row_of(record(latency=met), "P4 JSON")[1:4] == ("0.95", "<= 0.95", "met")
    assert row_of(record(latency=met), "P1 shuffled")[1:5] == ("2.00", ">= 2.00", "met", "1.00 2.00 9.00")
    missed = Report([GOALS["P4 JSON"].figure([0.96]), GOALS["P1 shuffled"].figure([1.99])])
    assert row_of(record(latency=missed), "P4 JSON")[3] == "MISSED"
    assert row_of(record(latency=missed), "P1 shuffled")[3] == "MISSED"


def test_what_could_not_be_measured_says_why() -> None:
    """The reason that a suite gives stands in the row of its goal."""
    assert row_of(record(flink=Report(missing={"P8": "there is no Flink"})), "P8")[5] == "there is no Flink"


def test_a_figure_without_a_goal_is_shown_after_the_goals() -> None:
    """It is neither met nor missed."""
    found = record(throughput=Report([shown("a peer", [3.0])]))
    assert table_rows(found)[-1] == ("a peer", "3.00", "", "", "", "")
    assert found.figures[0]["met"] is None


def test_a_shorter_run_may_have_another_bound() -> None:
    """After five batches a fifth of native's files is all that can be had."""
    figure = GOALS["P3 files"].figure([0.2], bound=1 / 5)
    assert figure.met
    assert not GOALS["P3 files"].figure([0.2]).met


def test_later_records_count_when_several_are_put_together(tmp_path: Path) -> None:
    """A suite that was measured again replaces itself, and a look makes the whole a look."""
    first = record(latency=Report([shown("x", [1.0])]), flink=Report([shown("y", [1.0])]))
    path = tmp_path / "again.json"
    path.write_text(json.dumps(asdict(record(0.5, latency=Report([shown("x", [2.0])])))))
    both = merged([first, read_record(path)])
    assert {figure["name"]: figure["value"] for figure in both.figures} == {"x": 2.0, "y": 1.0}
    assert both.share == 0.5


def test_small_ratios_keep_their_places() -> None:
    """A twentieth is not shown as 0.1."""
    assert [number_text(value) for value in (1 / 20, 0.123456, 2.0)] == ["0.050", "0.123", "2.00"]


def test_noise_is_pointed_out_where_it_counts() -> None:
    """A run that counts is named with its load; runs of repeated rounds are only counted; calm ones are not named."""
    noisy, repeated = Run("noisy", foreign_cores=0.5, round=2), Run("repeated", foreign_cores=9, discarded=True)
    lines = noise_lines(record(latency=Report(runs=[noisy, repeated, Run("calm", foreign_cores=0.1)])))
    assert lines[0] == "noisy: noisy (round 2) ran beside 0.50 cores of others' load"
    assert lines[-1].startswith("1 runs were repeated")
    assert len(lines) == 3
    assert not any("calm" in line or "noisy: repeated" in line for line in lines)
    assert noise_lines(record(latency=Report(runs=[Run("quiet")]))) == []


def test_text_tables_line_up() -> None:
    """Columns have one width, and Markdown keeps a bar within a cell."""
    assert aligned([("a", "b"), ("long", "c")]) == ["a     b", "long  c"]
    assert markdown([("x", "y"), ("1|2", "3")]).splitlines() == ["| x | y |", "| --- | --- |", "| 1\\|2 | 3 |"]


def test_a_suite_can_be_named_by_its_goals() -> None:
    """A goal, its number or the suite itself name it, once and in the order of running."""
    assert [suite.name for suite in chosen(["P9", "p1 Shuffled", "throughput"], everything=False)] == [
        "throughput",
        "reading",
    ]
    assert suite_of("hdfs") == "hdfs"
    with pytest.raises(ValueError, match="P99: there are throughput"):
        chosen(["P99"], everything=False)


def test_every_goal_belongs_to_the_run_that_is_the_default() -> None:
    """``make bench`` without words measures the whole table, with ``--all`` everything there is."""
    default = {suite.name for suite in chosen([], everything=False)}
    assert {goal.suite for goal in GOALS.values()} <= default == set(OF_THE_TABLE)
    assert [suite.name for suite in chosen([], everything=True)] == list(SUITES)
    assert sum(SUITES[name].minutes for name in OF_THE_TABLE) <= 45


def test_every_suite_has_its_file_and_every_file_its_suite() -> None:
    """None can be forgotten in the list."""
    assert {path.stem.removeprefix("suite_") for path in BENCHMARKS.glob("suite_*.py")} == set(SUITES)
    assert [row[0] for row in listing()] == list(SUITES)


def test_a_figure_of_rounds_is_their_median() -> None:
    """Not their mean: one round beside a hiccup does not move it."""
    assert figure_of_rounds("x", [1, 2, 30], None, "at least").value == 2
