"""``partfile clean``: only what no retained checkpoint names, old enough, and whose lease can be had (S6)."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from changing import age, clean_all, planned_cleaning, quarantined, recover_all, seed_with_orphans
from command_line import ageless, run, told, told_json
from life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
    rows_done,
    seed_with_a_tail,
    staged_files,
)

from partfile.errors import RecoveryRefused
from partfile.testing.faults import ActAt, KillAt, Recorder

TOKEN = "0123456789abcdef" * 2


def orphans_of(base: Path) -> list[str]:
    return sorted(item.path for item in planned_cleaning(base).items if item.kind == "orphan")


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
    assert "nothing to clean" in output
    assert everything(base) == before
    assert young
    notes = [one["message"] for one in told_json("verify", base)["findings"] if one["code"] == "orphan"]
    assert all("once it is older than --older-than" in note for note in notes)


def test_what_a_crash_left_after_the_last_checkpoint_goes(tmp_path: Path) -> None:
    """It is younger than the newest checkpoint, which no start will ever make older; the cleaner's own link is."""
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
    """An orphan whose lease somebody holds is named, stays, and makes the command end with 1."""
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
    os.utime(max(base.rglob("_metadata"), key=lambda link: link.parent.name))
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
    """Parts that on_stop='keep' left open are gone on with by the next run, as if nobody had come between."""
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
    # The first two links are a tombstone and the fence, the third one is that of a part.
    killer = KillAt(3, only={"link"})
    assert in_child(partial(recover_all, base, killer)) == -signal.SIGKILL
    owed = set(staged_files(base)) - set(orphans_of(base))
    assert len(owed) == 2
    told("clean", base, "--apply", "--fence")
    assert owed <= {*staged_files(base)}
    assert not finished_files(base)
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


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
