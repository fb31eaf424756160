"""Measures partfile against its peers: same data, same run, rounds interleaved. ``make bench`` runs it.

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

from document import write_document
from machine import describe
from records import merged, read_record, table_rows
from scale import FULL_ROUNDS, QUICK_ROUNDS, QUICK_SHARE, Scale
from suites import SUITES, TESTS, chosen, listing
from tables import aligned, noise_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from records import Record
    from suites import Suite

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DOCS = ROOT / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run suites, print the table, write record and document; returns 0 if no goal is missed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    scale = _scale(options)
    if options.suite:
        run_suite(SUITES[options.suite], options.work, scale)
        return 0
    if options.list:
        print("\n".join(aligned(listing())))
        return 0
    if options.document:
        record = merged([read_record(path) for path in options.document])
        print("\n".join(aligned(table_rows(record))))
        write_document(record, DOCS)
        return 0
    try:
        suites = chosen(options.only or (), everything=options.all)
    except ValueError as error:
        parser.error(str(error))
    record = measure(suites, options, scale)
    print("\n" + "\n".join(aligned(table_rows(record))) + "\n")
    print("".join(f"{line}\n" for line in noise_lines(record)), end="")
    # A look, or a part of the table, is not what the documentation should say.
    whole = scale.is_full and not options.only
    write_document(record, DOCS if whole else options.work)
    return 0 if succeeded(record) else 1


def succeeded(record: Record) -> bool:
    """Whether every suite has measured something, and met what it measured."""
    measured = all(suite["figures"] for suite in record.suites.values())
    return measured and all(figure["met"] is not False for figure in record.figures)


def measure(suites: Sequence[Suite], options: argparse.Namespace, scale: Scale) -> Record:
    """Run suites one after the other and write their record."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    started, reports = time.strftime("%Y-%m-%dT%H%M%S"), dict[str, Any]()
    # What has to be fetched is fetched before anything is measured.
    missing = {suite.name: reason for suite in suites if (reason := suite.why_not()) is not None}
    with sole_user_of(options.work):
        for suite in suites:
            if suite.name in missing:
                print(f"{suite.name}: left out. {missing[suite.name]}", flush=True)
                reports[suite.name] = nothing_of(suite, missing[suite.name])
            else:
                reports[suite.name] = in_own_process(suite, options, scale)
    record = {"started": started, "share": scale.share, "machine": describe(), "suites": reports}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{started}{'' if scale.is_full else '-quick'}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"record: {path}")
    return read_record(path)


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


def run_suite(suite: Suite, work: Path, scale: Scale) -> None:
    """Run one suite in this process and leave its report in the work directory."""
    own = work.absolute() / suite.name
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    sys.path.append(str(TESTS))
    module = importlib.import_module(f"suite_{suite.name}")
    report = module.run(work.absolute() / "data", own, scale)
    (work / f"{suite.name}.json").write_text(json.dumps(report.as_json()))
    shutil.rmtree(own, ignore_errors=True)


def in_own_process(suite: Suite, options: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Run one suite in a process of its own and read its report."""
    began_s = time.monotonic()
    print(f"{suite.name}: {suite.what}", flush=True)
    command = [sys.executable, "-u", __file__, f"--suite={suite.name}", f"--work={options.work}"]
    done = subprocess.run([*command, f"--share={scale.share}", f"--rounds={scale.rounds}"], check=False)
    if done.returncode:
        # An hour of the other suites is not to be lost with it.
        return nothing_of(suite, f"its suite has failed with exit code {done.returncode}")
    report: dict[str, Any] = json.loads((options.work / f"{suite.name}.json").read_text())
    print(f"  {(time.monotonic() - began_s) / 60:.1f} minutes", flush=True)
    return report


def nothing_of(suite: Suite, reason: str) -> dict[str, Any]:
    """The report of a suite that has not measured anything."""
    return {"figures": [], "runs": [], "extra": {}, "missing": dict.fromkeys(suite.goals or [suite.name], reason)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the suites with their goals, and end")
    parser.add_argument("--only", action="append", help="run only this suite, or that of this goal (may be repeated)")
    parser.add_argument("--all", action="store_true", help="run the suites of HDFS, S3, the core and the CLI, too")
    parser.add_argument("--quick", action="store_true", help="a quarter of the data and two rounds: no measurement")
    parser.add_argument("--share", type=float, help="another share of the data than all of it, such as 0.1")
    parser.add_argument(
        "--rounds", type=int, help=f"how many rounds count ({FULL_ROUNDS}, with --quick {QUICK_ROUNDS})"
    )
    parser.add_argument("--work", type=Path, default=Path("artifacts/bench"), help="directory for data and outputs")
    parser.add_argument(
        "--document", type=Path, nargs="+", help="measure nothing; write docs/BENCHMARKS.md from these records"
    )
    parser.add_argument("--suite", choices=SUITES, help=argparse.SUPPRESS)
    return parser


def _scale(options: argparse.Namespace) -> Scale:
    share = options.share or (QUICK_SHARE if options.quick else 1.0)
    return Scale(share, options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
