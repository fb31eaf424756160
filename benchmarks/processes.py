"""Our process tree as ``/proc`` shows it: its CPU time, the load of all others, the peak memory of its workers."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal of the first line of /proc/stat; idle and iowait are not busy."""
_WORKER = "pyspark.daemon"
"""In the command of every Python worker: they are forked off PySpark's daemon."""
_LOOK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as /proc shows it."""

    pid: int
    parent: int
    cpu_s: float
    """Its CPU time and that of the children it has waited for, in seconds."""
    rss_bytes: int
    command: str


@dataclass(frozen=True, slots=True)
class Load:
    """What had been used by one moment, since the machine started."""

    at_s: float
    """By a clock that never goes back."""
    own_cpu_s: float
    """CPU seconds of our process tree."""
    busy_cpu_s: float
    """CPU seconds of all processes together."""
    workers_cpu_s: Mapping[int, float] = field(default_factory=dict)
    """CPU seconds of each Python worker of the tree, by its process ID."""


class Meter:
    """Measures a block: its wall time, the CPU time of our process tree, and the load of all other processes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.foreign_cores = 0.0
        """Cores that processes other than ours kept busy."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to measure."""
        self._began = load_now()

    def stop(self) -> None:
        """Measure what has happened since the start."""
        ended = load_now()
        self.seconds = ended.at_s - self._began.at_s
        self.cpu_s = own_cpu_s(self._began, ended)
        self.foreign_cores = foreign_cores(self._began, ended)


class WorkerMemory:
    """Watches the Python workers of a block from a thread, for the peak of the largest one."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        """The most that one worker held at once since it was forked (the kernel's high-water mark)."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._look()
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        for process in family():
            if _WORKER in process.command:
                self.peak_bytes = max(self.peak_bytes, _peak_of(process.pid))


def foreign_cores(before: Load, after: Load) -> float:
    """How many cores processes outside our tree kept busy from one moment to a later one."""
    foreign_s = (after.busy_cpu_s - before.busy_cpu_s) - own_cpu_s(before, after)
    return max(0.0, foreign_s / (after.at_s - before.at_s))


def own_cpu_s(before: Load, after: Load) -> float:
    """CPU seconds that our tree has used from one moment to a later one.

    PySpark's daemon ends workers that were idle for a minute, and the kernel forgets what they had used.
    """
    ended = before.workers_cpu_s.keys() - after.workers_cpu_s.keys()
    return after.own_cpu_s - before.own_cpu_s + sum(before.workers_cpu_s[pid] for pid in ended)


def load_now() -> Load:
    """What has been used until now."""
    busy_s, processes = busy_cpu_s(Path("/proc/stat").read_text()), family()
    # The daemon waits for no worker: its own figure holds nothing of theirs.
    workers = {process.pid: process.cpu_s for process in processes if _WORKER in process.command}
    return Load(time.monotonic(), sum(process.cpu_s for process in processes), busy_s, workers)


def busy_cpu_s(stat: str) -> float:
    """CPU seconds of all processes together, from the text of ``/proc/stat``."""
    fields = stat.splitlines()[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY_FIELDS) / _TICKS_PER_S


def family() -> list[Process]:
    """This process and its descendants."""
    found = (_process(path) for path in Path("/proc").iterdir() if path.name.isdigit())
    return descendants([process for process in found if process is not None], os.getpid())


def descendants(processes: Iterable[Process], root: int) -> list[Process]:
    """The process ``root`` and everything below it."""
    known = list(processes)
    ours = {root}
    while more := {process.pid for process in known if process.parent in ours} - ours:
        ours |= more
    return [process for process in known if process.pid in ours]


def resident_bytes() -> dict[str, int]:
    """Resident memory: of this Python, of the JVM, and of the largest Python worker."""
    processes = family()
    workers = [process.rss_bytes for process in processes if _WORKER in process.command]
    return {
        "driver": sum(process.rss_bytes for process in processes if process.pid == os.getpid()),
        "jvm": sum(process.rss_bytes for process in processes if "SparkSubmit" in process.command),
        "worker": max(workers, default=0),
    }


def process_of(pid: int, stat: str, command: str) -> Process:
    """A process from the text of its ``/proc/PID/stat`` and its command line."""
    # The command in parentheses may hold blanks and parentheses; what follows it does not.
    fields = stat.rpartition(")")[2].split()
    cpu_s = sum(map(int, fields[11:15])) / _TICKS_PER_S
    return Process(pid, int(fields[1]), cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), command)


def peak_bytes(status: str) -> int:
    """The high-water mark of resident memory in the text of a ``/proc/PID/status``; 0 for a process that has ended."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _process(path: Path) -> Process | None:
    try:
        command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return process_of(int(path.name), (path / "stat").read_text(), command)
    except OSError:
        return None


def _peak_of(pid: int) -> int:
    try:
        return peak_bytes(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0


def anonymous_bytes() -> int:
    """Memory of this process that is no file's, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("/proc/self/status does not tell the memory of this process")
