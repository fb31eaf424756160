"""``partfile recover``: what a dead sink owes is published, and nothing else changes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import partfile.recovery.recover as recovering
from partfile.errors import PartMissing, RecoveryRefused
from partfile.sink.restore import Restore
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import KillAt
from support.processes.command_line import ageless, run, start, told, told_json
from support.sinks.life_cycle import (
    Taking,
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
    make_sink,
    rows_of,
    seed_with_a_tail,
    staged_files,
    start_child,
    stopped_with_savepoint,
)
from support.sinks.recovery import age, broken_invariants, planned_recovery, recover_all, recover_planned

if TYPE_CHECKING:
    from pathlib import Path

    from partfile.sink.restore import RestorePlan
    from partfile.stores.base import PartHandle, Store


# ``partfile recover``: what a dead sink owes is published as its own next start would, and nothing else changes.


def seeded(tmp_path: Path) -> Path:
    """Two open parts with tails beyond their valid lengths, of a sink that died two days ago."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    return base


def checkpoints_of(base: Path) -> list[Path]:
    return sorted((base / "_partfile" / "life").glob("chk-*/_metadata"))


@pytest.mark.parametrize("words", [(), ("--json",), ("--idle-for", "1s")])
def test_without_apply_nothing_is_changed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """The plan names each part with its valid bytes, and has the same digest each time; not a byte changes."""
    base = seeded(tmp_path)
    before = everything(base)
    first, second = (told("recover", base, *words, code=1) for _ in range(2))
    assert ageless(first) == ageless(second)
    assert "bucket=b0/part-" in first
    assert "Nothing was changed" in first or words == ("--json",)
    assert everything(base) == before


def test_apply_publishes_what_counts_and_the_sink_goes_on(tmp_path: Path) -> None:
    """The valid prefix of each part is finished, the position stays, and the next run ends with each row once."""
    base = seeded(tmp_path)
    report = told_json("recover", base, "--apply")
    assert report["is_applied"]
    assert [(one["job"], one["published"], one["owed"]) for one in report["recovered"]] == [("life", 2, 0)]
    assert sum(rows_of(finished_files(base)).values()) == 4
    assert not staged_files(base)
    assert "nothing to recover" in told("recover", base, "--apply")
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


def test_retention_is_the_sinks_own_affair(tmp_path: Path) -> None:
    """No checkpoint is deleted, however many there are: how many to keep is an option of the sink."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    for number in range(5):
        out.write(batch(number, 1), position=number + 1)
        out.checkpoint()
    out.close()
    before = checkpoints_of(base)
    told("recover", base, "--apply", "--fence")
    assert set(before) < set(checkpoints_of(base))


@pytest.mark.fault("H4")
def test_a_sink_that_moved_lately_is_left_alone(tmp_path: Path) -> None:
    """Without --fence a young chain is refused and untouched; --fence or a shorter --idle-for take it over."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    before = everything(base)
    refused = run("recover", base, "--apply")
    assert refused.exit_code == 1
    assert "less than 600 s" in refused.stderr
    assert "--fence" in refused.stderr
    assert everything(base) == before
    told("recover", base, "--apply", "--idle-for", "0s")
    assert not staged_files(base)


def test_what_this_command_took_over_is_not_alive(tmp_path: Path) -> None:
    """After a recovery the next verb need not wait, young as the newest checkpoint is."""
    base = seeded(tmp_path)
    told("recover", base, "--apply")
    told("savepoint", "create", base, "--to", tmp_path / "savepoints", "--apply")


@pytest.mark.fault("H4")
def test_a_held_marker_proves_a_driver(tmp_path: Path) -> None:
    """However old the newest checkpoint is, a sink whose marker is held is not fenced without --fence."""
    base = seeded(tmp_path)
    with LocalStore(str(base / "_partfile")) as store:
        assert store.hold_marker("life/_marker")
        before = finished_files(base)
        refused = run("recover", base, "--apply")
        assert refused.exit_code == 1
        assert "holds its marker" in refused.stderr
        assert finished_files(base) == before
        told("recover", base, "--apply", "--fence")
    assert sum(rows_of(finished_files(base)).values()) == 4


@pytest.mark.fault("H4")
def test_a_free_marker_proves_that_the_driver_is_gone(tmp_path: Path) -> None:
    """The command that status prints, and --apply, need no wait, young as the newest checkpoint is."""
    base = seeded(tmp_path)
    for checkpoint in base.rglob("_metadata"):
        os.utime(checkpoint)
    assert run("recover", base, "--apply").exit_code == 1
    with LocalStore(str(base / "_partfile")) as store:
        assert store.hold_marker("life/_marker")
    shown = run("status", base).stdout
    (command,) = {line[line.index("partfile recover") :] for line in shown.splitlines() if "partfile recover" in line}
    words = shlex.split(command)[1:]
    assert "seems to run" not in run(*words).stdout
    told(*words, "--apply")
    assert sum(rows_of(finished_files(base)).values()) == 4


@pytest.mark.fault("H4")
def test_a_live_job_is_fenced_only_with_fence(tmp_path: Path) -> None:
    """H4: the job goes on after a refusal; after --fence its next checkpoint is refused, and nothing comes twice."""
    base = tmp_path / "out"
    ready, go = os.pipe(), os.pipe()

    def job() -> None:
        out = long_sink(base).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        out.write(batch(4, 2), position=6)
        out.checkpoint()

    pid = start_child(job)
    try:
        os.read(ready[0], 1)
        assert run("recover", base, "--apply").exit_code == 1
        told("recover", base, "--apply", "--fence")
    finally:
        os.write(go[1], b"1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17, "the job was not fenced"
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("H8")
def test_the_plan_that_was_printed_is_done_or_none(tmp_path: Path) -> None:
    """H8: a digest of an older state is refused and changes nothing; that of now is done."""
    base = seeded(tmp_path)
    digest = told_json("recover", base, code=1)["digest"]
    continue_to(long_sink(base, on_stop="keep"), 6)
    before = finished_files(base)
    refused = run("recover", base, "--apply", "--fence", "--plan", digest)
    assert refused.exit_code == 1
    assert digest in refused.stderr
    assert finished_files(base) == before
    now = told_json("recover", base, code=1)["digest"]
    told("recover", base, "--apply", "--fence", "--plan", now)
    assert_exactly_once(base, 6)


def test_parts_that_a_clean_stop_kept_are_published(tmp_path: Path) -> None:
    """No part stays open after a recovery, also where on_stop='keep' left some."""
    base = tmp_path / "out"
    continue_to(long_sink(base, on_stop="keep"), 4)
    assert not finished_files(base)
    told("recover", base, "--apply", "--fence")
    assert_exactly_once(base, 4)
    assert continue_to(long_sink(base), 6) == 4
    assert_exactly_once(base, 6)


def test_every_sink_and_writer_of_a_base_or_one(tmp_path: Path) -> None:
    """All uids and their writers are recovered; --uid leaves the others alone."""
    base = tmp_path / "out"

    def die() -> None:
        for uid, writer in (("life", 0), ("life", 1), ("other", 0)):
            out = long_sink(base, uid=uid).local(subtask_index=writer).open()
            out.write(batch(0, 2), position=2)
            out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    assert [job.job for job in planned_recovery(base).jobs] == ["life", "life~1", "other"]
    told("recover", base, "--uid", "other", "--apply", "--fence")
    assert [job.job for job in planned_recovery(base).jobs] == ["life", "life~1"]
    told("recover", base, "--apply", "--fence")
    assert sum(rows_of(finished_files(base)).values()) == 6


@pytest.mark.fault("H7")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("no/such/place",), 2, "no/such"),
        ((".",), 2, "Did you mean ./out?"),
        (("out", "--uid", "other"), 2, "other"),
        (("out", "--plan", "0" * 16), 2, "--apply"),
        (("out", "--cut", "saw"), 2, "truncate"),
        (("out", "--idle-for", "soon"), 2, "soon"),
        (("out", "--accept-newer"), 2, "--restore-from"),
    ],
)
def test_what_cannot_be_done_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    """H7: a missing or empty directory, a wrong uid, options that make no sense: one clear message, nothing written."""
    base = seeded(tmp_path)
    before = everything(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = run("recover", *words)
    assert result.exit_code == code, result.stderr
    assert said in result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    assert everything(tmp_path) == before
    assert base.exists()


@pytest.mark.fault("H7")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user who may only read")
def test_who_may_only_read_gets_the_plan_alone(tmp_path: Path) -> None:
    """H7: the plan needs no right to write; --apply says that it cannot, with 3, and changes nothing."""
    base = seeded(tmp_path)
    before = everything(base)
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and path != path.parent:
            path.chmod(path.stat().st_mode | 0o55)

    def as_nobody() -> None:
        os.setgid(65534)
        os.setuid(65534)
        assert "cut to" in told("recover", base, code=1)
        refused = run("recover", base, "--apply")
        assert refused.exit_code == 3, refused.stderr
        assert "Permission denied" in refused.stderr
        assert "Traceback" not in refused.stderr

    assert in_child(as_nobody) == 0
    assert everything(base) == before


def test_a_killed_process_is_recovered_by_a_process(tmp_path: Path) -> None:
    """A sink that was SIGKILLed while it wrote, then the command as people type it; then the sink goes on."""
    base = tmp_path / "out"

    def write() -> None:
        out = long_sink(base).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        out.write(batch(4, 3), position=7)
        time.sleep(600)

    pid = start_child(write)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(checkpoints_of(base)) < 2:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    process = start("recover", base, "--apply", "--fence", cwd=tmp_path)
    out, error = process.communicate(timeout=180)
    assert (process.returncode, error) == (0, ""), out
    assert "2 parts published" in out
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


# ``partfile recover --restore-from``: going back is said first with what it costs, and done on demand alone.


@pytest.mark.parametrize("chosen", ["{base}/_partfile/life/chk-2", "chk-2", "2"])
def test_going_back_tells_first_what_it_costs(tmp_path: Path, chosen: str) -> None:
    """Without --accept-newer it is refused with the later parts; with it the plan lists them, and the position goes."""
    base = tmp_path / "out"
    chosen = chosen.format(base=base)
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.finish()
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
    """A newest checkpoint that cannot be read is refused; the older one that is named is gone back to, and goes on."""
    base = tmp_path / "out"
    seed = long_sink(base, retained_checkpoints=9).local().open()
    for first, count in ((0, 4), (4, 3)):
        seed.write(batch(first, count), position=first + count)
        seed.checkpoint()
    seed.close()
    newest = max(checkpoints_of(base), key=lambda path: int(path.parent.name[4:]))
    newest.write_bytes(newest.read_bytes()[:-9])
    before = everything(base)
    assert run("recover", base, "--apply", "--fence").exit_code == 1
    assert everything(base) == before
    back = ("--restore-from", base / "_partfile" / "life" / "chk-2", "--accept-newer", "--apply", "--fence")
    done = run("recover", base, *back)
    assert done.exit_code == 0
    assert done.stderr.count("Going back to it, because of --accept-newer") == 1, "told again, or never"
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


# ``partfile recover`` where checkpoints and base do not go together, or there is nothing to go back (M7).


def seeded_beside(tmp_path: Path) -> tuple[Path, Path]:
    """A sink that died two days ago, with its checkpoints beside its base."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    seed_with_a_tail(base, checkpoint_dir=str(checkpoints))
    age(tmp_path)
    return base, checkpoints


@pytest.mark.fault("M7")
@pytest.mark.parametrize("words", [(), ("--accept-missing",), ("--apply", "--fence"), ("--apply", "--accept-missing")])
def test_checkpoints_of_another_base_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """M7: a mistyped PATH takes nothing over and gives nothing up; the right one recovers every row."""
    base, checkpoints = seeded_beside(tmp_path)
    (tmp_path / "typo").mkdir()
    before = everything(tmp_path)
    refused = run("recover", tmp_path / "typo", "--checkpoint-dir", checkpoints, *words)
    assert refused.exit_code == 1
    assert str(base) in refused.stderr
    assert "--moved-from" in refused.stderr
    assert everything(tmp_path) == before
    told("recover", base, "--checkpoint-dir", checkpoints, "--apply")
    assert sum(rows_of(finished_files(base)).values()) == 4


@pytest.mark.fault("M7")
def test_checkpoints_below_their_base_are_of_no_other(tmp_path: Path) -> None:
    """M7: in the usual layout too, every verb and the sink refuse, and not a file changes."""
    base, typo = tmp_path / "out", tmp_path / "typo"
    seed_with_a_tail(base)
    temporary = base / "_partfile" / "life" / f"_tmp.{'0' * 32}"
    temporary.write_bytes(b"")
    age(tmp_path)
    age(temporary.parent)
    typo.mkdir()
    before = everything(tmp_path)
    checkpoints = base / "_partfile"
    words = ("--checkpoint-dir", checkpoints, "--apply", "--fence")
    for verb in (
        ("recover", typo, *words, "--accept-missing"),
        ("clean", typo, *words),
        ("clean", typo, *words[:2]),
        ("savepoint", "create", typo, *words, "--to", tmp_path / "savepoints", "--accept-missing"),
    ):
        refused = run(*verb)
        assert refused.exit_code == 1, verb
        assert "are of a base that they lie below" in refused.stderr
        assert "--moved-from" in refused.stderr
        assert everything(tmp_path) == before
    with pytest.raises(RecoveryRefused, match="are of a base that they lie below"):
        long_sink(typo, checkpoint_dir=str(checkpoints)).local().open()
    assert everything(tmp_path) == before
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("M7")
def test_checkpoints_taken_away_from_their_base_go_on_by_its_owners_word(tmp_path: Path) -> None:
    """``--moved-from`` lets checkpoints that were moved out of their base go on, once and for all."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    seed_with_a_tail(base)
    age(tmp_path)
    (base / "_partfile").rename(checkpoints)
    there = (base, "--checkpoint-dir", checkpoints)
    assert run("recover", *there).exit_code == 1
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)
    assert continue_to(long_sink(base, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(base, 9)


@pytest.mark.fault("M7")
def test_a_stopped_sink_notes_its_base_by_its_owners_word(tmp_path: Path) -> None:
    """Where nothing is left to publish, recover with ``--moved-from`` still has that to do: to note the base."""
    base, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    continue_to(long_sink(base), 4)
    age(tmp_path)
    (base / "_partfile").rename(checkpoints)
    there = (base, "--checkpoint-dir", checkpoints)
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)


@pytest.mark.fault("M7")
def test_a_base_is_what_its_link_meant_when_it_was_begun(tmp_path: Path) -> None:
    """H2: a checkpoint on the way to the base that leads elsewhere by then makes it another one.

    The real one goes on.
    """
    link, checkpoints = tmp_path / "link", tmp_path / "checkpoints"
    real, other = tmp_path / "real", tmp_path / "other"
    real.mkdir()
    other.mkdir()
    link.symlink_to(real)
    seed_with_a_tail(link, checkpoint_dir=str(checkpoints))
    age(tmp_path)
    link.unlink()
    link.symlink_to(other)
    refused = run("recover", link, "--checkpoint-dir", checkpoints, "--apply", "--accept-missing")
    assert refused.exit_code == 1
    assert str(real) in refused.stderr
    told("recover", real, "--checkpoint-dir", checkpoints, "--apply")
    assert sum(rows_of(finished_files(real)).values()) == 4


@pytest.mark.fault("M7")
def test_a_sink_refuses_checkpoints_of_another_base(tmp_path: Path) -> None:
    """M7: so does the sink itself, and one whose checkpoints were copied below another base."""
    base, checkpoints = seeded_beside(tmp_path)
    with pytest.raises(RecoveryRefused, match="are of the base"):
        long_sink(tmp_path / "typo", checkpoint_dir=str(checkpoints)).local().open()
    shutil.copytree(checkpoints / "life", tmp_path / "other" / "_partfile" / "life")
    with pytest.raises(RecoveryRefused, match="are of the base"):
        long_sink(tmp_path / "other").local().open()
    assert continue_to(long_sink(base, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(base, 9)


def test_a_base_may_be_written_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, a URL, a link to it: all are the same base."""
    base, checkpoints = seeded_beside(tmp_path)
    (tmp_path / "link").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    for path in ("out", f"file://{base}", tmp_path / "link", "./out/"):
        assert "cut to" in told("recover", path, "--checkpoint-dir", checkpoints, code=1)


def test_a_base_that_was_moved_is_said_to_be(tmp_path: Path) -> None:
    """``--moved-from`` with the base of before lets it go on, once and for all; another one does not."""
    base, checkpoints = seeded_beside(tmp_path)
    moved = base.rename(tmp_path / "moved")
    there = (moved, "--checkpoint-dir", checkpoints)
    assert run("recover", *there, "--moved-from", tmp_path / "else").exit_code == 1
    plan = told_json("recover", *there, "--moved-from", base, code=1)["plan"]
    assert plan["jobs"][0]["moves_from"] == str(base)
    told("recover", *there, "--moved-from", base, "--apply")
    assert "nothing to recover" in told("recover", *there)
    assert "nothing to recover" in told("recover", *there, "--moved-from", base)
    assert continue_to(long_sink(moved, checkpoint_dir=str(checkpoints)), 9) == 4
    assert_exactly_once(moved, 9)


def test_checkpoints_that_move_with_their_base_go_on(tmp_path: Path) -> None:
    """What lies below the base is no tie to where that is."""
    seed_with_a_tail(tmp_path / "out")
    moved = (tmp_path / "out").rename(tmp_path / "moved")
    assert continue_to(long_sink(moved), 9) == 4
    assert_exactly_once(moved, 9)


@pytest.mark.parametrize("words", [(), ("--uid", "fresh")])
def test_nothing_to_go_back_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A savepoint is not left out silently where there is no sink: its first start restores it."""
    location = stopped_with_savepoint(tmp_path)
    (tmp_path / "empty").mkdir()
    refused = run("recover", tmp_path / "empty", "--restore-from", location, *words)
    assert refused.exit_code == 2
    assert "begins with a savepoint by itself" in refused.stderr


def test_a_sink_that_stands_at_the_savepoint_does_not_go_back(tmp_path: Path) -> None:
    """There is nothing to do where restoring would only note where the sink came from."""
    location = stopped_with_savepoint(tmp_path)
    assert "nothing to recover" in told("recover", tmp_path / "out", "--restore-from", location)


@pytest.mark.parametrize("uid", [(), ("--uid", "life")])
def test_looking_with_the_checkpoints_of_another_base(tmp_path: Path, uid: tuple[str, ...]) -> None:
    """Verify and status say that they are of another one; no part of that one is missed here."""
    for name in ("x", "y"):
        with long_sink(tmp_path / name, checkpoint_dir=str(tmp_path / f"state-{name}")).local() as out:
            out.write(batch(0, 4), position=4)
    words: list[str | Path] = [tmp_path / "x", "--checkpoint-dir", tmp_path / "state-y", *uid]
    codes = [one["code"] for one in told_json("verify", *words, code=1)["findings"] if one["severity"] == "error"]
    assert codes == ["of-another-base"]
    (sink,) = told_json("status", *words, code=1)["sinks"]
    assert sink["problem"]["error"] == "RecoveryRefused"


def test_sinks_of_two_bases_may_share_a_directory_of_checkpoints(tmp_path: Path) -> None:
    """Each base is looked at with its own sinks alone."""
    for name in ("x", "y"):
        with long_sink(tmp_path / name, uid=name, checkpoint_dir=str(tmp_path / "state")).local() as out:
            out.write(batch(0, 4), position=4)
    words: tuple[str | Path, ...] = (tmp_path / "x", "--checkpoint-dir", tmp_path / "state")
    assert told_json("verify", *words)["jobs"] == ["x"]
    assert [one["uid"] for one in told_json("status", *words)["sinks"]] == ["x"]


def test_moved_from_needs_the_directory_of_checkpoints(tmp_path: Path) -> None:
    """Below the base nothing says where the base was, so the option would do nothing: refused."""
    seed_with_a_tail(tmp_path / "out")
    result = run("recover", tmp_path / "out", "--moved-from", "/old")
    assert result.exit_code == 2
    assert "--checkpoint-dir" in result.stderr


# Which rows come twice if a sink goes back is found out again before that is done (H5).


@pytest.mark.fault("H5")
@pytest.mark.parametrize("is_damaged", [False, True], ids=["readable", "damaged"])
def test_what_would_come_twice_is_looked_for_again(tmp_path: Path, is_damaged: bool) -> None:
    """A finished file that came after the plan makes it another one, which is refused; nothing is changed."""
    base = tmp_path / "out"
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.finish()
    if is_damaged:
        newest = max(base.rglob("_metadata"), key=lambda path: int(path.parent.name[4:]))
        newest.write_bytes(newest.read_bytes()[:-9])
    chosen = str(base / "_partfile" / "life" / "chk-2")
    plan = planned_recovery(base, restore_from=chosen, accept_newer=True)
    doubled = plan.jobs[0].doubled
    later = base / doubled[0].replace("-0-0.", "-0-99.").replace("-0-1.", "-0-99.")
    shutil.copy(base / doubled[0], later)
    before = everything(base)
    with pytest.raises(RecoveryRefused):
        recover_planned(plan, base)
    assert everything(base) == before
    again = planned_recovery(base, restore_from=chosen, accept_newer=True)
    assert set(again.jobs[0].doubled) == {*doubled, str(later.relative_to(base))}
    recover_planned(again, base)
    assert str(later.relative_to(base)) in finished_files(base)


# ``partfile recover`` where parts are gone: nothing is given up but what the plan said, and nothing silently.


def seeded_parts(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A base whose sink died two days ago, and its two open parts."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    first, second = sorted(base.rglob("*.in-progress"))
    return base, first, second


def test_a_missing_part_is_told_and_given_up_on_demand(tmp_path: Path) -> None:
    """Refused before anything is changed, with the part's name; --accept-missing publishes the others and ends in 1."""
    base, gone, _ = seeded_parts(tmp_path)
    gone.unlink()
    assert "IS UNDER NONE OF ITS NAMES" in told("recover", base, code=1)
    before = everything(base)
    failed = run("recover", base, "--apply")
    assert failed.exit_code == 1
    assert "1 of 2 parts" in failed.stderr
    assert "--accept-missing" in failed.stdout
    assert everything(base) == before, "the sink was taken over"
    said = told("recover", base, "--apply", "--accept-missing", code=1)
    assert "1 part published, 1 GIVEN UP" in said
    assert sum(rows_of(finished_files(base)).values()) == 2
    assert "nothing to recover" in told("recover", base)
    assert continue_to(long_sink(base), 6) == 4


def test_what_is_given_up_is_no_part_published(tmp_path: Path) -> None:
    """The document counts them apart."""
    base, *parts = seeded_parts(tmp_path)
    for part in parts:
        part.unlink()
    (done,) = told_json("recover", base, "--apply", "--accept-missing", code=1)["recovered"]
    assert (done["published"], done["owed"], done["given_up"]) == (0, 0, 2)


@pytest.mark.fault("H8")
def test_a_part_that_goes_after_the_plan_is_not_given_up(tmp_path: Path) -> None:
    """H8: what the plan gives up is part of it. One more that is gone is another plan, and nothing is changed."""
    base, gone, blinking = seeded_parts(tmp_path)
    gone.unlink()
    digest = told_json("recover", base, "--accept-missing", code=1)["digest"]
    before = everything(base)
    away = blinking.rename(tmp_path / "away")
    refused = run("recover", base, "--accept-missing", "--apply", "--plan", digest)
    assert refused.exit_code == 1
    assert digest in refused.stderr
    away.rename(blinking)
    assert everything(base) == before
    told("recover", base, "--accept-missing", "--apply", "--plan", digest, code=1)
    assert sum(rows_of(finished_files(base)).values()) == 2


@pytest.mark.parametrize("at_look", [3, 4])
def test_a_part_that_goes_while_the_plan_is_done_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_look: int
) -> None:
    """Gone before the second look or right after it: the plan is refused, or the part is still owed."""
    base, gone, blinking = seeded_parts(tmp_path)
    gone.unlink()
    look, looks = recovering._found, []

    def found(store: Store, part: PartHandle) -> str:
        looks.append(part)
        seen = look(store, part) if len(looks) != at_look else "staged"
        if len(looks) == at_look:
            blinking.rename(tmp_path / "away")
            assert (part.in_progress == blinking.name) == (at_look == 4)
        return look(store, part) if at_look == 3 else seen

    monkeypatch.setattr(recovering, "_found", found)
    monkeypatch.setattr(recovering, "for_each", lambda work, items, *_: [work(item) for item in items])
    assert run("recover", base, "--accept-missing", "--apply").exit_code == 1
    assert len(looks) == 4
    monkeypatch.undo()
    (tmp_path / "away").rename(blinking)
    # Once the takeover was made, the log says that the other part is given up.
    told("recover", base, "--accept-missing", "--apply", "--fence", code=1 if at_look == 3 else 0)
    assert sum(rows_of(finished_files(base)).values()) == 2


@pytest.mark.parametrize("content", [b"another program's\n" * 9, b"b"])
def test_the_plan_names_a_part_whose_name_is_taken(tmp_path: Path, content: bytes) -> None:
    """The other part is published, this one is still owed, and it follows once the other program's file is away."""
    base, first, _ = seeded_parts(tmp_path)
    final = first.with_name(f"{first.name[1:].split('.txt')[0]}.txt")
    final.write_bytes(content)
    said = told("recover", base, code=1)
    assert said.count("ANOTHER FILE HAS ITS NAME") == 1
    assert f"{final.relative_to(base)}, ANOTHER FILE HAS ITS NAME" in said
    told("recover", base, "--apply", code=1)
    assert final.read_bytes() == content
    final.rename(tmp_path / "theirs")
    assert "ANOTHER FILE" not in told("recover", base, "--apply", "--fence")
    assert sum(rows_of(finished_files(base)).values()) == 4


def test_a_part_under_both_its_names_is_not_in_its_own_way(tmp_path: Path) -> None:
    """A publish that a crash cut in half leaves one file under two names."""
    base, first, _ = seeded_parts(tmp_path)
    first.with_name(f"{first.name[1:].split('.txt')[0]}.txt").hardlink_to(first)
    assert "ANOTHER FILE" not in told("recover", base, code=1)


def test_a_part_that_is_too_short_is_given_up_on_demand(tmp_path: Path) -> None:
    """It is told in the plan, refused before anything is changed, and counts as one that is gone."""
    base, short, _ = seeded_parts(tmp_path)
    os.truncate(short, 3)
    said = told("recover", base, code=1)
    assert "IS SHORTER THAN THAT" in said
    assert "--apply is refused" in said
    before = everything(base)
    refused = run("recover", base, "--apply")
    assert (refused.exit_code, "1 of 2 parts" in refused.stderr) == (1, True)
    assert everything(base) == before, "the sink was taken over"
    (done,) = told_json("recover", base, "--apply", "--accept-missing", code=1)["recovered"]
    assert (done["published"], done["given_up"]) == (1, 1)


# ``partfile recover --cut valid-length``: nothing is cut, and that is said before and after.

VALID_LENGTH = ("--cut", "valid-length")


def sizes(base: Path, pattern: str) -> list[int]:
    return sorted(path.stat().st_size for path in base.rglob(pattern))


def test_a_cut_by_a_sidecar_is_not_called_a_cut(tmp_path: Path) -> None:
    """The plan and the end say that a plain reader goes on past the valid lengths, which is what it does."""
    base = seeded(tmp_path)
    planned = told("recover", base, *VALID_LENGTH, code=1)
    assert "cut to" not in planned
    assert planned.count("only readers of sidecars stop there") == 2
    before = sizes(base, "*.in-progress")
    assert "2 of them have sidecars, where they are longer" in told("recover", base, *VALID_LENGTH, "--apply")
    assert sizes(base, "part-*") == before
    assert len(list(base.rglob("_part-*.valid-length"))) == 2


def test_savepoint_create_says_the_same(tmp_path: Path) -> None:
    """It recovers first, so it publishes by sidecars too."""
    base = seeded(tmp_path)
    said = told("savepoint", "create", base, "--to", tmp_path / "kept", *VALID_LENGTH, "--apply")
    assert said.count("only readers of sidecars stop there") == 2
    assert "2 of them have sidecars, where they are longer" in said


def test_other_cuts_are_called_cuts(tmp_path: Path) -> None:
    """Where the tail goes nothing is said of sidecars, and none is left."""
    base = seeded(tmp_path)
    said = told("recover", base, "--apply")
    assert said.count("cut to") == 2
    assert "sidecar" not in said
    assert not list(base.rglob("*.valid-length"))


# A directory of a bucket that was renamed: its parts are told where they lie, and nothing takes them away.


def moved(base: Path) -> Path:
    """A dead sink with a bucket that was moved to an archive; returns where its one part lies."""
    seed_with_a_tail(base)
    (base / "archive").mkdir()
    (base / "bucket=b0").rename(base / "archive" / "old_b0")
    age(base)
    (part,) = (base / "archive" / "old_b0").iterdir()
    return part


def test_verify_says_where_a_moved_part_lies(tmp_path: Path) -> None:
    """It is missing with the place to put it back from, and is not called an orphan as well."""
    part = moved(tmp_path)
    findings = told_json("verify", tmp_path, code=1)["findings"]
    (missing,) = [one for one in findings if one["code"] == "part-missing"]
    assert "Moved" in missing["hint"]
    assert "'archive/old_b0'" in missing["hint"]
    assert missing["hint"].endswith(" bucket=b0/")
    assert [one for one in findings if one["path"] == str(part.relative_to(tmp_path))] == []


def test_clean_refuses_while_a_part_is_missing(tmp_path: Path) -> None:
    """With the shortest ages it takes nothing; put back, the base is whole."""
    part = moved(tmp_path)
    before = everything(tmp_path)
    words = ("clean", tmp_path, "--older-than", "0s", "--idle-for", "0s", "--delete", "--apply")
    result = run(*words)
    assert result.exit_code == 1
    assert "--accept-missing" in result.stderr
    assert everything(tmp_path) == before
    part.parent.rename(tmp_path / "bucket=b0")
    assert broken_invariants(tmp_path) == []
    assert run(*words).exit_code == 0


# Beside consumers that take finished files: the sink's checkpoints tell recover, which has no option of its own.


def taken_before_the_mark(base: Path, **options: Any) -> str:
    """A consumer takes a finished file, and the sink dies before it notes that the file is finished."""
    out = make_sink(base, **options).local().open()
    out.write(batch(0, 4), position=4)
    out.finish()
    (mark,) = base.glob("_partfile/life/chk-*/_published")
    mark.unlink()
    taken = min(finished_files(base))
    (base / taken).rename(base.parent / "taken.txt")
    age(base)
    return taken


def test_what_a_consumer_took_needs_no_operator(tmp_path: Path) -> None:
    """R5: recover goes by what the sink was told; verify tells it in a note."""
    base = tmp_path / "out"
    taken = taken_before_the_mark(base, consumers_take_files=True)
    notes = told_json("verify", base)["findings"]
    assert [(one["severity"], one["code"], one["path"]) for one in notes] == [("note", "moved-away", taken)]
    assert told_json("status", base, "--scan", code=1)["scan"]["missing"] == []
    plan = told("recover", base, code=1)
    assert f"{taken}, a consumer has taken it" in plan
    told("recover", base, "--apply", "--fence")
    with long_sink(base).local() as out:
        assert out.position == 4
    rows = rows_of(finished_files(base)) + rows_of({"taken.txt": (tmp_path / "taken.txt").read_bytes()})
    assert rows == {f"row-{number:04d}": 1 for number in range(4)}


def test_a_sink_that_was_not_told_of_consumers_is_not_recovered_alone(tmp_path: Path) -> None:
    """The same tree is refused, and the hint has the option; a recovery in between changes nothing of it."""
    base = tmp_path / "out"
    taken_before_the_mark(base)
    refused = run("recover", base, "--apply", "--fence")
    assert refused.exit_code == 1
    assert "its option consumers_take_files" in refused.stderr
    with pytest.raises(PartMissing):
        long_sink(base).local().open()
    with long_sink(base, consumers_take_files=True).local() as out:
        assert out.position == 4


def test_a_part_that_was_never_promised_is_not_taken_for_taken(tmp_path: Path) -> None:
    """An open part that is gone is lost: no consumer sees it."""
    base = tmp_path / "out"
    seed_with_a_tail(base, consumers_take_files=True)
    next(base.rglob("*.in-progress")).unlink()
    age(base)
    refused = run("recover", base, "--apply", "--fence")
    assert refused.exit_code == 1
    assert "IS UNDER NONE OF ITS NAMES" in refused.stdout


def test_a_recovery_that_dies_tells_the_next_one(tmp_path: Path) -> None:
    """It shows two open parts to readers and dies before it notes them; a consumer takes one of them."""
    base = tmp_path / "out"
    seed_with_a_tail(base, consumers_take_files=True)
    age(base)
    # Each of them gets its final name so, after the trial of the start.
    killer = KillAt(3, "after", only={"rename_noreplace"})
    assert in_child(partial(recover_all, base, killer)) == -signal.SIGKILL
    taken, _ = finished_files(base)
    (base / taken).rename(tmp_path / "taken.txt")
    age(base)
    assert "a consumer has taken it" in told("recover", base, "--apply", "--fence")
    assert continue_to(long_sink(base), 9) == 4
    rows = rows_of(finished_files(base)) + rows_of({"taken.txt": (tmp_path / "taken.txt").read_bytes()})
    assert rows == {f"row-{number:04d}": 1 for number in range(9)}


def test_a_rival_whose_files_a_consumer_took_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the look at the log and that at the parts: the sink has moved on, and no row is given up."""
    base, decide = tmp_path / "out", Restore.decide
    seed_with_a_tail(base, has_consumer=True)
    plan = planned_recovery(base)

    def overtaken(self: Restore, *arguments: Any, **options: Any) -> RestorePlan:
        seen = decide(self, *arguments, **options)
        monkeypatch.undo()
        recover_all(base, Taking(base))
        return seen

    monkeypatch.setattr(Restore, "decide", overtaken)
    with pytest.raises(RecoveryRefused, match="not what would be done any more"):
        recover_planned(plan, base)
    assert finished_files(base) == {}
    assert_exactly_once(base, 4)


def test_an_option_that_is_taken_back_holds_for_what_was_promised_before(tmp_path: Path) -> None:
    """A start without it passes over the file of the run before; its own promises are not passed over."""
    base = tmp_path / "out"
    taken_before_the_mark(base, consumers_take_files=True)
    out = long_sink(base, consumers_take_files=False).local().open()
    out.write(batch(4, 4), position=8)
    out.finish()
    for mark in base.glob("_partfile/life/chk-*/_published"):
        mark.unlink()
    newest = next(path for path in finished_files(base) if "row-0004" in (base / path).read_text())
    (base / newest).unlink()
    with pytest.raises(PartMissing):
        long_sink(base).local().open()
