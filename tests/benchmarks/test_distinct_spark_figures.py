"""The figures of the suite distinct_spark, from runs whose ratios are known."""

from __future__ import annotations

import pytest

from rounds import Rounds
from runs import Run
from scale import Scale
from suite_distinct_spark import KEYS, OURS, PEER, PLAIN, figures_of

PLACES = list(zip(KEYS, (100.0, 110.0, 120.0), (200.0, 400.0, 600.0), strict=True))
"""Numbers of keys, and what a batch beside them takes, in milliseconds: ours and the peer's."""


def made(**took_ms: float) -> Rounds:
    """One round of cases that take so long, and as many CPU seconds as milliseconds."""
    names = {"ours": OURS, "peer": PEER, "plain": PLAIN}
    return Rounds([{names[name]: Run(name, cpu_s=ms, batch_ms=[ms, ms]) for name, ms in took_ms.items()}])


def test_each_figure_is_divided_the_right_way_round() -> None:
    """More is better of speeds, less of growth, and one row costs the difference; a share has no goal of speed."""
    done = {keys: made(ours=ours, peer=peer) for keys, ours, peer in PLACES}
    single = {keys: made(ours=50, plain=35) for keys in KEYS}
    figures = {figure.name: figure for figure in figures_of(done, single, Scale())}
    speeds = [figure for name, figure in figures.items() if "rows/s" in name]
    assert [figure.value for figure in speeds] == pytest.approx([2, 400 / 110, 5])
    assert [(figure.goal, figure.met) for figure in speeds] == [(None, None), (1.5, True), (3.0, True)]
    grown = [figure for name, figure in figures.items() if "beside" in name]
    assert [figure.value for figure in grown] == pytest.approx([1.2, 1.2, 3, 3])
    assert [figure.met for figure in grown] == [True, True, None, None]
    more = [figure for name, figure in figures.items() if "one-row" in name]
    assert [(figure.value, figure.met) for figure in more] == [(15, True)] * 3
    look = figures_of(done, single, Scale(0.1))
    assert [figure.goal for figure in look if "rows/s" in figure.name] == [None] * 3


def test_batches_of_one_row_are_compared_in_pairs() -> None:
    """A machine that is slow for a while is so to both of a pair."""
    single = Rounds(
        [{OURS: Run(OURS, cpu_s=1, batch_ms=[100, 300, 20]), PLAIN: Run(PLAIN, cpu_s=1, batch_ms=[90, 10, 10])}]
    )
    figures = figures_of(dict.fromkeys(KEYS, made(ours=1, peer=1)), dict.fromkeys(KEYS, single), Scale())
    assert [figure.value for figure in figures if "one-row" in figure.name] == [10, 10, 10]
