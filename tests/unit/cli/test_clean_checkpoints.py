"""``partfile clean`` among checkpoints: what no link names, and on demand what is beyond those to retain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from changing import age
from command_line import run, told
from life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    long_sink,
)

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef" * 2


def test_nothing_is_cleaned_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    """Nobody knows what it names: refused, with nothing changed."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(3):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    link = base / "_partfile" / "life" / "chk-2" / "_metadata"
    link.write_bytes(link.read_bytes()[:-5])
    before = everything(base)
    refused = run("clean", base, "--apply", "--fence", "--older-than", "0s")
    assert refused.exit_code == 1
    assert "[2]" in refused.stderr
    assert everything(base) == before


def test_files_of_checkpoints_that_nobody_needs(tmp_path: Path) -> None:
    """State of rivals, temporary files and what a half deleted checkpoint left go; links and named state stay."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9, inline_threshold_bytes=0).local().open()
    for number in range(3):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    job = base / "_partfile" / "life"
    kept = [path for path in job.rglob("*.state") if path.parent.name != "chk-1"]
    assert len(kept) == 3
    rubbish = [job / "chk-2" / f"{TOKEN}.state", job / "chk-3" / f"_tmp.{TOKEN}", job / f"_tmp.{TOKEN}"]
    (job / "chk-1" / "_metadata").unlink()
    rubbish += (job / "chk-1").iterdir()
    for path in rubbish:
        path.write_bytes(b"x")
        os.utime(path, (1, 1))
    ahead = job / "chk-99" / f"{TOKEN}.state"
    ahead.parent.mkdir()
    ahead.write_bytes(b"x")
    os.utime(ahead, (1, 1))
    told("clean", base, "--apply", "--fence", "--delete")
    assert [path for path in rubbish if path.exists()] == []
    assert not (job / "chk-1").exists()
    assert ahead.exists(), "ids above the newest checkpoint are somebody's who is at work"
    assert all(path.exists() for path in kept)
    ahead.unlink()
    assert continue_to(long_sink(base), 5) == 3
    assert_exactly_once(base, 5)


def test_old_checkpoints_go_on_demand_alone(tmp_path: Path) -> None:
    """Without --retain every checkpoint that counts stays; with it the newest so many do, and the sink goes on."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(5):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.finish()
    age(base)
    job = base / "_partfile" / "life"
    ids = sorted(int(path.parent.name[4:]) for path in job.glob("chk-*/_metadata"))
    newest = job / f"chk-{ids[-1]}" / "_metadata"
    os.utime(newest)
    assert "nothing to clean" in told("clean", base)
    told("clean", base, "--retain", "2", "--apply", "--fence")
    left = sorted(int(path.parent.name[4:]) for path in job.glob("chk-*/_metadata"))
    assert left[:2] == ids[-2:]
    assert run("clean", base, "--retain", "0").exit_code == 2
    assert continue_to(long_sink(base), 6) == 5
    assert_exactly_once(base, 6)
