"""``partfile clean``: only what no retained checkpoint names, old enough, and whose lease can be had."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import partfile as pf
from partfile.errors import CommitConflict, Fenced, RecoveryRefused
from partfile.recovery.clean import clean
from partfile.testing.faults import ActAt, FailAt, KillAt, Recorder
from support.processes.command_line import ageless, run, told, told_json
from support.sinks.life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
    make_sink,
    rows_done,
    rows_of,
    seed_with_a_tail,
    staged_files,
)
from support.sinks.recovery import (
    age,
    clean_all,
    cleaning_of,
    local_opener,
    planned_cleaning,
    quarantined,
    recover_all,
    seed_with_orphans,
)

# ``partfile clean``: only what no retained checkpoint names, old enough, and whose lease can be had (R6).

TOKEN = "0123456789abcdef" * 2


def orphans_of(base: Path) -> list[str]:
    return sorted(item.path for item in planned_cleaning(base).items if item.kind == "orphan")


def write_and_finish(base: Path, first: int) -> None:
    """Four rows, whose parts a checkpoint finishes."""
    with make_sink(base, rolling=pf.RollingPolicy(on_checkpoint=True)).local() as out:
        out.write(batch(first, 4), position=first + 4)
        out.checkpoint()


def seeded(tmp_path: Path) -> Path:
    """Two orphans of two days ago, and two open parts that a checkpoint vouches for."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    return base


def test_without_apply_nothing_is_changed(tmp_path: Path) -> None:
    """The orphans are named with their age; not a byte changes; the digest is the same each time."""
    base = seeded(tmp_path)
    before = everything(base)
    first, second = (told("clean", base, "--idle-for", "0s", code=1) for _ in range(2))
    assert ageless(first) == ageless(second)
    for path in orphans_of(base):
        assert f"quarantine: {path}" in first
    assert everything(base) == before


@pytest.mark.parametrize("delete", [False, True])
def test_orphans_go_and_what_counts_stays(tmp_path: Path, *, delete: bool) -> None:
    """They are in the quarantine with their bytes, or gone; open parts are not touched, and the sink goes on."""
    base = seeded(tmp_path)
    orphans = orphans_of(base)
    assert len(orphans) == 2
    content = {path: (base / path).read_bytes() for path in orphans}
    kept = sorted(set(staged_files(base)) - set(orphans))
    report = told_json("clean", base, "--apply", "--fence", *(["--delete"] if delete else []))
    assert report["cleaned"]["done"] == 2
    assert quarantined(base) == ([] if delete else orphans)
    if not delete:
        (place,) = report["cleaned"]["quarantines"]
        assert {path: (Path(place) / path).read_bytes() for path in orphans} == content
    assert [path for path in staged_files(base) if not path.startswith("_partfile")] == kept
    assert told("clean", base, "--apply").startswith("nothing to clean")
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


def test_what_is_young_is_left(tmp_path: Path) -> None:
    """--older-than counts by the store's clock; what is left for its youth is told, by verify too."""
    base = tmp_path / "out"
    seed_with_orphans(base)
    young = [path for path in staged_files(base) if path not in orphans_of(base)]
    before = everything(base)
    output = told("clean", base, "--older-than", "9w", code=0)
    assert "left: 2 that no checkpoint names" in output
    assert "to see them:  the same command with --older-than 0s" in output
    assert "nothing to clean" in output
    assert everything(base) == before
    assert young
    notes = [one["message"] for one in told_json("verify", base)["findings"] if one["code"] == "orphan"]
    assert all("once it is older than --older-than" in note for note in notes)


def test_what_a_crash_left_after_the_last_checkpoint_goes(tmp_path: Path) -> None:
    """It is younger than the newest checkpoint, which no start will ever make older.

    The cleaner's own checkpoint is.
    """
    base = tmp_path / "out"
    seed_with_a_tail(base)

    def die() -> None:
        out = long_sink(base).local().open()
        out.write(batch(0, 2), position=2)
        os._exit(0)

    assert in_child(die) == 0
    assert len(staged_files(base)) == 2
    report = told_json("clean", base, "--older-than", "0s", "--idle-for", "0s", "--apply", "--delete")
    assert report["cleaned"]["done"] == 2
    assert staged_files(base) == []
    assert told("clean", base, "--older-than", "0s").startswith("nothing to clean")
    continue_to(long_sink(base), 9)
    assert_exactly_once(base, 9)


@pytest.mark.fault("H3")
def test_foreign_files_are_never_touched(tmp_path: Path) -> None:
    """H3: hidden files of others, names of an unknown chain, sidecars and finished files stay, however old."""
    base = seeded(tmp_path)
    (chain,) = {path.split("part-")[1].split("-")[0] for path in orphans_of(base)}
    foreign = [
        "_SUCCESS",
        ".part-0.crc",
        "bucket=b0/_notes.txt",
        f"bucket=b0/_part-deadbeef-0-0.txt.{TOKEN}.in-progress",
        f"bucket=b0/_part-{chain}-0-77.txt.valid-length",
        f"bucket=b0/part-{chain}-0-78.txt",
        f"bucket=b0/_part-{chain}-0-79.txt.in-progress",
        f"other/_tmp.{TOKEN[:-1]}",
        f"_hidden/_part-{chain}-0-80.txt.{TOKEN}.pending",
        f"bucket=b0/_part-{chain}-0-81.txt.{TOKEN}.in-progress.bak",
        f"bucket=b0/.part-{chain}-0-82.txt.crc.{TOKEN}",
        f"bucket=b0/_my-notes-on-part-{chain}-0-83.txt.{TOKEN}",
    ]
    for path in foreign:
        (base / path).parent.mkdir(exist_ok=True)
        (base / path).write_text("x")
        os.utime(base / path, (1, 1))
    told("clean", base, "--apply", "--fence", "--delete")
    assert [path for path in foreign if not (base / path).exists()] == []
    assert orphans_of(base) == []


def test_what_is_being_written_is_left(tmp_path: Path) -> None:
    """An orphan whose lease another process holds is named, stays, and makes the command end with 1."""
    base = seeded(tmp_path)
    held, free = orphans_of(base)
    with (base / held).open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        output = told("clean", base, "--apply", "--fence", code=1)
    assert f"a task is writing it: {held}" in output
    assert (base / held).exists()
    assert quarantined(base) == [free]


def test_a_copy_of_a_part_that_counts_is_its_owners(tmp_path: Path) -> None:
    """Who has put a staged part aside keeps that, however old; what no checkpoint names goes from there as well."""
    base = seeded(tmp_path)
    aside = base / "backup-of-monday"
    aside.mkdir()
    named = next(path for path in staged_files(base) if (base / path).stat().st_size > 18)
    copy = Path(shutil.copy2(base / named, aside))
    age(base)
    os.utime(max(base.rglob("_metadata"), key=lambda metadata: metadata.parent.name))
    told("clean", base, "--apply", "--fence")
    assert copy.exists()
    assert quarantined(base)


def test_what_an_older_retained_checkpoint_names_is_no_orphan(tmp_path: Path) -> None:
    """A staged file stays as long as any checkpoint that is retained names it, not only the newest one."""
    base = tmp_path / "out"

    def die() -> None:
        out = long_sink(base, retained_checkpoints=9).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    named = staged_files(base)
    saved = {path: (base / path).read_bytes() for path in named}
    told("recover", base, "--apply", "--fence")
    for path, data in saved.items():
        (base / path).write_bytes(data)
        os.utime(base / path, (1, 1))
    continue_to(long_sink(base, retained_checkpoints=9), 5)
    assert orphans_of(base) == []
    continue_to(long_sink(base, retained_checkpoints=1), 6)
    assert orphans_of(base) == named


def test_a_clean_publishes_nothing_and_keeps_what_was_kept(tmp_path: Path) -> None:
    """Parts that on_stop='keep' left open are gone on with by the next run, as if nothing had come between."""
    base = seeded(tmp_path)
    continue_to(long_sink(base, on_stop="keep"), 6)
    open_parts = set(staged_files(base)) - set(orphans_of(base))
    told("clean", base, "--apply", "--fence")
    with long_sink(base).local() as out:
        assert rows_done(out) == 6
        assert open_parts <= {*staged_files(base)}
        out.write(batch(6, 3), position=9)
    assert_exactly_once(base, 9)


def test_a_clean_leaves_what_is_owed_to_recover(tmp_path: Path) -> None:
    """Parts that a checkpoint promised to publish are not published by the cleaner; the next start does."""
    base = seeded(tmp_path)
    killer = KillAt(2, only={"rename_noreplace"})
    assert in_child(partial(recover_all, base, killer)) == -signal.SIGKILL
    owed = set(staged_files(base)) - set(orphans_of(base))
    assert len(owed) == 2
    told("clean", base, "--apply", "--fence")
    assert owed <= {*staged_files(base)}
    assert not finished_files(base)
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


def test_the_only_copy_of_rows_whose_name_is_taken_stays(tmp_path: Path) -> None:
    """Checkpoints were put back from a backup: parts meet files of their own names and lengths, and stay pending.

    verify names them, and a cleaner that spares nothing leaves all files. New names for the older ones mend it.
    """
    base, backup = tmp_path / "out", tmp_path / "backup"
    write_and_finish(base, 0)
    shutil.copytree(base / "_partfile", backup)
    write_and_finish(base, 4)
    shutil.rmtree(base / "_partfile")
    backup.rename(base / "_partfile")
    with pytest.raises(CommitConflict):
        write_and_finish(base, 8)
    before = everything(base)
    found = [one for one in told_json("verify", base, code=1)["findings"] if one["severity"] == "error"]
    assert {one["code"] for one in found} == {"finished-differs"}
    assert len(found) == len(staged_files(base))
    told("clean", base, "--apply", "--fence", "--older-than", "0s", "--delete")
    kept = {path: content for path, content in before.items() if "part-" in path.name}
    assert kept.items() <= everything(base).items()
    for one in found:
        taken = base / one["path"]
        taken.rename(taken.with_name(f"older-{taken.name}"))
    with make_sink(base).local():
        pass
    assert_exactly_once(base, 12)
    assert not staged_files(base)


@pytest.mark.fault("H5", "H8")
def test_what_appears_before_the_sink_is_owned_is_refused(tmp_path: Path) -> None:
    """H5: the plan is made again under ownership; one that would be another by then is not done."""
    base = seeded(tmp_path)
    (first, _) = orphans_of(base)

    def meddle() -> None:
        more = base / first.replace(first.split(".")[-2], TOKEN)
        more.write_bytes(b"x")
        os.utime(more, (1, 1))

    with pytest.raises(RecoveryRefused):
        clean_all(base, ActAt(1, meddle, only={"link"}))
    assert quarantined(base) == []


@pytest.mark.fault("H8")
def test_the_plan_that_was_printed_is_done_or_none(tmp_path: Path) -> None:
    """H8: another orphan since then makes it another plan, which is refused; nothing is taken away."""
    base = seeded(tmp_path)
    digest = told_json("clean", base, code=1)["digest"]
    (first, _) = orphans_of(base)
    more = base / first.replace(first.split(".")[-2], TOKEN)
    more.write_bytes(b"x")
    os.utime(more, (1, 1))
    refused = run("clean", base, "--apply", "--fence", "--plan", digest)
    assert refused.exit_code == 1
    assert digest in refused.stderr
    assert quarantined(base) == []


def test_only_the_sink_that_is_meant(tmp_path: Path) -> None:
    """--uid leaves the files of other sinks alone, and what carries no name."""
    base = seeded(tmp_path)

    def die() -> None:
        out = long_sink(base, uid="other").local().open()
        out.write(batch(0, 2), position=2)
        os._exit(0)

    assert in_child(die) == 0
    age(base, days=3)
    long_sink(base, uid="other").local().open().close()
    temporary = base / f"_tmp.{TOKEN}"
    temporary.write_bytes(b"")
    os.utime(temporary, (1, 1))
    everybody = {item.job for item in planned_cleaning(base).items}
    assert everybody == {"life", "other", None}
    assert {item.job for item in planned_cleaning(base, uid="other").items} == {"other"}


def test_each_delete_is_of_one_literal_name(tmp_path: Path) -> None:
    """No directory with anything in it is deleted: one call a file, and each file that goes was in the plan."""
    base = seeded(tmp_path)
    orphans = orphans_of(base)
    recorder = Recorder({"unlink", "remove_directory", "rename"})
    clean_all(base, recorder, delete=True)
    names = [str(call.arguments[1]) for call in recorder.calls]
    staged = sorted(path.rpartition("/")[2] for path in orphans)
    assert sorted(name for name in names if not name.startswith("_tmp.")) == staged


# ``partfile clean`` among checkpoints: what no checkpoint names, and on demand what is beyond those to retain.


def test_nothing_is_cleaned_while_a_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    """What it names is unknown: refused, with nothing changed."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(3):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    metadata = base / "_partfile" / "life" / "chk-2" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-5])
    before = everything(base)
    refused = run("clean", base, "--apply", "--fence", "--older-than", "0s")
    assert refused.exit_code == 1
    assert "[2]" in refused.stderr
    assert everything(base) == before


def test_files_of_checkpoints_that_are_not_needed(tmp_path: Path) -> None:
    """State of rivals, temporary files and what a half deleted checkpoint left go; checkpoints and named state stay."""
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
    assert ahead.exists(), "ids above the newest checkpoint are a coordinator's that is at work"
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


# ``partfile clean``: how far it goes: only sinks with something to clean, checkpoints whole, every failure told.


def dead_sink(base: Path, uid: str = "dead") -> None:
    """A sink that has left an orphan of two days ago, and stands."""

    def die_early() -> None:
        out = long_sink(base, uid=uid).local().open()
        out.write(batch(0, 4), position=4)
        os._exit(0)

    assert in_child(die_early) == 0
    age(base)
    long_sink(base, uid=uid).local().open().close()


def with_checkpoints(base: Path, count: int) -> list[int]:
    """A sink with checkpoints of two days ago; their ids."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(count):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    age(base)
    return checkpoint_ids(base)


def checkpoint_ids(base: Path) -> list[int]:
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
    """A checkpoint that another program deleted does not make those below it strays: they stay, and are named."""
    base = tmp_path / "out"
    ids = with_checkpoints(base, 4)
    shutil.rmtree(base / f"_partfile/life/chk-{ids[2]}")
    left = [number for number in ids if number != ids[2]]
    output = told("clean", base, "--apply", "--fence", code=1)
    assert f"left: checkpoint {ids[1]} of sink life" in output
    assert checkpoint_ids(base) == left


def test_retention_stops_at_a_checkpoint_that_is_too_young(tmp_path: Path) -> None:
    """R7: the oldest one was put back a minute ago, so it stays whole, and all later ones stay with it."""
    base = tmp_path / "out"
    ids = with_checkpoints(base, 4)
    os.utime(base / f"_partfile/life/chk-{ids[0]}/_metadata")
    told("clean", base, "--retain", "1", "--apply", "--fence")
    assert checkpoint_ids(base) == ids
    os.utime(base / f"_partfile/life/chk-{ids[0]}/_metadata", (1, 1))
    (base / f"_partfile/life/chk-{ids[1]}/_published").touch()
    told("clean", base, "--retain", "1", "--apply", "--fence")
    assert checkpoint_ids(base)[:3] == ids[1:4]
    assert (base / f"_partfile/life/chk-{ids[1]}/_published").exists()


@pytest.mark.fault("F14")
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
    """R7: where the oldest link stays, everything of it and of every later one stays."""
    base = tmp_path / "out"
    ids = with_checkpoints(base, 4)
    error = FailAt(1, OSError(errno.EPERM, os.strerror(errno.EPERM)), only={"move"})
    report = clean_all(base, error, retain=1)
    assert report is not None
    assert report.done == 0
    assert report.failed[0].path == f"life/chk-{ids[0]}/_metadata"
    assert set(ids) <= set(checkpoint_ids(base))


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
    """Which other sink writes below this base, cannot be told from a checkpoint directory that was named."""
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
    ids = with_checkpoints(base, 3)
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
    """It has taken the checkpoint log over, and what was an orphan may be its own by then: nothing is taken away."""
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


# ``partfile clean --retain`` night after night: what it makes itself takes no checkpoint's place.

ROWS = 6


def stopped(base: Path) -> list[int]:
    """A sink that completed a checkpoint for each row and was stopped; the ids of its checkpoints with state."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(ROWS):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.finish()
    age(base)
    return held(base)


def held(base: Path) -> list[int]:
    checkpoints = told_json("checkpoints", base)["logs"][0]["checkpoints"]
    return [checkpoint["checkpoint_id"] for checkpoint in checkpoints if checkpoint["kind"] != "tombstone"]


def test_night_after_night_the_points_to_go_back_to_stay(tmp_path: Path) -> None:
    """Each state counts once, however many takeovers repeat it, and what one run leaves is no work for the next."""
    base = tmp_path / "out"
    ids = stopped(base)
    told("clean", base, "--retain", "3", "--apply")
    kept = held(base)
    assert kept[:3] == ids[-3:]
    for _ in range(4):
        age(base)
        assert "nothing to clean" in told("clean", base, "--retain", "3", "--apply")
        assert held(base) == kept
        # What makes the command take the sink over, and so leave a takeover.
        temporary = base / "_partfile" / "life" / f"_tmp.{'0' * 32}"
        temporary.write_bytes(b"")
        age(base)
        told("clean", base, "--retain", "3", "--apply")
        assert held(base)[: len(kept)] == kept
        kept = held(base)
    told("recover", base, "--restore-from", base / f"_partfile/life/chk-{ids[-3]}", "--accept-newer", "--apply")
    assert continue_to(long_sink(base), ROWS) == ROWS - 1
    assert rows_of(finished_files(base)).total() >= ROWS


def test_a_start_is_the_point_before_it(tmp_path: Path) -> None:
    """Starting adds no point of its own, and once rows come the old ones go as ever."""
    base = tmp_path / "out"
    ids = stopped(base)
    for _ in range(3):
        long_sink(base, retained_checkpoints=99).local().open().close()
        age(base)
    told("clean", base, "--retain", "2", "--apply")
    assert held(base)[:2] == ids[-2:]
    assert continue_to(long_sink(base, retained_checkpoints=99), ROWS + 1) == ROWS
    age(base)
    told("clean", base, "--retain", "2", "--apply")
    assert held(base)[0] == ids[-1]
    assert_exactly_once(base, ROWS + 1)
