"""Which cases a run leaves out: the same in every process that shares them, others in another run, none of a few."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.repo import lanes, selection, sharing

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


FEW_TESTS = """
import pytest

@pytest.mark.drawn(1)
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_of_two(when):
    pass

@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", range(12))
def test_four_of_twelve(case):
    pass

def test_a_few_of_many_calls(chosen):
    chosen(300, 20)
"""
"""All of tests/test_few.py in a tree that has this project's own conftest: to collect this project takes long."""
FEW = "tests/test_few.py"
NAME = "test_one_of_two"
TWO_SEEDS = (2, 3)
"""They draw one of the two each."""
S3_STORE = "tests/s3/test_contract.py"
OUTAGES = "tests/hdfs/test_outages.py"
"""A file of tests that stop and kill servers."""


@pytest.fixture(scope="module")
def few_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of few tests."""
    tree = tmp_path_factory.mktemp("few")
    (tree / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tree / "tests" / "conftest.py")
    (tree / FEW).write_text(FEW_TESTS)
    return tree


def run_pytest(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of its own with this project's settings and conftest."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", f"{ROOT}/setup.cfg", f"--rootdir={tree}"]
    return subprocess.run([*command, *options], cwd=tree, capture_output=True, text=True, check=False)


def collected(tree: Path, *options: str) -> list[str]:
    """What pytest itself collects."""
    done = run_pytest(tree, "-q", "--collect-only", *options)
    assert done.returncode == 0, done.stdout
    return sorted(line.rpartition("::")[2] for line in done.stdout.splitlines() if line.startswith("tests/"))


@pytest.mark.slow
def test_a_real_run_draws_and_repeats_what_its_seed_drew(few_tests: Path) -> None:
    """Runs that are given no seed draw the same case, and say which; another seed draws another one."""
    drawn = [
        [one for one in collected(few_tests, FEW, *options) if one.startswith(f"{NAME}[")]
        for options in ((), (), *((f"--randomly-seed={seed}",) for seed in TWO_SEEDS))
    ]
    assert all(len(each) == 1 for each in drawn)
    assert {one for each in drawn for one in each} == {f"{NAME}[before]", f"{NAME}[after]"}
    assert drawn[0] == drawn[1]


@pytest.mark.slow
def test_what_was_drawn_and_chosen_is_printed_and_repeated(few_tests: Path) -> None:
    """Cases are drawn before a run, calls while a test runs. Processes that share the tests, and the seed, repeat both.

    The lines say which lane and which seed it was.
    """
    runs = [("-n", "0", "--randomly-seed=1"), ("-n", "2", "--randomly-seed=1"), ("-n", "0", "--randomly-seed=2")]
    options = ("--dist", "loadfile", "-m", "drawn or not spark")
    said = [run_pytest(few_tests, FEW, *run, *options).stdout for run in runs]
    for beginning, choices in ((f"drawn: {FEW}::test_four_of_twelve", 4), ("chosen: ", 0)):
        alone, shared, other = [[line for line in text.splitlines() if line.startswith(beginning)] for text in said]
        assert alone == shared != other
        assert len(alone) == len(other) == 1
        assert alone[0].count("[") >= choices
    assert all("lane: -m 'drawn or not spark'" in text for text in said)
    assert all("seed: --randomly-seed=1 of order" in text for text in said[:2])
    assert all(" 6 passed" in text for text in said)


@pytest.mark.slow
def test_a_run_says_which_servers_it_did_not_test(few_tests: Path) -> None:
    """The quick lane needs none, and its last lines say so; a run of all says nothing."""
    quick = run_pytest(few_tests, "-q", "--collect-only", "-m", lanes.QUICK, FEW).stdout
    assert [server for server in lanes.SERVERS if f"{server.upper()} WAS NOT TESTED" in quick] == [*lanes.SERVERS]
    assert "WAS NOT TESTED" not in run_pytest(few_tests, "-q", "--collect-only", FEW).stdout


@pytest.mark.slow
def test_the_servers_that_a_test_needs_are_its_markers() -> None:
    """Of a test on each S3 server the quick lane takes the one that needs nothing besides Python.

    It starts no HDFS: neither the shared one nor one of a test's own, which the test may kill.
    """
    quick, whole = collected(ROOT, S3_STORE, OUTAGES, "-m", lanes.QUICK), collected(ROOT, S3_STORE, OUTAGES)
    assert {server: any(f"[{server}" in one for one in quick) for server in ("moto", "rclone", "radosgw")} == {
        "moto": True,
        "rclone": False,
        "radosgw": False,
    }
    assert any("[rclone" in one for one in whole)
    assert any("[radosgw" in one for one in whole)
    name = "test_safe_mode_is_waited_for_and_then_named"
    assert name in whole
    assert name not in quick


@pytest.mark.slow
@pytest.mark.parametrize("options", [(FEW, "--long"), (FEW, "-k", NAME), (f"{FEW}::{NAME}[before]",)], ids=str)
def test_what_is_asked_for_is_not_drawn_from(few_tests: Path, options: tuple[str, ...]) -> None:
    """All cases, those of a word, and one by its name."""
    cases = [one for one in collected(few_tests, "--randomly-seed=1", *options) if one.startswith(f"{NAME}[")]
    assert cases == [f"{NAME}[before]"] if "[" in options[0] else [f"{NAME}[after]", f"{NAME}[before]"]


# Processes that share the tests take them so that what starts servers is kept to few.


def taken(files: Sequence[str], processes: int, at_once: int) -> list[list[str]]:
    """What each process takes, where each takes a file when the others have taken as many, until so many are gone."""
    waiting, done = list(files), [list[str]() for _ in range(processes)]
    for turn in range(at_once):
        own = done[turn % processes]
        others = [each[-1] for each in done if each and each is not own]
        own.append(sharing.next_file(waiting, own[-1] if own else None, others))
        waiting.remove(own[-1])
    return done


FILES = [f"tests/{folder}/test_{name}.py" for folder in ("faults", "spark", "hdfs", "sink") for name in "abc"]


def test_each_kind_of_files_begins_in_a_process_of_its_own() -> None:
    """And each process goes on with its kind; the kinds that take longest begin first."""
    assert [{file.split("/")[1] for file in each} for each in taken(FILES, 3, 9)] == [{"faults"}, {"spark"}, {"hdfs"}]


def test_a_process_without_files_of_its_kind_helps_those_that_have() -> None:
    """Where the fewest are; files that start no server are last, and all files are taken once."""
    (alone,) = taken(FILES, 1, len(FILES))
    assert alone == FILES
    last = "tests/hdfs/test_c.py"
    assert sharing.next_file(FILES[4:], last, ["tests/spark/test_a.py"]) == "tests/hdfs/test_a.py"
    assert sharing.next_file([*FILES[4:6], *FILES[9:]], last, ["tests/spark/test_a.py"]) == "tests/spark/test_b.py"
    assert sharing.next_file(FILES[3:9], None, ["tests/spark/test_z.py"]) == "tests/hdfs/test_a.py"


def test_a_file_of_spark_is_no_other_kind_by_its_name() -> None:
    """Its folder counts; elsewhere tests of savepoints fork at every call, as those of faults do."""
    assert sharing.kind_of("tests/spark/test_savepoints.py::test_a") == sharing.kind_of("tests/spark/test_a.py")
    assert sharing.kind_of("tests/sink/test_savepoints.py::test_a") == sharing.kind_of("tests/faults/test_a.py") == 0
    assert sharing.kind_of("tests/snapshot/keyed/test_heap.py::test_a") == sharing.OTHERS
