"""Nothing is written but where a user said: the base, the directory of checkpoints, and that of a savepoint."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from changing import age
from life_cycle import batch, finished_files, in_child, long_sink

if TYPE_CHECKING:
    from pathlib import Path

_ELSEWHERE = ("home", "temporary", "working")


def test_nothing_is_written_elsewhere(tmp_path: Path) -> None:
    """A sink that dies, and the verbs that mend it, leave home, temporary and working directory empty."""
    for name in _ELSEWHERE:
        (tmp_path / name).mkdir()
    base, state = tmp_path / "base", tmp_path / "state"
    environment = {**os.environ, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def die(counts: bool) -> None:
        os.environ.update(environment)
        os.chdir(tmp_path / "working")
        out = long_sink(base, checkpoint_dir=str(state)).local().open()
        out.write(batch(0, 4), position=4)
        if counts:
            out.checkpoint()
        os._exit(0)

    for counts in (False, True):
        assert in_child(lambda: die(counts)) == 0  # noqa: B023 - called at once
        age(tmp_path)
    for words in (["clean", base], ["recover", base], ["savepoint", "create", base, "--to", tmp_path / "savepoints"]):
        command = [sys.executable, "-m", "partfile", *map(str, words), "--checkpoint-dir", str(state), "--apply"]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path / "working", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"base", "state", "savepoints", *_ELSEWHERE}
    assert [path for name in _ELSEWHERE for path in (tmp_path / name).rglob("*")] == []
    assert {path.name for path in base.iterdir()} == {"bucket=b0", "bucket=b1", "_partfile"}
    assert [path.name for path in (base / "_partfile").iterdir()] == ["_quarantine"]
    assert len(finished_files(base)) == 2
