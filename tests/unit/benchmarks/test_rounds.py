"""Cases take turns, and a round beside others' load is repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rounds import NOISY_CORES, Rounds, in_turn, interleaved
from runs import Run, deciles, ratios, with_files

if TYPE_CHECKING:
    from collections.abc import Callable


def cases(log: list[str], loads: dict[str, list[float]]) -> dict[str, Callable[[], Run]]:
    """Cases that note their turn and ran beside a given load each time."""

    def case(name: str) -> Run:
        log.append(name)
        return Run(name, seconds=1, foreign_cores=loads[name].pop(0))

    return {name: (lambda name=name: case(name)) for name in loads}  # type: ignore[misc]


def measured(loads: dict[str, list[float]], rounds: int, spare: int) -> tuple[Rounds, list[str]]:
    """The rounds of some cases, and the order in which they ran."""
    log: list[str] = []
    return interleaved(cases(log, loads), rounds, spare=spare, say=lambda _line: None), log


def test_cases_take_turns_from_both_ends() -> None:
    """A B C, then C B A, so that none is always the first after another."""
    done, log = measured({"a": [0, 0, 0], "b": [0, 0, 0], "c": [0, 0, 0]}, rounds=3, spare=0)
    assert "".join(log) == "abccbaabc"
    assert [sorted(each) for each in done.kept] == [["a", "b", "c"]] * 3
    assert in_turn(["a", "b"], 2) == ["b", "a"]


def test_a_round_beside_load_is_repeated_as_a_whole() -> None:
    """One noisy case spoils the ratios of its round: none of its runs counts, and all of them are in the record."""
    noisy = NOISY_CORES + 0.1
    done, log = measured({"a": [0, 0, 0], "b": [0, noisy, 0]}, rounds=2, spare=1)
    assert "".join(log) == "abbaab"
    assert [each["b"].foreign_cores for each in done.kept] == [0, 0]
    assert [(run.case, run.round, run.discarded) for run in done.discarded] == [("b", 2, True), ("a", 2, True)]
    assert len(done.runs) == 6
    assert sum(run.discarded for run in done.runs) == 2


def test_the_load_of_the_limit_itself_is_no_noise() -> None:
    """Only more than the limit repeats a round."""
    done, _ = measured({"a": [NOISY_CORES]}, rounds=1, spare=1)
    assert done.discarded == []


def test_a_machine_that_is_always_busy_ends_the_benchmark_all_the_same() -> None:
    """When the spare rounds are used up, noisy ones count; what they ran beside stays in the record."""
    done, log = measured({"a": [1.0] * 4, "b": [1.0] * 4}, rounds=2, spare=2)
    assert len(log) == 8
    assert [each["a"].foreign_cores for each in done.kept] == [1.0, 1.0]
    assert not any(run.discarded for each in done.kept for run in each.values())


def test_a_ratio_is_taken_within_its_round() -> None:
    """Rounds differ by the hour: what was measured together is divided by each other."""
    rounds = [
        {"ours": Run("ours", seconds=1, rows=10), "theirs": Run("theirs", seconds=2, rows=10)},
        {"ours": Run("ours", seconds=10, rows=10), "theirs": Run("theirs", seconds=30, rows=10)},
    ]
    assert ratios(rounds, "ours", "theirs", lambda run: run.rows_per_s) == pytest.approx([2, 3])


def test_deciles_go_from_the_smallest_to_the_largest() -> None:
    """Eleven sizes whatever the number of files, the median in the middle; none of no files."""
    assert deciles(range(0, 1010, 10)) == list(range(0, 1001, 100))
    assert deciles([7]) == [7] * 11
    assert deciles([]) == []
    run = with_files(Run("case"), [1, 5, 100])
    assert (run.files, run.bytes, run.median_file_bytes) == (3, 106, 5)
