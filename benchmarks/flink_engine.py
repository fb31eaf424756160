"""Flink in an environment of its own: found or installed, and kept running so that its JVM is as warm as Spark's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from processes import Meter
from runs import Run, with_outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

VERSION = "2.3"
HOME = Path(os.environ.get("PARTFILE_FLINK", Path.home() / ".cache" / "partfile" / f"flink-{VERSION}"))
"""Its virtual environment: some 800 MB, and far too many dependencies to share ours with."""
_JOB = Path(__file__).parent / "flink_job.py"
_INSTALL_TIMEOUT_S = 900


class FlinkIsMissing(Exception):
    """Flink cannot be had here; the message says why."""


class Flink:
    """A process that runs one job after the other.

    Args:
        log: Where Flink's own messages go.
    """

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python(), str(_JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def write(
        self,
        case: str,
        source: Path,
        output: Path,
        *,
        checkpoint_ms: int,
        format: str = "json",
        sizes: Callable[[], list[int]],
    ) -> Run:
        """Copy CSV files into hourly partitions.

        Args:
            case: Its name in the record.
            source: A directory of CSV files.
            output: An empty directory.
            checkpoint_ms: From one of Flink's checkpoints to the next.
            format: ``json`` or ``csv``.
            sizes: Asked for the sizes of the finished files.
        """
        request: dict[str, str | int] = {
            "source": str(source),
            "output": str(output),
            "format": format,
            "checkpoint_ms": checkpoint_ms,
        }
        run = Run(case)
        with Meter() as meter:
            answer = self._ask(request)
        with_outcome(run, meter, sizes())
        run.seconds, run.phases_ms = answer["seconds"], {"net_ms": answer["net_seconds"] * 1000}
        return run

    def _ask(self, request: dict[str, str | int]) -> dict[str, float]:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise SystemExit("Flink's process has no pipes")
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        for line in answers:
            if line.startswith("{"):
                answer: dict[str, float] = json.loads(line)
                return answer
        raise SystemExit(f"Flink's job has failed: see {self._log}")


def python() -> str:
    """The interpreter of Flink's environment."""
    return str(HOME / "bin" / "python")


def ensure_flink(say: Callable[[str], None]) -> None:
    """Find Flink, or install it once.

    Raises:
        FlinkIsMissing: It is not there and could not be installed.
    """
    if _is_there():
        return
    say(f"Installing apache-flink {VERSION} into {HOME} (once, a few minutes)")
    commands = (
        [sys.executable, "-m", "venv", str(HOME)],
        [python(), "-m", "pip", "install", "-qq", f"apache-flink=={VERSION}.*"],
    )
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FlinkIsMissing(f"apache-flink {VERSION} could not be installed: {error}") from error
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise FlinkIsMissing(f"apache-flink {VERSION} could not be installed: {reason}")


def _is_there() -> bool:
    try:
        return subprocess.run([python(), "-c", "import pyflink"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
