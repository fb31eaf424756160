"""The command line as a test calls it: in this process, or as a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from partfile.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


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
    """The command as a process of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "partfile", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def told_lines(*words: str | Path, code: int = 0) -> list[Any]:
    """The JSON lines that a command prints."""
    return [json.loads(line) for line in told(*words, "--json", code=code).splitlines()]
