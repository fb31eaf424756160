"""The command line on a terminal: colours unless they are not wanted, progress that leaves nothing, names escaped."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.life_cycle import seed_with_a_tail
from support.recovery import age, seed_with_orphans
from support.trees import killed_job

if TYPE_CHECKING:
    from pathlib import Path


ESCAPE = "\x1b["
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*words: str | Path, **environment: str) -> str:
    """What a terminal gets from the command, on standard output and standard error."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    variables = {**inherited, "TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "partfile", *map(str, words)], stdout=theirs, stderr=theirs, env=variables
    ):
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 1 << 16):
                seen += data
        except OSError:
            pass  # How Linux says that the other end is closed.
    os.close(ours)
    return seen.decode()


def test_what_is_stuck_stands_out(tmp_path: Path) -> None:
    """A terminal gets colours, and long names are neither wrapped nor cut."""
    seed_with_a_tail(tmp_path)
    text = on_a_terminal("status", tmp_path, COLUMNS="40")
    assert f"{ESCAPE}1;31mSTUCK  life: 2 parts" in text
    assert "the next start, or recover, cuts it to 18 bytes and publishes it" in text


@pytest.mark.parametrize(("words", "environment"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_colours_can_be_left_out(tmp_path: Path, words: list[str], environment: dict[str, str]) -> None:
    """``--no-color`` and ``NO_COLOR`` leave no colour."""
    seed_with_a_tail(tmp_path)
    text = on_a_terminal("status", tmp_path, *words, **environment)
    assert "STUCK" in text
    assert "31m" not in text
    assert "33m" not in text


def test_a_hostile_name_reaches_no_terminal(tmp_path: Path) -> None:
    """A name that would clear the screen is shown, in every verb that lists, and obeyed by none."""
    seed_with_a_tail(tmp_path)
    (tmp_path / "x\x1b[2J\u202e.csv").write_text("x")
    for words in (["status", "--scan"], ["list"], ["verify"]):
        text = on_a_terminal(words[0], tmp_path, *words[1:], "--no-color")
        assert "x\\x1b[2J\\u202e.csv" in text
        assert f"{ESCAPE}2J" not in text
        assert "\u202e" not in text


def test_long_work_shows_its_progress(tmp_path: Path) -> None:
    """A listing counts on a terminal, and nowhere else."""
    seed_with_a_tail(tmp_path)
    assert "listing files" in on_a_terminal("status", tmp_path, "--scan")
    assert "listing files" not in on_a_terminal("status", tmp_path, "--scan", "--json")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["recover", "{base}", "--apply"], "publishing parts of sink life"),
        (["clean", "{base}", "--apply", "--delete"], "taking files away"),
        (["recover", "{tree}", "--adopt-layout", "flink", "--apply"], "adopting files"),
        (["savepoint", "create", "{base}", "--to", "{kept}", "--apply"], "publishing parts"),
    ],
)
def test_changing_shows_its_progress(tmp_path: Path, words: list[str], shown: str) -> None:
    """Each verb that changes counts on a terminal what it has done of its plan, to the end."""
    base, tree = tmp_path / "base", tmp_path / "tree"
    killed_job(tree)
    seed_with_orphans(base)
    age(base)
    text = on_a_terminal(*(word.format(base=base, tree=tree, kept=tmp_path / "kept") for word in words))
    assert shown in text
    ends = {end for done, end in re.findall(r"(\d+)/(\d+)", CODES.sub("", text)) if done == end != "0"}
    assert ends, text


def test_a_shell_can_complete(tmp_path: Path) -> None:
    """The verbs are offered to a shell that asks for what begins like them."""
    done = subprocess.run(
        [sys.executable, "-m", "partfile"],
        env={**os.environ, "_PARTFILE_COMPLETE": "complete_bash", "COMP_WORDS": "partfile ver", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "verify" in done.stdout
