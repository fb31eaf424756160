"""``partfile verify``: each broken invariant and each changed bit is found, and nothing else is told."""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import Fenced, NotReady
from partfile.recovery.inspect import checkpoints as seen_checkpoints
from partfile.recovery.inspect import content
from partfile.recovery.inspect.content import open_known
from partfile.recovery.inspect.places import Place
from partfile.recovery.inspect.verify import INVARIANTS, verify
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, KillAt, Recorder, SimulatedCrash, intercept
from support.files.trees import sidecars, write_tree
from support.processes.command_line import run, start, told, told_json, told_lines
from support.sinks.dead import crash_when_promised, die_with_closed_staging_files, die_with_open_staging_files
from support.sinks.life_cycle import (
    LONG,
    assert_exactly_once,
    batch,
    in_child,
    long_sink,
    make_sink,
    rows_done,
    run_to_the_end,
    seed_with_a_tail,
)
from support.sinks.staged_streams import STAGED, pending_in, staged_sink, staging_files_in

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.recovery.inspect.checkpoints import SeenCheckpoint
    from partfile.recovery.inspect.verify import VerifyReport
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.stores.base import StoredFile
    from partfile.testing.faults import Call

    Breaking = Callable[[Path], object]


# ``partfile verify`` finds each invariant that was broken on purpose, and nothing where a sink was merely killed.

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


def newest_metadata(base: Path) -> Path:
    """The directory of the newest checkpoint."""
    return max((base / "_partfile" / "life").glob("chk-*"), key=lambda path: int(path.name[4:]))


def linked_state(base: Path) -> Path:
    """A state file."""
    return next(newest_metadata(base).glob("*.state"))


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
    """Give an open part its final name, which is forbidden."""
    path = staged(base)
    path.rename(path.with_name(path.name[1:].split(".txt")[0] + ".txt"))


def link_orphan(base: Path) -> None:
    """A staged name that no checkpoint knows, of a finished file."""
    path = finished(base)
    path.with_name(f"_{path.name}.{'c' * 32}.pending").hardlink_to(path)


def take_name_of_pending(base: Path) -> None:
    """A file of the same length as a part that is owed, and with other bytes, under its final name."""
    path = staged(base)
    final = path.with_name(f"{path.name[1:].split('.txt')[0]}.txt")
    final.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def link_stage(base: Path) -> None:
    """A staging file with a finished name, which is that of no part of its own."""
    path = staged(base)
    path.with_name(f"{path.name[1:].split('.parquet')[0]}.parquet").hardlink_to(path)


BROKEN: dict[str, tuple[str, Breaking]] = {
    "state-unreadable": ("open", lambda base: cut(newest_metadata(base) / "_metadata", 20)),
    "checkpoint-damaged": ("open", lambda base: (base / "_partfile/life/chk-1/_metadata").write_bytes(b"?")),
    "log-hole": ("many", lambda base: (base / f"_partfile/life/{_middle(base)}/_metadata").unlink()),
    "state-file": ("files", lambda base: linked_state(base).unlink()),
    "run-file": ("distinct", lambda base: cut(next((base / "_partfile" / "life" / "shared").iterdir()), 40)),
    "name-beyond-counter": ("done", lambda base: shutil.copy(finished(base), renumbered(finished(base), 77))),
    "name-twice": ("done", lambda base: shutil.copy(finished(base), base)),
    "published-early": ("open", finish_open_part),
    "staging-file-published": ("staged", link_stage),
    "finished-length": ("done", cut_all),
    "finished-differs": ("promised", take_name_of_pending),
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
        die_with_open_staging_files(base)
    elif kind == "promised":
        crash_when_promised(base)
    elif kind == "files":
        seed_with_a_tail(base, inline_threshold_bytes=0)
    elif kind == "distinct":
        seed_with_a_tail(base, inline_threshold_bytes=0, deduplicate=pf.Deduplicate("row"))
    elif kind == "sidecars":
        write_tree(base, "text", None)
    else:
        run_to_the_end(make_sink(base, retained_checkpoints=6 if kind == "many" else 2), rows=12)


def test_every_invariant_is_broken_by_a_case() -> None:
    """No check is without a tree that shows that it works; some have tests of their own."""
    elsewhere = {"checkpoint-of-another-log", "of-another-base", "checksum-differs", "part-unreadable"}
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
    shown = told("verify", tmp_path, code=1)
    assert "verify: errors=" in shown
    for text in (shown, *(one["hint"] for one in found)):
        assert not re.search(r"\b(PATH|UID)\b", text), "what stands for them is known"


def test_a_command_in_a_hint_has_the_directory_of_checkpoints(tmp_path: Path) -> None:
    """It can be typed as it is, in JSON and in text, whatever is in the names."""
    base, directory = tmp_path / "my rows", tmp_path / "its log"
    run_to_the_end(make_sink(base, checkpoint_dir=str(directory)))
    for metadata in directory.glob("life/chk-*/_metadata"):
        metadata.write_bytes(b"?")
    command = f"partfile verify '{base}' --checkpoint-dir '{directory}'"
    words = (base, "--checkpoint-dir", directory)
    assert told_json("verify", *words, code=1)["findings"][0]["hint"].endswith(command)
    for verb in ("verify", "status", "state", "checkpoints"):
        result = run(verb, *words)
        assert f"{command}\n" in result.stdout + result.stderr


def test_another_programs_file_under_a_name_has_one_finding(tmp_path: Path) -> None:
    """It is to be moved, not to be put back from a copy; whatever its length is."""
    crash_when_promised(tmp_path)
    take_name_of_pending(tmp_path)
    cut(next(path for path in tmp_path.rglob("part-*.txt")), 1)
    assert [one["code"] for one in findings(tmp_path)] == ["finished-differs"]


def test_of_a_file_under_a_parts_name_nothing_is_said_that_may_be_false(tmp_path: Path) -> None:
    """Whether it holds rows of the sink is not known: the hint has both cases, and the command for either."""
    crash_when_promised(tmp_path)
    part = staged(tmp_path)
    part.with_name(f"{part.name[1:].split('.txt')[0]}.txt").write_text("no rows of any sink")
    (found,) = findings(tmp_path)
    assert found["code"] == "finished-differs"
    assert found["hint"].startswith("Another program made it: move it out of the base. Or, if checkpoints were put")
    assert "mv FILE ELSEWHERE" in found["hint"]


def test_a_checkpoint_of_another_log_is_found(tmp_path: Path) -> None:
    """A checkpoint that was copied here from another base of the same uid does not belong."""
    for name in ("one", "other"):
        run_to_the_end(make_sink(tmp_path / name, retained_checkpoints=6), rows=12)
    first = "_partfile/life/chk-2/_metadata"
    assert findings(tmp_path / "one", code=0) == []
    shutil.copy(tmp_path / "other" / first, tmp_path / "one" / first)
    assert "checkpoint-of-another-log" in {one["code"] for one in findings(tmp_path / "one")}


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
            if any(base.glob("_partfile/*/chk-*")):
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
    # By its number: files that are made at the same tick of the kernel's clock are of the same age.
    max(tmp_path.glob("bucket=*/part-*"), key=lambda one: int(one.stem.rpartition("-")[2])).unlink()
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
    """``--uid`` leaves out what is wrong with the others, and what belongs to none."""
    for uid in ("life", "other"):
        with make_sink(tmp_path, uid=uid).local() as out:
            out.write(batch(0, 4), position=4)
    chain = told_json("status", tmp_path, "--uid", "other")["sinks"][0]["chain"]
    cut(next(tmp_path.glob(f"bucket=*/part-{chain}-*")), 1)
    (tmp_path / "mine.txt").write_text("x")
    assert told_json("verify", tmp_path, "--uid", "life")["findings"] == []
    assert [one["job"] for one in told_json("verify", tmp_path, "--uid", "other", code=1)["findings"]] == ["other"]


@pytest.mark.slow
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


# ``verify`` beside a sink that moves on at the worst moment: between two of its looks.


class WatchedStore(LocalStore):
    """A store whose listings are counted, each after something has happened."""

    def __init__(self, base: str, happens: Callable[[int], object]) -> None:
        super().__init__(base, create_base=False)
        self._happens = happens
        self.listings = 0

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """List, after it has happened."""
        self.listings += 1
        self._happens(self.listings)
        yield from super().list(directory)


def looked(base: Path, happens: Callable[[int], object]) -> tuple[VerifyReport, int]:
    """What verify finds while something happens before each listing, and how often it listed."""
    place = Place(str(base))
    checkpoints: Any = place.open_checkpoints()
    with WatchedStore(str(base), happens) as store, checkpoints:
        return verify(place, store, checkpoints, None, lambda _steps: None), store.listings


def test_what_is_finished_after_the_first_reading_is_judged_by_the_second(tmp_path: Path) -> None:
    """Parts with numbers beyond the counter that was read first are right by the one that is read afterwards."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 8), position=8)
        out.checkpoint()

        def moves_on(_listing: int) -> None:
            out.write(batch(8, 8), position=16)
            out.checkpoint()
            out.write(batch(16, 8), position=24)
            out.checkpoint()

        report, listings = looked(tmp_path, moves_on)
    assert report.errors == []
    assert listings == 1


def test_a_part_that_is_published_and_moved_away_meanwhile_is_not_missing(tmp_path: Path) -> None:
    """What had to be there by the first reading is not missed if the checkpoints do not name it any more."""
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 2), position=2)
        out.checkpoint()

        def is_consumed(_listing: int) -> None:
            out.write(batch(2, 8), position=10)
            out.checkpoint()
            out.checkpoint()
            for path in tmp_path.glob("bucket=*/part-*"):
                path.unlink()

        report, listings = looked(tmp_path, is_consumed)
    assert report.errors == []
    assert listings == 1


def test_what_is_seen_once_is_no_finding(tmp_path: Path) -> None:
    """Parts between two names, as each is for an instant while it is published, are looked at again."""
    run_to_the_end(make_sink(tmp_path))
    finished = sorted(tmp_path.glob("bucket=*/part-*"))

    def staged_name(path: Path) -> Path:
        return path.with_name(f"_{path.name}.{'c' * 32}.pending")

    def is_linked(listing: int) -> None:
        # At each look it is another part's turn.
        staged_name(finished[listing - 1]).hardlink_to(finished[listing - 1])
        if listing > 1:
            staged_name(finished[listing - 2]).unlink()

    report, listings = looked(tmp_path, is_linked)
    assert report.errors == []
    assert listings == 2


def test_a_sink_that_moves_on_faster_than_it_is_looked_at_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checkpoint that was listed is deleted before it is read: the newest state, read before, is shown."""
    read = seen_checkpoints._seen
    with make_sink(tmp_path).local() as out:
        out.write(batch(0, 8), position=8)
        out.checkpoint()

        def deleted_before(storage: CheckpointStorage, checkpoint_id: int) -> SeenCheckpoint | None:
            for _ in range(3):
                position = rows_done(out)
                out.write(batch(position, 2), position=position + 2)
                out.checkpoint()
            return read(storage, checkpoint_id)

        with monkeypatch.context() as patched:
            patched.setattr(seen_checkpoints, "_seen", deleted_before)
            (shown,) = told_json("status", tmp_path, "--scan", "--quiet-after", "9d")["sinks"]
        assert rows_done(out) > 8
    assert shown["retained_checkpoint_ids"] == [shown["newest_checkpoint_id"]]


# ``verify`` beside a checkpoint that a fenced coordinator has left under a freed name: a note, and no alarm.

MORE_ROWS = 18


class AtCommit:
    """An interceptor that lets others go on before one of the checkpoints of a process.

    Args:
        number: Which of them, from 1.
        others: What they do.
        dies: Whether the process is dead once the checkpoint is there.
    """

    def __init__(self, number: int, others: Callable[[], object], *, dies: bool = False) -> None:
        self._left = number
        self._others = others
        self._dies = dies

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, after the others have done what they do."""
        is_link = call.name == "create_file" and str(call.arguments[0]).endswith("/_metadata")
        self._left -= is_link
        if not is_link or self._left != 0:
            return proceed()
        self._others()
        proceed()
        if self._dies:
            raise SimulatedCrash
        return None


def sleeping(base: Path, at: AtCommit, **options: Any) -> pf.LocalSink:
    """A sink whose process is asleep there."""
    return long_sink(base, open_store=lambda url, _options: intercept(LocalStore(url), at), **options).local()


def found(base: Path) -> list[tuple[Any, Any]]:
    """The code and the severity of each finding, of which none is an error."""
    return [(one["code"], one["severity"]) for one in told_json("verify", base, code=0)["findings"]]


@pytest.mark.parametrize("retained", [1, 2, 4])
@pytest.mark.parametrize("inline_threshold_bytes", [0, 20_000])
@pytest.mark.fault("D9")
def test_a_stray_checkpoint_is_noted(tmp_path: Path, retained: int, inline_threshold_bytes: int) -> None:
    """It knows a part longer than it became, and files that are gone: neither is an error, and a start deletes it."""
    options: dict[str, Any] = {"retained_checkpoints": retained, "inline_threshold_bytes": inline_threshold_bytes}
    others = partial(run_to_the_end, make_sink(tmp_path, **options), MORE_ROWS)
    sleeper = sleeping(tmp_path, AtCommit(3, others), **options).open()
    sleeper.write(batch(0, 4), position=4)
    sleeper.checkpoint()
    sleeper.write(batch(4, 4), position=8)
    with pytest.raises(Fenced):
        sleeper.checkpoint()
    sleeper.close()
    assert ("stray-checkpoint", "note") in found(tmp_path)
    make_sink(tmp_path, **options).local().open().close()
    # The sleeper still held its parts, so copies of them were finished.
    assert {code for code, _ in found(tmp_path)} == {"orphan"}


@pytest.mark.parametrize("retained", [2, 4])
def test_a_stray_first_checkpoint_is_noted(tmp_path: Path, retained: int) -> None:
    """It is of a checkpoint log of its own, and was not copied here."""
    others = partial(run_to_the_end, make_sink(tmp_path, retained_checkpoints=retained), MORE_ROWS)
    late = sleeping(tmp_path, AtCommit(1, others, dies=True))
    with pytest.raises(SimulatedCrash):
        late.open()
    assert ("stray-checkpoint", "note") in found(tmp_path)


# ``partfile verify --checksums``: a bit that has changed in a staging file or an encoded file, and nothing else, is
# told.


def finish(base: Path) -> None:
    """Two encoded files, and their encoded staging files."""
    with staged_sink(base).local() as out:
        out.write(batch(0, 4), position=4)
        out.checkpoint()


def finished_in(base: Path) -> list[Path]:
    return sorted(base.glob("bucket=*/part-*"))


def promise(base: Path) -> None:
    """Encoded files that wait for their publication."""
    crash_when_promised(base, **STAGED)


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


EACH = pytest.mark.parametrize(
    ("make", "found_in"),
    [
        (finish, finished_in),
        (promise, pending_in),
        (die_with_open_staging_files, staging_files_in),
        (die_with_closed_staging_files, staging_files_in),
    ],
    ids=["finished", "pending", "open", "rolled"],
)


@pytest.mark.fault("F18")
@EACH
def test_a_changed_bit_is_found(
    tmp_path: Path, make: Callable[[Path], None], found_in: Callable[[Path], list[Path]]
) -> None:
    """In each state of its life, by its name; only where it was asked for, since all bytes are read for it."""
    make(tmp_path)
    count = len(found_in(tmp_path))
    clean = told_json("verify", tmp_path, "--checksums", code=0)
    assert clean["checksums_compared"] == count > 0
    path = found_in(tmp_path)[0]
    flip(path, 200)
    report = told_json("verify", tmp_path, "--checksums", code=1)
    (error,) = (one for one in report["findings"] if one["severity"] == "error")
    assert error["code"] == "checksum-differs"
    assert error["path"].partition("/")[0] == path.parent.name
    assert error["checkpoint_id"] > 0
    assert "CRC-32" in error["message"]
    assert report["checksums_compared"] == count
    assert told_json("verify", tmp_path, code=0)["checksums_compared"] is None


@pytest.mark.fault("F18")
@pytest.mark.parametrize("make", [die_with_open_staging_files, die_with_closed_staging_files])
def test_what_no_checkpoint_vouches_for_may_be_anything(tmp_path: Path, make: Any) -> None:
    """The tail of a staging file is never read."""
    make(tmp_path)
    for path in staging_files_in(tmp_path):
        flip(path, -1)
    assert told_json("verify", tmp_path, "--checksums", code=0)["checksums_compared"] == 2


@pytest.mark.fault("F18")
def test_parts_without_a_checksum_are_not_read(tmp_path: Path) -> None:
    """Those of row formats, which are checked by their length; and what a consumer has moved away."""
    run_to_the_end(make_sink(tmp_path / "text"))
    assert "checksums: compared=0" in told("verify", tmp_path / "text", "--checksums")
    finish(tmp_path / "moved")
    finished_in(tmp_path / "moved")[0].unlink()
    assert told_json("verify", tmp_path / "moved", "--checksums", code=0)["checksums_compared"] == 1


@pytest.mark.fault("F18")
def test_only_the_sink_that_is_asked_for_is_read(tmp_path: Path) -> None:
    """Another one's damage is not its own."""
    finish(tmp_path)
    with staged_sink(tmp_path, uid="other").local() as out:
        out.write(batch(0, 4), position=4)
    report = told_json("verify", tmp_path, "--checksums", "--uid", "other", code=0)
    assert report["checksums_compared"] == 2
    assert told_json("verify", tmp_path, "--checksums", code=0)["checksums_compared"] == 4


@pytest.mark.fault("F18")
def test_cat_tells_a_changed_bit_of_a_staging_file(tmp_path: Path) -> None:
    """After the rows, which are printed as they are read."""
    die_with_open_staging_files(tmp_path)
    path = staging_files_in(tmp_path)[0]
    (length,) = {one["valid_length"] for one in told_lines("list", tmp_path) if one["path"].endswith(path.name)}
    # Of the last row's text: every row decodes, and the last one is another.
    flip(path, length - 1)
    result = run("cat", tmp_path, str(path.relative_to(tmp_path)))
    assert result.exit_code == 1
    assert "row-0000" in result.stdout
    assert "row-0002" not in result.stdout
    assert "is not what was written" in result.stderr


@pytest.mark.fault("F18")
@pytest.mark.parametrize("die", [die_with_open_staging_files, die_with_closed_staging_files])
@pytest.mark.parametrize(("call", "number"), [("read_into", errno.EIO), ("open_existing", errno.EACCES)])
def test_a_staging_file_that_cannot_be_read_keeps_no_other_from_it(
    tmp_path: Path, die: Any, call: str, number: int
) -> None:
    """It is told as an error, for it is waited for; so is all else that is found."""
    die(tmp_path)
    (tmp_path / "foreign").touch()
    fails = FailAt(1, OSError(number, "deliberate"), only={call})
    place = Place(str(tmp_path))
    checkpoints = place.open_checkpoints()
    assert checkpoints is not None
    with checkpoints, LocalStore(str(tmp_path), calls=intercept(PosixCalls(), fails)) as base:
        report = verify(place, base, checkpoints, None, lambda _files: None, checksums=True)
    (problem,) = report.errors
    assert problem.code == "part-unreadable"
    assert problem.path in {str(path.relative_to(tmp_path)) for path in staging_files_in(tmp_path)}
    assert os.strerror(number) in problem.message
    assert problem.hint
    assert report.checksums_compared == 1
    assert "foreign" in {one.code for one in report.findings}


@pytest.mark.fault("F18")
@pytest.mark.parametrize(
    ("raised", "found"),
    [
        (PermissionError(errno.EACCES, "deliberate"), [("part-unreadable", "error")]),
        (NotReady("deliberate"), [("unreadable", "note")]),
        (FileNotFoundError("deliberate"), []),
    ],
)
def test_a_file_that_cannot_be_read_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, found: list[tuple[str, str]]
) -> None:
    """It is told, unless a consumer has moved it just now; who holds it open is waited for."""
    finish(tmp_path)
    names = [path.name for path in finished_in(tmp_path)]

    def fail(behind: Any, base: str, part: Any) -> Any:
        if part.handle.name == names[0]:
            raise raised
        return open_known(behind, base, part)

    monkeypatch.setattr(content, "open_known", fail)
    report = told_json("verify", tmp_path, "--checksums", code=int(("part-unreadable", "error") in found))
    assert [(one["code"], one["severity"]) for one in report["findings"]] == found
    assert report["checksums_compared"] == len(names) - 1
