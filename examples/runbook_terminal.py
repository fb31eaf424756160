"""What a terminal shows of a failure: commands, what they print and end with, made the same in each run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.processes.command_line import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_STABLE = (
    (r"part-[0-9a-f]{8}-", "part-0a1b2c3d-"),
    (r"\b[0-9a-f]{32}\b", "0123456789abcdef0123456789abcdef"),
    (r"\bplan [0-9a-f]{16}\b", "plan 0123456789abcdef"),
    (r"savepoint-(\w+)-[0-9a-f]{12}", r"savepoint-\1-0123456789ab"),
    (r"\bpartfile-[0-9a-f]{12}\b", "data"),
    (r"http://127\.0\.0\.1:\d+", "http://s3.internal:9000"),
    (r"\bupload \w{50,}", "upload 2~0a1b2c"),
    (r"\b(?:\d+[smhd] )*\d+[smhd] (ago|old)\b", r"5s \1"),
    (r"\b\d+ s old", "5 s old"),
    (r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "2026-01-02 03:04:05"),
    (r"\d{8}T\d{6}Z?-[0-9a-f]+", "20260102T030405Z-0a1b2c3d"),
    ("caused by the proxy of a test", "The provided token has expired."),
    (r"[ \t]+$", ""),
)
"""What differs from run to run, and what stands for it."""
_QUERY_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_VERDICTS = ("$", "STUCK", "DAMAGED", "sink ", "verify:", "partfile:", "partfile.", "nothing", "Killed", "error")


@dataclass(slots=True)
class Terminal:
    """An operator's terminal.

    Args:
        root: What stands there as ``/data``.
    """

    root: Path
    sections: dict[str, list[str]] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    """What stands for each id of a query, in the order in which they are seen."""

    def section(self, name: str) -> None:
        """What comes belongs to this section."""
        self.sections[name] = []

    def partfile(self, *words: str | Path) -> None:
        """Type a command, as it is called at a prompt."""
        result = run(*words)
        warnings = result.stderr if result.exit_code else ""
        self.show(" ".join(["partfile", *map(str, words)]), result.stdout + warnings, result.exit_code)

    def job(self, work: Callable[[], object]) -> None:
        """Run the job until it ends or fails; of a traceback the last line is shown."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the operator sees it
            self.show("python job.py", _last_word(error), 1)
        else:
            self.show("python job.py", "", 0)

    def show(self, command: str, output: str, exit_code: int) -> None:
        """Note a command with what it printed."""
        ending = f"    # ends with {exit_code}" if exit_code else ""
        lines = [f"$ {command}{ending}", *output.rstrip().splitlines()]
        shown = self.sections[next(reversed(self.sections))]
        shown += [*([""] if shown else []), *map(self._stable, lines)]

    def _stable(self, line: str) -> str:
        line = line.replace(str(self.root), "/data")
        for pattern, instead in _STABLE:
            line = re.sub(pattern, instead, line)
        return _QUERY_ID.sub(self._query_id, line)

    def _query_id(self, found: re.Match[str]) -> str:
        number = len(self.queries) + 1
        return self.queries.setdefault(found[0], f"{str(number) * 8}-0000-0000-0000-000000000000")


def _last_word(error: Exception) -> str:
    """The line that names what partfile refused: the traceback's last, or the one that Spark quotes."""
    kind = type(error)
    quoted = re.search(r"^partfile\.errors\.\w+: .*(?:\nHint: .*)?$", str(error), flags=re.MULTILINE)
    return quoted[0] if quoted else f"{kind.__module__}.{kind.__qualname__}: {error}"


def structure(lines: list[str]) -> list[str]:
    """What must be the same in each run: commands with their exit codes, and verdicts."""
    return [line for line in lines if line.lstrip().startswith(_VERDICTS)]
