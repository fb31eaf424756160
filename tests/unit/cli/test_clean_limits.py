"""``partfile clean``: how far it goes: only sinks with something to clean, checkpoints whole, every failure told."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from changing import (
    age,
    clean_all,
    cleaning_of,
    local_opener,
    planned_cleaning,
    quarantined,
    seed_with_orphans,
)
from command_line import run, told, told_json
from life_cycle import batch, everything, in_child, long_sink

from partfile.errors import Fenced
from partfile.recovery.clean import clean
from partfile.testing.faults import FailAt

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef" * 2


def dead_sink(base: Path, uid: str = "dead") -> None:
    """A sink that has left an orphan of two days ago, and stands."""

    def die_early() -> None:
        out = long_sink(base, uid=uid).local().open()
        out.write(batch(0, 4), position=4)
        os._exit(0)

    assert in_child(die_early) == 0
    age(base)
    long_sink(base, uid=uid).local().open().close()


def with_links(base: Path, count: int) -> list[int]:
    """A sink with checkpoints of two days ago; their ids."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(count):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    age(base)
    return link_ids(base)


def link_ids(base: Path) -> list[int]:
    return sorted(int(path.parent.name[4:]) for path in (base / "_partfile/life").glob("chk-*/_metadata"))


@pytest.mark.fault("H4")
def test_a_sink_with_nothing_to_clean_is_not_taken_over(tmp_path: Path) -> None:
    """The orphan of a dead sink goes while another sink of the base runs, without --fence; that one goes on."""
    base = tmp_path / "out"
    dead_sink(base)
    live = long_sink(base, uid="live").local().open()
    live.write(batch(0, 4), position=4)
    live.checkpoint()
    before = everything(base / "_partfile/live")
    assert "takes over: dead\n" in told("clean", base, "--older-than", "1h", code=1)
    age(base / "_partfile/dead")
    told("clean", base, "--older-than", "1h", "--apply")
    assert len(quarantined(base)) == 2
    assert everything(base / "_partfile/live") == before
    live.write(batch(4, 2), position=6)
    live.checkpoint()
    live.close()


@pytest.mark.fault("H4")
def test_a_sink_that_moves_on_meanwhile_stops_no_other(tmp_path: Path) -> None:
    """H8: the plan is of the sinks that it touches; checkpoints of others do not make it another one."""
    base = tmp_path / "out"
    dead_sink(base)
    live = long_sink(base, uid="live").local().open()
    live.write(batch(0, 4), position=4)
    digest = told_json("clean", base, "--older-than", "1h", code=1)["digest"]
    live.checkpoint()
    told("clean", base, "--older-than", "1h", "--apply", "--fence", "--plan", digest)
    assert len(quarantined(base)) == 2
    live.close()


def test_plain_clean_leaves_checkpoints_below_a_hole(tmp_path: Path) -> None:
    """A link that somebody deleted does not make those below it strays: they stay, and are named."""
    base = tmp_path / "out"
    ids = with_links(base, 4)
    shutil.rmtree(base / f"_partfile/life/chk-{ids[2]}")
    left = [number for number in ids if number != ids[2]]
    output = told("clean", base, "--apply", "--fence", code=1)
    assert f"left: checkpoint {ids[1]} of sink life" in output
    assert link_ids(base) == left


def test_retention_stops_at_a_checkpoint_that_is_too_young(tmp_path: Path) -> None:
    """S7: the oldest one was put back a minute ago, so it stays whole, and all later ones stay with it."""
    base = tmp_path / "out"
    ids = with_links(base, 4)
    os.utime(base / f"_partfile/life/chk-{ids[0]}/_metadata")
    told("clean", base, "--retain", "1", "--apply", "--fence")
    assert link_ids(base) == ids
    os.utime(base / f"_partfile/life/chk-{ids[0]}/_metadata", (1, 1))
    (base / f"_partfile/life/chk-{ids[1]}/_published").touch()
    told("clean", base, "--retain", "1", "--apply", "--fence")
    assert link_ids(base)[:3] == ids[1:4]
    assert (base / f"_partfile/life/chk-{ids[1]}/_published").exists()


@pytest.mark.fault("S14")
def test_what_cannot_be_moved_is_told_and_the_rest_goes(tmp_path: Path) -> None:
    """A bucket on a file system of its own: its orphan stays, is named with the reason, and ends nothing early."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    orphans = [item.path for item in planned_cleaning(base).items]
    report = clean_all(base, FailAt(1, OSError(errno.EXDEV, os.strerror(errno.EXDEV)), only={"move"}))
    assert report is not None
    assert (report.done, len(report.failed)) == (1, 1)
    (failed,) = report.failed
    assert "move" in failed.problem
    assert failed.hint
    assert (base / failed.path).exists()
    assert {*quarantined(base), failed.path} == set(orphans)


def test_a_checkpoint_that_cannot_be_taken_stops_those_after_it(tmp_path: Path) -> None:
    """S7: where the oldest link stays, everything of it and of every later one stays."""
    base = tmp_path / "out"
    ids = with_links(base, 4)
    error = FailAt(1, OSError(errno.EPERM, os.strerror(errno.EPERM)), only={"move"})
    report = clean_all(base, error, retain=1)
    assert report is not None
    assert report.done == 0
    assert report.failed[0].path == f"life/chk-{ids[0]}/_metadata"
    assert set(ids) <= set(link_ids(base))


def test_a_failure_is_shown_and_ends_with_1(tmp_path: Path) -> None:
    """What was done is told as well, on the screen and as JSON."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    first, second = sorted(item.path for item in planned_cleaning(base).items)
    place = base / "_partfile/_quarantine"
    place.write_text("in the way")
    output = told("clean", base, "--apply", "--fence", code=1)
    assert "0 taken away" in output
    assert f"failed: {first}: " in output
    assert f"failed: {second}: " in output
    report = told_json("clean", base, "--apply", "--fence", code=1)
    assert {one["path"] for one in report["cleaned"]["failed"]} == {first, second}
    assert told_json("clean", base, "--apply", "--fence", "--delete")["cleaned"]["done"] == 2


def test_the_quarantine_is_named_where_it_is(tmp_path: Path) -> None:
    """Files of the base are below its state directory, those of a checkpoint directory of its own below that one."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    with long_sink(base, checkpoint_dir=str(checkpoints)).local() as out:
        out.write(batch(0, 1), position=1)
    temporary = checkpoints / "life" / f"_tmp.{TOKEN}"
    temporary.write_bytes(b"x")
    os.utime(temporary, (1, 1))
    command = ("clean", base, "--checkpoint-dir", checkpoints, "--apply", "--fence")
    (place,) = told_json(*command)["cleaned"]["quarantines"]
    assert (checkpoints / place / "life" / temporary.name).read_bytes() == b"x"
    assert place.startswith(str(checkpoints / "_quarantine"))


def test_temporary_files_of_a_base_stay_if_checkpoints_are_elsewhere(tmp_path: Path) -> None:
    """Who else writes below this base, nobody can tell from a checkpoint directory that was named."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    long_sink(base, checkpoint_dir=str(checkpoints)).local().open().close()
    base.mkdir(exist_ok=True)
    temporary = base / f"_tmp.{TOKEN}"
    temporary.write_bytes(b"x")
    os.utime(temporary, (1, 1))
    assert "nothing to clean" in told("clean", base, "--checkpoint-dir", checkpoints)
    assert temporary.exists()


def test_a_damaged_checkpoint_that_was_passed_by_stops_no_cleaning(tmp_path: Path) -> None:
    """It is not retained any more; it stays with its files until its turn has come, and is no hole."""
    base = tmp_path / "out"
    ids = with_links(base, 3)
    newest = base / f"_partfile/life/chk-{ids[-1]}/_metadata"
    newest.write_bytes(newest.read_bytes()[:-9])
    state = newest.with_name(f"{TOKEN}.state")
    state.write_bytes(b"state")
    assert "--restore-from" in run("clean", base).stderr
    chosen = base / f"_partfile/life/chk-{ids[-2]}"
    told("recover", base, "--restore-from", chosen, "--accept-newer", "--apply", "--fence")
    age(base)
    assert "nothing to clean" in told("clean", base)
    told("clean", base, "--retain", "1", "--apply", "--fence")
    assert not newest.exists()
    assert not state.exists()


@pytest.mark.fault("H4")
def test_a_sink_that_starts_during_the_last_look_stops_the_cleaning(tmp_path: Path) -> None:
    """It has taken the chain over, and what was an orphan may be its own by then: nothing is taken away."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    plan = planned_cleaning(base)
    started: list[bool] = []

    def start(_files: int) -> None:
        if not started:
            started.append(True)
            long_sink(base).local().open().close()

    with pytest.raises(Fenced):
        clean(plan, replace(cleaning_of(base), step=start), local_opener())
    assert started
    assert quarantined(base) == []
