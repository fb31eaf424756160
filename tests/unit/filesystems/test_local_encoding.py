"""Names of local files are UTF-8: a process that would read or write others opens no local store."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

READ = "import sys, partfile; partfile.read(sys.argv[1], format='json')"
SINK = "import sys, partfile; partfile.FileSink(sys.argv[1], uid='u', format='json').local().open()"
TASK = "import sys; from partfile.stores.registry import open_store; open_store(sys.argv[1])"


def run_plainly(*words: str, utf8: bool) -> subprocess.CompletedProcess[str]:
    """Python in the plain locale, where names are ASCII unless UTF-8 mode is on."""
    environment = {name: value for name, value in os.environ.items() if name not in {"LANG", "PYTHONUTF8"}}
    environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", f"utf8={int(utf8)}", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("code", [READ, SINK, TASK])
def test_only_a_process_that_names_files_in_utf8_opens_a_local_store(tmp_path: Path, code: str) -> None:
    """A reader, a sink and what a task does are refused, with what to set; nothing is made."""
    base = tmp_path / "out"
    base.mkdir()
    done = run_plainly("-c", code, str(base), utf8=False)
    assert "ConfigError" in done.stderr
    assert "PYTHONUTF8=1" in done.stderr
    assert list(base.iterdir()) == []
    assert "PYTHONUTF8" not in run_plainly("-c", code, str(base), utf8=True).stderr


@pytest.mark.parametrize("verb", ["clean", "verify"])
def test_the_command_line_refuses_too(tmp_path: Path, verb: str) -> None:
    """A usage error with the way out, before anything is taken for an orphan; with UTF-8 it works."""
    (tmp_path / "k=Москва").mkdir()
    done = run_plainly("-m", "partfile", verb, str(tmp_path), utf8=False)
    assert done.returncode == 2
    assert "PYTHONUTF8=1" in done.stderr
    assert run_plainly("-m", "partfile", verb, str(tmp_path), utf8=True).returncode == 0
