"""Flink in an environment of its own, kept running so that its JVM is as warm as Spark's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from environments import FLINK
from processes import Meter
from runs import Run, with_outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_JOB = Path(__file__).parent / "flink_job.py"


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
                [FLINK.python, str(_JOB)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
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
