"""Measures partfile against Spark's own sinks: same data, same run, rounds interleaved. ``make bench`` runs it.

Each suite has a process of its own, so that none inherits another's memory or compiled code.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from figures import NOISY_CORES
from machine import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUITES = ("snapshot", "throughput", "latency", "long", "hdfs", "s3", "cli")
ROUNDS = 3
QUICK_ROUNDS = 2
RESULTS = Path(__file__).parent / "results"
TESTS_SUPPORT = Path(__file__).parents[1] / "tests" / "support"
"""Holds the servers that benchmarks share with tests."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, print a table, write the record; returns 0 if every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less data and two rounds: a look, not a measurement")
    parser.add_argument("--only", choices=SUITES, action="append", help="run only this suite (may be repeated)")
    parser.add_argument("--work", type=Path, default=Path("artifacts/bench"), help="directory for data and outputs")
    parser.add_argument("--suite", choices=SUITES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.suite:
        run_suite(options.suite, options.work, quick=options.quick)
        return 0
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    started = time.strftime("%Y-%m-%dT%H%M%S")
    with sole_user_of(options.work):
        suites = options.only or [suite for suite in SUITES if can_be_run(suite)]
        reports = {suite: in_own_process(suite, options) for suite in suites}
    record = {"started": started, "quick": options.quick, "machine": describe(), "suites": reports}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{started}{'-quick' if options.quick else ''}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    figures = [figure for report in reports.values() for figure in report["figures"]]
    print_table(figures)
    print_noise([run for report in reports.values() for run in report["runs"]])
    print(f"record: {path}")
    return 0 if all(figure["met"] for figure in figures) else 1


@contextmanager
def sole_user_of(work: Path) -> Iterator[None]:
    """Refuse to share the work directory: two runs would delete each other's outputs, and measure each other."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"another benchmark is running in {work}; wait for it") from None
        yield


def can_be_run(suite: str) -> bool:
    """Whether the machine has what a suite needs; says what it has not."""
    if suite not in {"hdfs", "s3"}:
        return True
    sys.path.append(str(TESTS_SUPPORT))
    # From a directory that was added just now.
    from ceph_packages import ensure_ceph  # noqa: PLC0415
    from hdfs_jars import hadoop_jars  # noqa: PLC0415
    from server_process import MissingProgram  # noqa: PLC0415

    try:
        hadoop_jars() if suite == "hdfs" else ensure_ceph(print)
    except MissingProgram as missing:
        print(f"{suite}: left out. {missing}", flush=True)
        return False
    return True


def run_suite(suite: str, work: Path, *, quick: bool) -> None:
    """Run one suite in this process and leave its report in the work directory."""
    own = work.absolute() / suite
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    sys.path.append(str(TESTS_SUPPORT))
    module = importlib.import_module(f"suite_{suite}")
    report = module.run(work.absolute() / "data", own, quick=quick, rounds=QUICK_ROUNDS if quick else ROUNDS)
    (work / f"{suite}.json").write_text(json.dumps(report.as_json()))
    shutil.rmtree(own, ignore_errors=True)


def in_own_process(suite: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one suite in a process of its own and read its report."""
    print(f"{suite}:", flush=True)
    command = [sys.executable, __file__, f"--suite={suite}", f"--work={options.work}"]
    subprocess.run([*command, *(["--quick"] if options.quick else [])], check=True)
    report: dict[str, Any] = json.loads((options.work / f"{suite}.json").read_text())
    return report


def print_table(figures: Sequence[dict[str, Any]]) -> None:
    """Print each figure with its goal."""
    rows = [("", "value", "goal", "", "rounds", "")]
    for figure in figures:
        goal = f"{'>=' if figure['direction'] == 'at least' else '<='} {figure['goal']:.2f}"
        rounds = " ".join(f"{value:.2f}" for value in figure["rounds"])
        met = "met" if figure["met"] else "MISSED"
        rows.append((figure["name"], f"{figure['value']:.2f}", goal, met, rounds, figure["note"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


def print_noise(runs: Sequence[dict[str, Any]]) -> None:
    """Point out runs that shared the machine with others."""
    noisy = [run for run in runs if run["foreign_cores"] > NOISY_CORES]
    for run in noisy:
        print(f"noisy: {run['case']} ran beside {run['foreign_cores']:.2f} cores of other processes' load")
    if noisy:
        print("The ratios of noisy rounds are to be read with care; run again on a quiet machine.")


if __name__ == "__main__":
    sys.exit(main())
