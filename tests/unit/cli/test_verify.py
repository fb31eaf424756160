"""``partfile verify`` finds each invariant that was broken on purpose, and nothing where a sink was merely killed."""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from command_line import start, told, told_json
from dead_sinks import crash_when_promised
from dead_stages import die_with_open_stages
from life_cycle import LONG, assert_exactly_once, batch, in_child, make_sink, run_to_the_end, seed_with_a_tail
from reading_trees import sidecars, write_tree

from partfile.recovery.inspect.verify import INVARIANTS
from partfile.stores.local.posix import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    Breaking = Callable[[Path], object]

NEWEST = 10**9


def findings(base: Path, severity: str = "error", code: int | None = None) -> list[dict[str, Any]]:
    """What is found of one severity."""
    expected = 1 if severity == "error" else 0
    report = told_json("verify", base, code=expected if code is None else code)
    return [one for one in report["findings"] if one["severity"] == severity]


def finished(base: Path) -> Path:
    """A finished file."""
    return min(base.glob("bucket=*/part-*"))


def staged(base: Path) -> Path:
    """A staged file."""
    return min(base.glob("bucket=*/_part-*"))


def newest_link(base: Path) -> Path:
    """The directory of the newest checkpoint."""
    return max((base / "_partfile" / "life").glob("chk-*"), key=lambda path: int(path.name[4:]))


def linked_state(base: Path) -> Path:
    """A state file."""
    return next(newest_link(base).glob("*.state"))


def cut(path: Path, length: int) -> None:
    """Leave so many bytes of a file."""
    with path.open("r+b") as file:
        file.truncate(length)


def cut_all(base: Path) -> None:
    """Leave three bytes of each finished file."""
    for path in base.glob("bucket=*/part-*"):
        cut(path, 3)


def renumbered(path: Path, number: int) -> Path:
    """The path that a finished file would have with another number."""
    prefix, chain, subtask, rest = path.name.split("-", 3)
    return path.with_name(f"{prefix}-{chain}-{subtask}-{number}.{rest.split('.', 1)[1]}")


def finish_open_part(base: Path) -> None:
    """Give an open part its final name as nobody may."""
    path = staged(base)
    path.rename(path.with_name(path.name[1:].split(".txt")[0] + ".txt"))


def link_orphan(base: Path) -> None:
    """A staged name that no checkpoint knows, of a finished file."""
    path = finished(base)
    path.with_name(f"_{path.name}.{'c' * 32}.pending").hardlink_to(path)


def link_stage(base: Path) -> None:
    """A stage with a finished name, which is that of no part of its own."""
    path = staged(base)
    path.with_name(f"{path.name[1:].split('.parquet')[0]}.parquet").hardlink_to(path)


BROKEN: dict[str, tuple[str, Breaking]] = {
    "state-unreadable": ("open", lambda base: cut(newest_link(base) / "_metadata", 20)),
    "link-damaged": ("open", lambda base: (base / "_partfile/life/chk-1/_metadata").write_bytes(b"?")),
    "chain-hole": ("many", lambda base: (base / f"_partfile/life/{_middle(base)}/_metadata").unlink()),
    "state-file": ("files", lambda base: linked_state(base).unlink()),
    "name-beyond-counter": ("done", lambda base: shutil.copy(finished(base), renumbered(finished(base), 77))),
    "name-twice": ("done", lambda base: shutil.copy(finished(base), base)),
    "published-early": ("open", finish_open_part),
    "stage-published": ("staged", link_stage),
    "finished-length": ("done", cut_all),
    "part-missing": ("open", lambda base: staged(base).unlink()),
    "part-short": ("open", lambda base: cut(staged(base), 5)),
    "sidecar-damaged": ("sidecars", lambda base: sidecars(base)[0].write_text("12 bytes")),
    "sidecar-disagrees": ("sidecars", lambda base: sidecars(base)[0].write_text("999999")),
    "staged-name-of-finished": ("done", link_orphan),
}
"""For each invariant a tree and how it is broken there."""


def live(base: Path, **options: Any) -> None:
    """Write what is missing and end cleanly."""
    run_to_the_end(make_sink(base, **options))


def _middle(base: Path) -> str:
    names = sorted((path.name for path in (base / "_partfile" / "life").glob("chk-*")), key=lambda name: int(name[4:]))
    return names[len(names) // 2]


def make_tree(kind: str, base: Path) -> None:
    """A tree as a sink leaves it."""
    if kind == "open":
        seed_with_a_tail(base)
    elif kind == "staged":
        die_with_open_stages(base)
    elif kind == "files":
        seed_with_a_tail(base, inline_threshold_bytes=0)
    elif kind == "sidecars":
        write_tree(base, "text", None)
    else:
        run_to_the_end(make_sink(base, retained_checkpoints=6 if kind == "many" else 2), rows=12)


def test_every_invariant_is_broken_by_a_case() -> None:
    """No check is without a tree that shows that it works; some have tests of their own."""
    elsewhere = {"link-of-another-chain", "of-another-base", "checksum-differs", "part-unreadable"}
    assert {*BROKEN, *elsewhere} == INVARIANTS.keys()


@pytest.mark.parametrize("code", BROKEN)
def test_each_broken_invariant_is_found(tmp_path: Path, code: str) -> None:
    """Before it is broken nothing is found; afterwards it is named, with a hint, and the exit code is 1."""
    kind, breaking = BROKEN[code]
    make_tree(kind, tmp_path)
    assert findings(tmp_path, code=0) == []
    breaking(tmp_path)
    found = findings(tmp_path)
    assert code in {one["code"] for one in found}
    assert all(one["hint"] or one["code"] == "state-unreadable" for one in found)
    assert "verify: errors=" in told("verify", tmp_path, code=1)


def test_a_link_of_another_chain_is_found(tmp_path: Path) -> None:
    """A link that was copied here from another base of the same uid does not belong."""
    for name in ("one", "other"):
        run_to_the_end(make_sink(tmp_path / name, retained_checkpoints=6), rows=12)
    first = "_partfile/life/chk-2/_metadata"
    assert findings(tmp_path / "one", code=0) == []
    shutil.copy(tmp_path / "other" / first, tmp_path / "one" / first)
    assert "link-of-another-chain" in {one["code"] for one in findings(tmp_path / "one")}


@pytest.mark.parametrize("make", [seed_with_a_tail, crash_when_promised])
def test_a_killed_sink_breaks_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Parts that wait for the next start are no errors."""
    make(tmp_path)
    assert findings(tmp_path, code=0) == []


def test_no_kill_breaks_an_invariant(tmp_path: Path, rng: random.Random) -> None:
    """Whatever call a sink is killed at, and then its restore, what is left holds every invariant."""
    recorder = Recorder(CHANGING_CALLS)
    run_to_the_end(make_sink(tmp_path / "counted", interceptor=recorder))
    for number in sorted(rng.sample(range(1, len(recorder.names)), 12)):
        base = tmp_path / str(number)
        for at in (number, rng.randint(1, 12)):
            killer = KillAt(at, "after", only=CHANGING_CALLS)
            in_child(partial(live, base, interceptor=killer))
            if (base / "_partfile").exists():
                assert findings(base, code=0) == [], f"killed after call {at}"
        run_to_the_end(make_sink(base))
        assert_exactly_once(base)


def test_what_is_no_damage_is_a_note(tmp_path: Path) -> None:
    """Orphans, files of others, a part that a consumer moved and a second name somewhere are told, and end with 0."""
    run_to_the_end(make_sink(tmp_path))
    with make_sink(tmp_path, rolling=LONG).local() as out:
        out.write(batch(12, 2), position=14)
    path = finished(tmp_path)
    path.with_name(f"_{path.name}.{'c' * 32}.in-progress").write_bytes(b"x")
    (tmp_path / "mine.txt").write_text("x")
    (tmp_path / "elsewhere.txt").hardlink_to(path)
    max(tmp_path.glob("bucket=*/part-*"), key=lambda one: one.stat().st_mtime).unlink()
    assert {one["code"] for one in findings(tmp_path, "note")} == {"orphan", "foreign", "further-name", "moved-away"}


def test_finished_files_are_told_by_checkpoint(tmp_path: Path) -> None:
    """What retained checkpoints finished is listed below them, also when a start has gone on since."""
    with make_sink(tmp_path, rolling=LONG).local() as out:
        out.write(batch(0, 2), position=2)
    report = told_json("verify", tmp_path)
    (one,) = report["checkpoints"]
    assert sorted(one["files"]) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("bucket=*/part-*"))
    assert report["files"] == {"finished": 2}


def test_only_one_sink_is_checked_if_it_is_named(tmp_path: Path) -> None:
    """``--uid`` leaves out what is wrong with the others, and what belongs to nobody."""
    for uid in ("life", "other"):
        with make_sink(tmp_path, uid=uid).local() as out:
            out.write(batch(0, 4), position=4)
    chain = told_json("status", tmp_path, "--uid", "other")["sinks"][0]["chain"]
    cut(next(tmp_path.glob(f"bucket=*/part-{chain}-*")), 1)
    (tmp_path / "mine.txt").write_text("x")
    assert told_json("verify", tmp_path, "--uid", "life")["findings"] == []
    assert [one["job"] for one in told_json("verify", tmp_path, "--uid", "other", code=1)["findings"]] == ["other"]


def test_a_running_sink_never_looks_broken(tmp_path: Path) -> None:
    """While another process writes, rolls and publishes as fast as it can, no look finds an error or fails."""
    flag = tmp_path / "stop"

    def write() -> None:
        with make_sink(tmp_path / "out").local() as out:
            done = 0
            while not flag.exists() and done < NEWEST:
                out.write(batch(done, 2), position=done + 2)
                done += 2
                out.checkpoint()

    pid = os.fork()
    if pid == 0:
        try:
            write()
        finally:
            os._exit(0)
    try:
        while not list(tmp_path.glob("out/bucket=*/part-*")):
            time.sleep(0.01)
        for _ in range(40):
            assert findings(tmp_path / "out", code=0) == []
            told("list", tmp_path / "out", "--json")
            told("status", tmp_path / "out", "--scan", "--quiet-after", "9999999d")
            told("checkpoints", tmp_path / "out")
    finally:
        flag.touch()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_verify_runs_as_a_process(tmp_path: Path) -> None:
    """``python -m partfile verify`` says in its last line how it ended, and its exit code says the same."""
    run_to_the_end(make_sink(tmp_path))
    process = start("verify", tmp_path)
    text, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    assert text.splitlines()[-1] == "verify: errors=0 notes=0"
