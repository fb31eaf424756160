"""The machine: what it is, what of its CPU was ours, and how much memory our processes hold. Reads ``/proc``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal of the first line of /proc/stat; idle and iowait are not busy."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as /proc shows it."""

    pid: int
    parent: int
    cpu_s: float
    """Its CPU time and that of the children it has waited for, in seconds."""
    rss_bytes: int
    command: str


class Meter:
    """Measures a block: its wall time, the CPU time of our process tree, and the load of everybody else."""

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
        self._began = (time.monotonic(), own_cpu_s(), busy_cpu_s())

    def stop(self) -> None:
        """Measure what has happened since the start."""
        began_s, own_s, busy_s = self._began
        self.seconds = time.monotonic() - began_s
        self.cpu_s = own_cpu_s() - own_s
        self.foreign_cores = max(0.0, (busy_cpu_s() - busy_s - self.cpu_s) / self.seconds)


def busy_cpu_s() -> float:
    """CPU seconds that all processes together have used since the machine started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY_FIELDS) / _TICKS


def own_cpu_s() -> float:
    """CPU seconds of this process and its descendants."""
    return sum(process.cpu_s for process in family())


def family() -> list[Process]:
    """This process and its descendants."""
    everybody = [process for path in Path("/proc").iterdir() if path.name.isdigit() and (process := _process(path))]
    ours = {os.getpid()}
    while more := {process.pid for process in everybody if process.parent in ours} - ours:
        ours |= more
    return [process for process in everybody if process.pid in ours]


def resident_bytes() -> dict[str, int]:
    """Resident memory: of this Python, of the JVM, and of the largest Python worker."""
    processes = family()
    workers = [process.rss_bytes for process in processes if "pyspark.daemon" in process.command]
    return {
        "driver": sum(process.rss_bytes for process in processes if process.pid == os.getpid()),
        "jvm": sum(process.rss_bytes for process in processes if "SparkSubmit" in process.command),
        "worker": max(workers, default=0),
    }


def describe() -> dict[str, str | int | float]:
    """The machine and the versions, for the record."""
    packages = ("partfile", "pyspark", "pyarrow", "numpy", "pandas", "duckdb")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": java[0] if java else "unknown",
        **{name: importlib.metadata.version(name) for name in packages},
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _process(path: Path) -> Process | None:
    try:
        # The command in parentheses may hold blanks; what follows it does not.
        fields = (path / "stat").read_text().rpartition(")")[2].split()
        command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    cpu_s = sum(map(int, fields[11:15])) / _TICKS
    return Process(int(path.name), int(fields[1]), cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), command)
