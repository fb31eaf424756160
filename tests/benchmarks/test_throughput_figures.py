"""The figures of the suite throughput, from runs whose ratios are known."""

from __future__ import annotations

import pytest

from rounds import Rounds
from runs import Run, with_files
from suite_throughput import (
    BATCHES,
    CEILING,
    GOALS_OF_STAGED,
    HASHED,
    JSON,
    JSON_CEILING,
    OUR_JSON,
    PARQUET,
    PARQUET_CEILING,
    PER_CHECKPOINT,
    STAGED,
    figures_of,
    limits_of,
    missing,
)

# Seconds, CPU seconds and files of 1 000 rows; every other case is twice as fast as native Parquet.
CASES = {
    PARQUET: (4.0, 10.0, [10] * 100),
    JSON: (6.0, 8.0, [30] * 100),
    OUR_JSON: (2.0, 3.0, [600] * 5),
    STAGED: (1.0, 5.0, [300] * 5),
    HASHED: (2.0, 6.0, [700] * 2),
    PER_CHECKPOINT: (0.8, 4.0, [10] * 100),
    CEILING: (0.5, 2.0, []),
    PARQUET_CEILING: (1.0, 3.0, []),
    JSON_CEILING: (0.8, 3.0, []),
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


def test_files_by_hash_are_shown_beside_the_goal() -> None:
    """Their size is compared with native's, as the goal's is."""
    figures = {figure.name: figure for figure in figures_of({order: made_rounds() for order in BATCHES}, 20)}
    assert figures[f"P3 size by {HASHED}"].value == 70
    assert "2 files" in figures[f"P3 size by {HASHED}"].note


def test_limits_are_those_of_handing_rows_over() -> None:
    """Each goal's limit is a count in Python against the goal's own rival; that of P12 adds what encoding takes."""
    found = {figure.name: figure for figure in limits_of({order: made_rounds() for order in BATCHES}, 0.003)}
    of_speed = {name: figure.value for name, figure in found.items() if name.startswith("limit") and "rows/s" in name}
    assert of_speed == pytest.approx(
        {
            f"limit of P{number} {order}: {ceiling}, rows/s / {native}": value
            for order in BATCHES
            for number, native, ceiling, value in (
                (1, PARQUET, CEILING, 8),
                (1, PARQUET, PARQUET_CEILING, 4),
                (2, JSON, CEILING, 12),
                (2, JSON, JSON_CEILING, 7.5),
            )
        }
    )
    (cpu,) = (figure for name, figure in found.items() if "P12" in name)
    assert cpu.value == pytest.approx((2.0 + 3.0) / 10.0)
    assert "2000.0 s to hand a million rows over, 3000.0 s to encode them" in cpu.note
    assert {figure.goal for figure in found.values()} == {None}


def test_what_is_reached_of_a_limit_is_shown() -> None:
    """Our speed against that of one pass of the encoder, and what CPU both take."""
    found = {figure.name: figure for figure in limits_of({order: made_rounds() for order in BATCHES}, 0.003)}
    for order in BATCHES:
        parquet = found[f"of the limit of P1 {order}: {STAGED}, rows/s / {PARQUET_CEILING}"]
        json = found[f"of the limit of P2 {order}: {OUR_JSON}, rows/s / {JSON_CEILING}"]
        assert (parquet.value, json.value) == pytest.approx((1.0, 0.4))
        assert parquet.note == "5000.0 and 3000.0 s of CPU a million rows"
