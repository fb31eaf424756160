"""The command line as a test calls it: in this process, or as a process of its own that may be killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from partfile.cli.main import app

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from typer.testing import Result


# The command line as a test calls it: in this process, or as a process of its own.


def run(*words: str | Path) -> Result:
    """Run the command in this process; nothing is raised."""
    return CliRunner().invoke(app, [*map(str, words)])


def told(*words: str | Path, code: int = 0) -> str:
    """What a command that ends with ``code`` prints."""
    result = run(*words)
    assert result.exit_code == code, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def ageless(text: str) -> str:
    """What a command has told without the ages in it, which grow while it runs a second time."""
    return re.sub(r"\d+ (?:s|min|h) old", "so old", text)


def told_json(*words: str | Path, code: int = 0) -> Any:
    """The one JSON document that a command prints."""
    return json.loads(told(*words, "--json", code=code))


def start(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """The command as a process of its own, with pipes where the options name nothing else."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen([sys.executable, "-m", "partfile", *map(str, words)], **given)


def told_lines(*words: str | Path, code: int = 0) -> list[Any]:
    """The JSON lines that a command prints."""
    return [json.loads(line) for line in told(*words, "--json", code=code).splitlines()]


# ``partfile recover`` between two drivers of one stream, as a process of its own that may be killed itself.

_LONGEST_RUN_S = 240
_TAKEOVER_TO_END_S = 0.05
"""About how long it works once it owns the sink."""


@dataclass
class Recovering:
    """Recovers the sinks of a base from time to time."""

    base: Path
    rng: random.Random
    done: int = 0
    kills: int = 0

    def __call__(self) -> None:
        """Do nothing, run it to its end, or kill it; and one that was killed may be run again."""
        while self.rng.random() < 0.6:
            if self.rng.random() < 0.5:
                self._run()
                return
            self._run_and_kill()

    def _run(self) -> None:
        command = start("recover", self.base, "--apply", "--fence")
        told = "".join(command.communicate(timeout=_LONGEST_RUN_S))
        assert command.returncode == 0, told
        self.done += 1

    def _run_and_kill(self) -> None:
        """At a random instant of what it does once it owns the sink, or of what comes before."""
        before = self._links()
        command = start("recover", self.base, "--apply", "--fence")
        if self.rng.random() < 0.8:
            while command.poll() is None and self._links() == before:
                time.sleep(0.001)
            time.sleep(self.rng.uniform(0, _TAKEOVER_TO_END_S))
        else:
            time.sleep(self.rng.uniform(0, 1))
        command.kill()
        told = "".join(command.communicate())
        # One that finds nothing to do, or is faster, ends well.
        assert command.returncode in {-9, 0}, told
        self.kills += command.returncode != 0
        self.done += command.returncode == 0

    def _links(self) -> list[Path]:
        return sorted(self.base.glob("_partfile/*/chk-*/_metadata"))
