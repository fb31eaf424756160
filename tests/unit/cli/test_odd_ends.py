"""Ends that are nobody's mistake in here: output that cannot be written, files that may not be read, options twice."""

from __future__ import annotations

import errno
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import run, told
from life_cycle import seed_with_a_tail

from partfile.cli import clean
from partfile.stores.local.posix import PosixCalls

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("where", "code"), [("> /dev/full", 3), (">&-", 1)])
def test_output_that_cannot_be_written(tmp_path: Path, where: str, code: int) -> None:
    """A full disk or a closed output is told in words, without a traceback."""
    script = f"{sys.executable} -m partfile list {tmp_path} {where}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "output" in done.stderr
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_part_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is named with what the system says; it is no mistake to report."""
    (tmp_path / "x.txt").write_text("x\n")

    def refusing(_calls: PosixCalls, _directory: int, name: str, _access: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(PosixCalls, "open_existing", refusing)
    result = run("cat", tmp_path, "x.txt")
    assert result.exit_code == 3
    assert "x.txt" in result.stderr
    assert "unexpected" not in result.stderr


def test_the_option_of_a_sink_is_given_once(tmp_path: Path) -> None:
    """Of two the last was taken without a word: refused."""
    result = run("status", tmp_path, "--uid", "s1", "--uid", "s2")
    assert result.exit_code == 2
    assert "--uid is given 2 times" in result.stderr


def test_a_directory_of_checkpoints_that_is_not_there(tmp_path: Path) -> None:
    """It is named as what it is, and not as the base."""
    result = run("status", tmp_path, "--checkpoint-dir", tmp_path / "nope")
    assert result.exit_code == 2
    assert "the directory of checkpoints" in result.stderr


def test_a_bucket_without_a_file_is_named(tmp_path: Path) -> None:
    """A mistyped one is not told like an empty base."""
    seed_with_a_tail(tmp_path)
    assert "'nope'" in told("list", tmp_path, "--bucket", "nope")


def test_an_interruption_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while something is changed ends with 130 and says how to go on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    seed_with_a_tail(tmp_path)
    monkeypatch.setattr(clean, "open_stores", interrupted)
    result = run("clean", tmp_path, "--apply")
    assert result.exit_code == 130
    assert "run again" in result.stderr
