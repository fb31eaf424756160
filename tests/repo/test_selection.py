"""Which cases a run leaves out: the same in every process that shares them, others in another run, none of a few."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.repo import lanes, selection

if TYPE_CHECKING:
    from collections.abc import Sequence


ROOT = Path(__file__).parents[2]


ANY = object()
"""In place of a number: the mark says none."""


@dataclass(frozen=True)
class Case:
    """What is asked of a collected test."""

    nodeid: str
    few: Any = None
    is_skipped: bool = False

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        """Its mark of that name, if it has one."""
        if name == "skip":
            return pytest.mark.skip.mark if self.is_skipped else None
        assert name == "drawn"
        if self.few is None:
            return None
        return (pytest.mark.drawn if self.few is ANY else pytest.mark.drawn(self.few)).mark


def left_out(cases: Sequence[Case], seed: int, most: int | None = None) -> set[str]:
    return {test.nodeid for test in selection.left_out(cast("list[pytest.Item]", cases), seed, most)}


def cases_of(test: str, count: int, few: Any = None) -> list[Case]:
    return [Case(f"{test}[{number}]", few) for number in range(count)]


def test_the_quick_lane_draws_fewer_cases() -> None:
    """As many as it says at most of each test; a mark that says fewer stands."""
    numbers = {"a.py::kills": 4, "b.py::kills": 1, "c.py::kills": ANY, "d.py::all": None}
    cases = [case for name, few in numbers.items() for case in cases_of(name, 9, few)]
    for most, wanted in ((2, [2, 1, 2, 9]), (None, [4, 1, 9, 9])):
        left = left_out(cases, 7, most)
        taken = Counter(case.nodeid.partition("[")[0] for case in cases if case.nodeid not in left)
        assert [taken[name] for name in numbers] == wanted


def test_of_each_marked_test_so_many_cases_are_left() -> None:
    """Those of others, and those of a test that has no more, are all taken."""
    kills, others = cases_of("a.py::kills", 12, 4), cases_of("a.py::others", 12)
    out = left_out([*kills, *others, *cases_of("b.py::kills", 3, 3), *cases_of("b.py::one", 1, 2)], 7)
    assert len(out) == 8
    assert out < {case.nodeid for case in kills}


def test_processes_that_collect_in_another_order_draw_the_same() -> None:
    """Also where they collect other tests beside."""
    kills = cases_of("a.py::kills", 12, 4)
    assert left_out(kills, 7) == left_out([*cases_of("b.py::kills", 9, 2), *reversed(kills)], 7) & {
        case.nodeid for case in kills
    }


def test_every_case_is_drawn_in_some_run() -> None:
    """Runs differ."""
    kills = cases_of("a.py::kills", 12, 4)
    drawn = [{case.nodeid for case in kills} - left_out(kills, seed) for seed in range(40)]
    assert set.union(*drawn) == {case.nodeid for case in kills}


def test_a_skipped_case_takes_no_place() -> None:
    """Of what a run leaves out for another reason nothing would be tested."""
    cases = [Case(f"a.py::kills[{number}]", 1, is_skipped=number < 11) for number in range(12)]
    assert all(left_out(cases, seed) == set() for seed in range(20))


@pytest.mark.parametrize("few", [0, -1, "3", 1.0])
def test_a_mark_without_a_number_is_refused(few: Any) -> None:
    """A slip must not pass for a test that is run."""
    with pytest.raises(pytest.UsageError, match=r"a\.py::kills\[0\]: .* takes the number of cases"):
        left_out(cases_of("a.py::kills", 2, few), 7)


TWO_CASES = "tests/recovery/test_adopt_flink.py"
NAME = "test_killed_at_any_call_and_run_again_it_ends_the_same"
"""A test of two cases, of which a run draws one."""
TWO_SEEDS = (3, 4)
"""They draw one of the two each."""
A_KILL = "tests/sink/test_savepoints.py::test_a_kill_at_any_call_leaves_a_whole_savepoint_or_none"
"""A test that dies at a few of many calls."""
MANY_CASES = "tests/sink/test_columns.py::test_a_thousand_columns"
"""A file with a test of which a run draws four cases."""
S3_STORE = "tests/s3/test_contract.py"
OUTAGES = "tests/hdfs/test_outages.py"
"""A file of tests that stop and kill servers."""


def run_pytest(*options: str) -> subprocess.CompletedProcess[str]:
    """A run of its own with this project's conftest."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def collected(*options: str) -> list[str]:
    """What pytest itself collects with this project's conftest."""
    done = run_pytest("-q", "--collect-only", *options)
    assert done.returncode == 0, done.stdout
    return sorted(line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("tests/"))


@pytest.mark.slow
def test_a_real_run_draws_and_repeats_what_its_seed_drew() -> None:
    """Runs that are given no seed draw the same case, and say which; another seed draws another one."""
    drawn = [
        [one for one in collected(TWO_CASES, *options) if one.startswith(f"{NAME}[")]
        for options in ((), (), *((f"--randomly-seed={seed}",) for seed in TWO_SEEDS))
    ]
    assert all(len(each) == 1 for each in drawn)
    assert {one for each in drawn for one in each} == {f"{NAME}[before]", f"{NAME}[after]"}
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_what_was_drawn_and_chosen_is_printed_and_repeated() -> None:
    """Cases are drawn before a run, calls while a test runs. Processes that share the tests, and the seed, repeat both.

    The lines say which lane and which seed it was.
    """
    runs = [("-n", "0", "--randomly-seed=1"), ("-n", "2", "--randomly-seed=1"), ("-n", "0", "--randomly-seed=2")]
    said = [run_pytest(MANY_CASES, A_KILL, "-m", "drawn or not spark", *options).stdout for options in runs]
    for beginning, choices in (("drawn: ", 4), (f"chosen: {A_KILL}: ", 0)):
        alone, shared, other = [[line for line in text.splitlines() if line.startswith(beginning)] for text in said]
        assert alone == shared != other
        assert len(alone) == len(other) == 1
        assert alone[0].count("[") >= choices
    assert all("lane: -m 'drawn or not spark'" in text for text in said)
    assert all("seed: --randomly-seed=1 of order" in text for text in said[:2])
    assert all(" 5 passed" in text for text in said)


@pytest.mark.slow
def test_a_run_says_which_servers_it_did_not_test() -> None:
    """The quick lane needs none, and its last lines say so; a run of all says nothing."""
    quick = run_pytest("-q", "--collect-only", "-m", lanes.QUICK, MANY_CASES).stdout
    assert [server for server in lanes.SERVERS if f"{server.upper()} WAS NOT TESTED" in quick] == [*lanes.SERVERS]
    assert "WAS NOT TESTED" not in run_pytest("-q", "--collect-only", MANY_CASES).stdout


@pytest.mark.slow
def test_the_servers_that_a_test_needs_are_its_markers() -> None:
    """Of a test on each S3 server the quick lane takes the one that needs nothing besides Python."""
    quick, whole = collected(S3_STORE, "-m", lanes.QUICK), collected(S3_STORE)
    assert {server: any(f"[{server}" in one for one in quick) for server in ("moto", "rclone", "radosgw")} == {
        "moto": True,
        "rclone": False,
        "radosgw": False,
    }
    assert any("[rclone" in one for one in whole)
    assert any("[radosgw" in one for one in whole)


@pytest.mark.slow
def test_a_server_that_a_test_may_kill_is_its_marker_too() -> None:
    """The quick lane starts no HDFS: neither the shared one nor one of a test's own."""
    name = "test_safe_mode_is_waited_for_and_then_named"
    assert name in collected(OUTAGES)
    assert name not in collected(OUTAGES, "-m", lanes.QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(TWO_CASES, "--long"), (TWO_CASES, "-k", NAME), (f"{TWO_CASES}::{NAME}[before]",)], ids=str
)
def test_what_is_asked_for_is_not_drawn_from(options: tuple[str, ...]) -> None:
    """All cases, those of a word, and one by its name."""
    cases = [one for one in collected("--randomly-seed=1", *options) if one.startswith(f"{NAME}[")]
    assert cases == [f"{NAME}[before]"] if "[" in options[0] else [f"{NAME}[after]", f"{NAME}[before]"]
