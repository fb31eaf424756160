"""``partfile recover --restore-from``: going back is said first with what it costs, and done on demand alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from command_line import run, told, told_json
from life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
)

if TYPE_CHECKING:
    from pathlib import Path


def links_of(base: Path) -> list[Path]:
    return sorted((base / "_partfile" / "life").glob("chk-*/_metadata"))


def test_going_back_tells_first_what_it_costs(tmp_path: Path) -> None:
    """Without --accept-newer it is refused with the later parts; with it the plan lists them, and the position goes."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.finish()
    chosen = base / "_partfile" / "life" / "chk-2"
    before = everything(base)
    refused = run("recover", base, "--restore-from", chosen)
    assert refused.exit_code == 1
    assert "part-" in refused.stderr
    plan = told_json("recover", base, "--restore-from", chosen, "--accept-newer", code=1)["plan"]
    (job,) = plan["jobs"]
    assert sorted(job["doubled"]) == sorted(finished_files(base))
    assert everything(base) == before
    told("recover", base, "--restore-from", chosen, "--accept-newer", "--apply", "--fence")
    with long_sink(base).local() as again:
        assert again.position == 4


def test_going_back_over_a_damaged_checkpoint(tmp_path: Path) -> None:
    """A newest link that cannot be read is refused; the older one that is named is gone back to, and goes on."""
    base = tmp_path / "out"
    seed = long_sink(base, retained_checkpoints=9).local().open()
    for first, count in ((0, 4), (4, 3)):
        seed.write(batch(first, count), position=first + count)
        seed.checkpoint()
    seed.close()
    newest = max(links_of(base), key=lambda path: int(path.parent.name[4:]))
    newest.write_bytes(newest.read_bytes()[:-9])
    before = everything(base)
    assert run("recover", base, "--apply", "--fence").exit_code == 1
    assert everything(base) == before
    back = ("--restore-from", base / "_partfile" / "life" / "chk-2", "--accept-newer", "--apply", "--fence")
    done = run("recover", base, *back)
    assert done.exit_code == 0
    assert done.stderr.count("Going back to it, because --accept-newer is set") == 1, "told again, or never"
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


def killed_with_open_parts(base: Path) -> Path:
    """A dead sink with parts that grew, and others that were begun, after its second checkpoint; returns that one."""

    def die() -> None:
        out = long_sink(base, retained_checkpoints=9).local().open()
        out.write(batch(0, 1), position=1)
        out.checkpoint()
        out.write(batch(1, 4), position=5)
        out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    return base / "_partfile" / "life" / "chk-2"


def test_parts_that_are_cut_back_are_not_called_doubled(tmp_path: Path) -> None:
    """What was open goes back with the checkpoint, and what was opened since is left behind: no row comes twice."""
    base = tmp_path / "out"
    chosen = killed_with_open_parts(base)
    words = ("recover", base, "--restore-from", chosen, "--accept-newer", "--idle-for", "0s")
    (job,) = told_json(*words, code=1)["plan"]["jobs"]
    assert job["doubled"] == []
    assert len(job["parts"]) == 1
    told(*words, "--apply")
    continue_to(long_sink(base), 9)
    assert_exactly_once(base, 9)
