"""The Python workers of a Spark driver, to be killed while they run tasks."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from driver_process import Driver


_UNTIL_A_TASK_RUNS_AGAIN_S = 1.0


@dataclass
class WorkerKills:
    """Kills Python workers of whatever driver it is called with.

    Args:
        rng: Draws which.
        most: How many a call kills at most, one after the other; a task may fail three times.
    """

    rng: random.Random
    most: int = 1
    done: int = 0

    def __call__(self, driver: Driver) -> None:
        """SIGKILL some of them, if there are any by now."""
        for number in range(self.rng.randint(1, self.most)):
            if number:
                time.sleep(self.rng.uniform(0, _UNTIL_A_TASK_RUNS_AGAIN_S))
            workers = list(python_workers(driver.process.pid))
            if workers:
                os.kill(self.rng.choice(workers), signal.SIGKILL)
                self.done += 1


def python_workers(driver: int) -> Iterator[int]:
    """The Python workers below a driver: forked by the daemon, and running what it runs."""
    parents = dict(_processes())
    for process, (parent, command) in parents.items():
        if "pyspark.daemon" in command and "pyspark.daemon" in parents.get(parent, (0, ""))[1]:
            above = parent
            while above in parents and above != driver:
                above = parents[above][0]
            if above == driver:
                yield process


def _processes() -> Iterator[tuple[int, tuple[int, str]]]:
    """Every process of the machine with its parent and its command."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(path.name), (parent, (path / "cmdline").read_text(errors="replace"))
            except OSError:
                continue  # It has ended meanwhile.
