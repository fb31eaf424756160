"""``partfile recover``: what a dead sink owes is published as its own next start would, and nothing else changes."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from changing import age, planned_recovery
from command_line import ageless, run, start, told, told_json
from life_cycle import (
    assert_exactly_once,
    batch,
    continue_to,
    everything,
    finished_files,
    in_child,
    long_sink,
    rows_of,
    seed_with_a_tail,
    staged_files,
    start_child,
)

from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path


def seeded(tmp_path: Path) -> Path:
    """Two open parts with tails beyond their valid lengths, of a sink that died two days ago."""
    base = tmp_path / "out"
    seed_with_a_tail(base)
    age(base)
    return base


def links_of(base: Path) -> list[Path]:
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
    before = links_of(base)
    told("recover", base, "--apply", "--fence")
    assert set(before) < set(links_of(base))


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
        ((".",), 0, "nothing to recover"),
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
        time.sleep(60)

    pid = start_child(write)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len(links_of(base)) < 2:
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    process = start("recover", base, "--apply", "--fence", cwd=tmp_path)
    out, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, ""), out
    assert "2 parts published" in out
    assert continue_to(long_sink(base), 9) == 4
    assert_exactly_once(base, 9)
