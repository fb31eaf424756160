"""Which tests a run leaves out: cases that are drawn, and servers that ``PARTFILE_SKIP`` names."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from support.repo import selection

if TYPE_CHECKING:
    from collections.abc import Sequence


# Which cases a run leaves out: the same in every process that shares them, others in another run, none of a few.

ROOT = Path(__file__).parents[2]


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
        return None if self.few is None else pytest.mark.drawn(self.few).mark


def left_out(cases: Sequence[Case], seed: int) -> set[str]:
    return {test.nodeid for test in selection.left_out(cast("list[pytest.Item]", cases), seed)}


def cases_of(test: str, count: int, few: Any = None) -> list[Case]:
    return [Case(f"{test}[{number}]", few) for number in range(count)]


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


def collected(*options: str) -> list[str]:
    """What pytest itself collects with this project's conftest."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line)


def test_a_real_run_draws_and_repeats_what_its_seed_drew() -> None:
    """Four seeds draw each case, and none but one; the other tests of the file are all there."""
    drawn = [
        [one for one in collected(TWO_CASES, f"--randomly-seed={seed}") if one.startswith(NAME)]
        for seed in (1, 2, 3, 4, 1)
    ]
    assert all(len(each) == 1 for each in drawn)
    assert {one for each in drawn for one in each} == {f"{NAME}[before]", f"{NAME}[after]"}
    assert drawn[0] == drawn[-1]


@pytest.mark.parametrize(
    "options", [(TWO_CASES, "--every-case"), (TWO_CASES, "-k", NAME), (f"{TWO_CASES}::{NAME}[before]",)], ids=str
)
def test_what_is_asked_for_is_not_drawn_from(options: tuple[str, ...]) -> None:
    """All cases, those of a word, and one by its name."""
    cases = [one for one in collected("--randomly-seed=1", *options) if one.startswith(NAME)]
    assert cases == [f"{NAME}[before]"] if "[" in options[0] else [f"{NAME}[after]", f"{NAME}[before]"]


# ``PARTFILE_SKIP`` leaves out the tests of a real server, and nobody can overlook it.


def run(skip: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with ``PARTFILE_SKIP`` set, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PARTFILE_SKIP": skip}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_tests_of_a_server_are_skipped_and_the_last_lines_say_so() -> None:
    """Tests elsewhere run; the report stands right above pytest's closing line."""
    done = run(" hdfs ,", "tests/hdfs/test_jars.py", "tests/repo/test_readme.py::test_every_option_is_documented")
    report, closing = done.stdout.splitlines()[-2:]
    assert done.returncode == 0, done.stdout
    assert report == "HDFS WAS NOT TESTED (PARTFILE_SKIP=hdfs)"
    assert closing.startswith("1 passed, 6 skipped"), closing


def test_of_the_s3_servers_only_the_named_one_is_left_out() -> None:
    """A test that runs on every S3 server runs on the others, and one that asks for the named one does not run."""
    done = run("radosgw", "tests/s3/test_servers.py", "-k", "an_upload_of_two_parts")
    report, closing = done.stdout.splitlines()[-2:]
    assert done.returncode == 0, done.stdout
    assert report == "RADOSGW WAS NOT TESTED (PARTFILE_SKIP=radosgw)"
    assert closing.startswith("2 passed, 1 skipped"), closing


@pytest.mark.parametrize("skip", ["hdsf", "hdfs,ceph", "HDFS"])
def test_an_unknown_server_is_refused_by_name(skip: str) -> None:
    """A slip must not look like a full run."""
    done = run(skip, "tests/hdfs/test_jars.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"PARTFILE_SKIP names {skip.rpartition(',')[2]}; it knows hdfs, radosgw, spark_avro" in done.stderr


def test_without_it_nothing_is_reported() -> None:
    """An empty value leaves nothing out."""
    done = run("", "tests/hdfs/test_jars.py", "--collect-only")
    assert done.returncode == 0
    assert "NOT TESTED" not in done.stdout
