"""``benchmarks/run.py``: what it runs, how it ends, and what a failure costs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import run as benchmark
from figures import Report
from goals import GOALS
from records import Record
from scale import FULL_ROUNDS, Scale
from suites import SUITES

if TYPE_CHECKING:
    from pathlib import Path


def record_of(**reports: dict[str, Any]) -> Record:
    """A record of some suites."""
    return Record("now", 1.0, {}, reports)


def test_a_goal_that_is_missed_fails_and_one_that_is_met_does_not() -> None:
    """The exit code tells both apart; figures without a goal have no say."""
    met, missed = (Report([GOALS["P8"].figure([value])]).as_json() for value in (1.5, 1.4))
    assert benchmark.succeeded(record_of(flink=met))
    assert not benchmark.succeeded(record_of(flink=met, latency=missed))


def test_a_suite_that_fails_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its goals are named as not measured with the exit code, and the benchmark fails in the end."""
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_options: subprocess.CompletedProcess([], 3))
    monkeypatch.setattr(benchmark, "describe", lambda: {"cores": 2})
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    options = benchmark._parser().parse_args([f"--work={tmp_path / 'work'}"])
    record = benchmark.measure([SUITES["reading"], SUITES["latency"]], options, Scale())
    assert record.missing == dict.fromkeys(["P9", "P4 JSON", "P4 Parquet"], "its suite has failed with exit code 3")
    assert not benchmark.succeeded(record)
    assert [path.suffix for path in (tmp_path / "results").iterdir()] == [".json"]


def test_two_benchmarks_do_not_share_a_directory(tmp_path: Path) -> None:
    """The second is refused while the first runs, and let in afterwards."""
    first, second = benchmark.sole_user_of(tmp_path), benchmark.sole_user_of(tmp_path)
    with first, pytest.raises(SystemExit, match="another benchmark"):
        second.__enter__()
    with benchmark.sole_user_of(tmp_path):
        pass


def test_a_share_shortens_but_never_below_what_a_suite_needs() -> None:
    """The full scale changes nothing, whatever least a suite names."""
    assert Scale().of(20) == 20
    assert Scale(0.25, 2).of(20) == 5
    assert Scale(0.01, 1).of(20, least=6) == 6
    assert (Scale().rounds, Scale().spare_rounds > 0, Scale(0.5, 1).spare_rounds) == (FULL_ROUNDS, True, 0)


def test_the_list_names_every_suite_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """``--list`` ends at once."""
    assert benchmark.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SUITES)


def test_an_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names those that there are."""
    with pytest.raises(SystemExit):
        benchmark.main(["--only", "speed"])
    assert "speed: there are throughput" in capsys.readouterr().err
