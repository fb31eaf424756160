"""A Spark driver of the tests as a process group of its own, so that its JVM and workers die with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PROGRAM = Path(__file__).with_name("kill_driver.py")
_DYING_WITH_US = (sys.executable, str(Path(__file__).with_name("die_with_owner.py")))
_LONGEST_RUN_S = 300


class Driver:
    """A running ``kill_driver.py``.

    Args:
        job: What it is to do.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        # Not a pipe: nobody reads it while the driver runs.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open for as long as the driver
        self.process = subprocess.Popen(
            [*_DYING_WITH_US, str(os.getpid()), sys.executable, str(PROGRAM), json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAM.parent), os.environ.get("PYTHONPATH", "")])},
            start_new_session=True,
        )

    def go(self) -> None:
        """Let a driver begin that stands by."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_for(self, word: str) -> str | None:
        """Read lines until one begins with ``word``; None if the process ended first."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.strip()
        return None

    def kill(self) -> list[str]:
        """SIGKILL to the driver, its JVM and its workers; returns the lines that nobody had read."""
        os.killpg(self.process.pid, signal.SIGKILL)
        return self._rest()

    def finish(self) -> str:
        """Wait for the end; returns the last line it said."""
        lines = self._rest()
        assert self.process.returncode == 0, self.last_words
        return lines[-1] if lines else ""

    def has_given_up(self) -> bool:
        """Wait for the end; whether it failed by itself, as one whose NameNode was away too long."""
        self._rest()
        return self.process.returncode != 0

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, however it ended."""
        return self.process.poll() is not None

    @property
    def last_words(self) -> str:
        """The end of what it complained of."""
        self._errors.seek(0)
        return self._errors.read()[-4000:]

    def _rest(self) -> list[str]:
        return self.process.communicate(timeout=_LONGEST_RUN_S)[0].strip().splitlines()


def copy_checkpoint(checkpoint: Path, copy: Path) -> None:
    """Copy the checkpoint of a driver whose Python is stopped: its JVM lives on, and still renames what it wrote."""
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(".*.tmp*"))


class Relay:
    """Drivers of one job, one after the other.

    While one works the next one starts and stands by: most of a short life is starting.

    Args:
        job: What each of them is to go on with.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = {**job, "standby": True}
        self._standby: Driver | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._standby is not None:
            self._standby.kill()

    def next(self, *, is_last: bool = False) -> Driver:
        """Let the driver that stands by begin, and start another one unless this is the last."""
        driver = self._standby or Driver(self._job)
        self._standby = None if is_last else Driver(self._job)
        driver.go()
        return driver
