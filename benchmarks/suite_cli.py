"""The command line: what its start costs, and its verbs on a tree of 100 000 finished files and 1 000 staged ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pyarrow as pa

import partfile as pf
from figures import Report, figure_of_rounds

if TYPE_CHECKING:
    from pathlib import Path

    from scale import Scale

FINISHED = 100_000
STAGED = 1_000
STUCK = 1
"""What ``status`` ends with here."""


def run(data: Path, work: Path, scale: Scale) -> Report:
    """Each round runs each verb in a process of its own, whose start is part of the time."""
    del data
    base = work / "base"
    finished = scale.of(FINISHED)
    make_tree(base, finished)
    times: dict[str, list[float]] = {}
    for _ in range(scale.rounds):
        found = {name: seconds_of(base, *words) for name, *words in VERBS}
        found |= {name: cpu_seconds_of(words, surroundings) for name, words, surroundings in STARTS}
        for name, seconds in found.items():
            times.setdefault(name, []).append(seconds)
        print("  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()), flush=True)
    report = Report(extra={"files": finished, "staged": STAGED, "seconds": times})
    for name, goal in GOALS.items():
        report.figures.append(figure_of_rounds(f"seconds of partfile {name}", times[name], goal, "at most"))
    for name, goal in START_GOALS.items():
        report.figures.append(figure_of_rounds(f"seconds of CPU of {name}", times[name], goal, "at most"))
    return report


VERBS = (
    ("status", "status"),
    ("status --scan", "status", "--scan"),
    ("list --json", "list", "--json"),
    ("verify", "verify"),
)
GOALS = {"status": 2.0, "status --scan": 15.0, "list --json": 20.0, "verify": 20.0}
"""In seconds; that of status is what is promised, the others say when something has gone wrong."""


STARTS: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("import partfile", ("-c", "import partfile"), {}),
    ("partfile --help", ("-m", "partfile", "--help"), {}),
    (
        "TAB after partfile status --",
        ("-m", "partfile"),
        {"_PARTFILE_COMPLETE": "complete_bash", "COMP_WORDS": "partfile status --", "COMP_CWORD": "2"},
    ),
)
"""What begins a process and is done: a name, arguments of Python, and what its environment has besides."""
START_GOALS = {"import partfile": 0.25, "partfile --help": 0.3, "TAB after partfile status --": 0.3}
"""In seconds of CPU, Python's own start among them."""


def make_tree(base: Path, finished: int) -> None:
    """Let a sink be killed with its parts open, and put as many finished files beside them as a long history leaves."""
    child = os.fork()
    if child == 0:
        out = pf.FileSink(
            base,
            uid="bench",
            bucketer=pf.HiveBucketer("bucket"),
            rolling=pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6),
            # So that status has something to call stuck at once.
            clock=lambda: 0,
        ).local()
        out.open()
        out.write(pa.RecordBatch.from_pydict({"bucket": list(range(STAGED)), "value": ["x"] * STAGED}))
        out.checkpoint()
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("the sink of the command line's tree has failed")
    chain = next(base.glob("bucket=0/_part-*")).name.split("-")[1]
    for number in range(finished):
        (base / f"bucket={number % STAGED}" / f"part-{chain}-1-{number}.json").touch()


def seconds_of(base: Path, *words: str) -> float:
    """The time that a verb takes, from the start of its process to its end."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "partfile", words[0], str(base), *words[1:]]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in {0, STUCK}:
        raise SystemExit(f"partfile {' '.join(words)} has failed")
    return time.perf_counter() - began


def cpu_seconds_of(words: tuple[str, ...], surroundings: dict[str, str]) -> float:
    """The CPU that a process of Python takes from its start to its end, in user and kernel mode."""
    environment = {**os.environ, **surroundings}
    child = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words)} has failed")
    return used.ru_utime + used.ru_stime
