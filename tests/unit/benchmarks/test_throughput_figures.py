"""The figures of the suite throughput, from runs whose ratios are known."""

from __future__ import annotations

import pytest

from rounds import Rounds
from runs import Run, with_files
from suite_throughput import (
    BATCHES,
    GOALS_OF_STAGED,
    JSON,
    OUR_JSON,
    PARQUET,
    PER_CHECKPOINT,
    STAGED,
    figures_of,
    missing,
)

# Seconds, CPU seconds and files of 1 000 rows; every other case is twice as fast as native Parquet.
CASES = {
    PARQUET: (4.0, 10.0, [10] * 100),
    JSON: (6.0, 8.0, [30] * 100),
    OUR_JSON: (2.0, 3.0, [600] * 5),
    STAGED: (1.0, 5.0, [300] * 5),
    PER_CHECKPOINT: (0.8, 4.0, [10] * 100),
}


def made_rounds() -> Rounds:
    """One round of every case."""
    found = {
        name: with_files(Run(name, seconds=seconds, cpu_s=cpu_s, rows=1000), sizes)
        for name, (seconds, cpu_s, sizes) in CASES.items()
    }
    return Rounds(kept=[found])


@pytest.fixture
def values() -> dict[str, float]:
    """The figures of the goals by their names."""
    figures = figures_of({order: made_rounds() for order in BATCHES}, 20)
    return {figure.goal_name: figure.value for figure in figures if figure.goal_name}


def test_ratios_are_ours_over_theirs(values: dict[str, float]) -> None:
    """Speed, files, sizes and CPU are divided the right way round, each by its own rival."""
    assert values == pytest.approx(
        {
            "P1 shuffled": 4,
            "P1 ordered": 4,
            "P2 shuffled": 3,
            "P2 ordered": 3,
            "P3 files": 1 / 20,
            "P3 size": 30,
            "P11 speed": 0.8,
            "P11 files": 1 / 20,
            "P12": 0.5,
        }
    )


@pytest.mark.parametrize("files", [0, 100], ids=["no such case", "as many files as one a checkpoint"])
def test_goals_of_staged_parts_have_a_reason_where_nothing_was_staged(files: int) -> None:
    """Each of them is named as missing, and no figure of files written at each checkpoint stands in for it."""
    done = {order: made_rounds() for order in BATCHES}
    for rounds in done.values():
        staged = rounds.kept[0].pop(STAGED)
        if files:
            rounds.kept[0][STAGED] = with_files(staged, [10] * files)
    assert {figure.goal_name for figure in figures_of(done, 20)} == {"", "P2 shuffled", "P2 ordered"}
    assert set(GOALS_OF_STAGED) <= missing(done).keys()


def test_nothing_is_missing_where_everything_was_measured() -> None:
    """No goal has a figure and a reason for having none."""
    assert not set(GOALS_OF_STAGED) & missing({order: made_rounds() for order in BATCHES}).keys()
