"""``partfile list``: every part and file with what is known of it, filtered, streamed and in pages."""

from __future__ import annotations

import errno
import os
import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.recovery.inspect.files import KnownChain, PartIndex, SeenBase
from partfile.recovery.inspect.places import Job
from partfile.recovery.inspect.tree import Filters, listed, page
from partfile.stores.base import StoredFile
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from support.files.trees import sidecars, write_tree
from support.processes.command_line import run, told, told_json, told_lines
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import (
    ROWS,
    batch,
    everything,
    in_child,
    long_sink,
    make_sink,
    run_to_the_end,
    seed_with_a_tail,
    stopped_with_savepoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def by_state(base: Path, *words: str) -> dict[str, list[dict[str, Any]]]:
    """The listed files by their states."""
    found: dict[str, list[dict[str, Any]]] = {}
    for part in told_lines("list", base, *words):
        found.setdefault(part["state"], []).append(part)
    return found


def test_each_part_has_its_facts(tmp_path: Path) -> None:
    """Open parts show the size they have, the length that counts, bucket, checkpoint, subtask and sink."""
    seed_with_a_tail(tmp_path)
    (first, second) = sorted(by_state(tmp_path)["in-progress"], key=lambda part: str(part["path"]))
    assert (first["bucket"], first["valid_length"], first["size_bytes"]) == ("bucket=b0", 18, 36)
    assert (second["bucket"], second["valid_length"], second["size_bytes"]) == ("bucket=b1", 18, 27)
    for part in (first, second):
        assert (part["checkpoint_id"], part["subtask"], part["job"], part["is_current"]) == (2, 0, "life", True)
        assert part["age_s"] < 3600


def test_every_file_is_listed_once_in_its_state(tmp_path: Path) -> None:
    """Finished, pending, orphan and foreign files are told apart, and the states can be chosen."""
    crash_when_promised(tmp_path)
    with make_sink(tmp_path, uid="other").local() as out:
        out.write(batch(0, 4), position=4)
    pending = next(path for path in (tmp_path / "bucket=b1").glob("_part-*"))
    pending.with_name(pending.name.replace(pending.name.split(".")[2], "e" * 32)).write_bytes(b"lost")
    (tmp_path / "notes.txt").write_text("mine")
    found = by_state(tmp_path)
    on_disk = [path for path in tmp_path.rglob("*") if path.is_file() and "_partfile" not in path.parts]
    assert sum(map(len, found.values())) == len(on_disk)
    assert {state: len(parts) for state, parts in found.items() if state in {"orphan", "foreign"}} == {
        "orphan": 1,
        "foreign": 1,
    }
    assert {part["job"] for part in found["finished"]} == {"other"}
    assert {part["job"] for part in found["pending"]} == {"life"}
    assert set(by_state(tmp_path, "--state", "orphan", "--state", "finished")) == {"orphan", "finished"}
    assert set(by_state(tmp_path, "--uid", "other")) == {"finished"}


def test_filters_take_what_they_say(tmp_path: Path) -> None:
    """A bucket, a size and an age leave the others out."""
    seed_with_a_tail(tmp_path)
    assert {part["bucket"] for part in told_lines("list", tmp_path, "--bucket", "bucket=b1")} == {"bucket=b1"}
    assert {part["size_bytes"] for part in told_lines("list", tmp_path, "--min-bytes", "30")} == {36}
    old = next((tmp_path / "bucket=b0").glob("_part-*"))
    os.utime(old, (1, 1))
    (part,) = told_lines("list", tmp_path, "--older-than", "24h")
    assert part["path"] == f"bucket=b0/{old.name}"
    assert told("list", tmp_path, "--bucket", "no/such").startswith("no file")


def test_pages_cover_everything_once(tmp_path: Path) -> None:
    """The last path of a page begins the next; together they are the whole list, by path."""
    run_to_the_end(make_sink(tmp_path), rows=40)
    everything = sorted(str(part["path"]) for part in told_lines("list", tmp_path))
    seen: list[str] = []
    while lines := told_lines("list", tmp_path, "--limit", "4", "--after", seen[-1] if seen else ""):
        assert len(lines) <= 4
        seen += [str(part["path"]) for part in lines]
    assert seen == everything
    assert len(everything) > 8


def test_sidecars_show_their_length_and_whether_they_are_alone(tmp_path: Path) -> None:
    """A sidecar is listed with the length in it; one whose part is gone is told apart."""
    write_tree(tmp_path, "text", None)
    lengths = {str(path.relative_to(tmp_path)): int(path.read_text()) for path in sidecars(tmp_path)}
    found = {str(part["path"]): part["valid_length"] for part in by_state(tmp_path)["sidecar"]}
    assert found == lengths
    first = sidecars(tmp_path)[0]
    first.with_name(first.name.removeprefix("_").removesuffix(".valid-length")).unlink()
    (alone,) = by_state(tmp_path)["lone-sidecar"]
    assert alone["path"] == str(first.relative_to(tmp_path))


def test_a_part_that_is_gone_is_listed_as_missing(tmp_path: Path) -> None:
    """What the newest checkpoint vouches for and is not found is listed by its final path, without a size."""
    seed_with_a_tail(tmp_path)
    next((tmp_path / "bucket=b0").glob("_part-*")).unlink()
    (missing,) = by_state(tmp_path)["missing"]
    assert (missing["bucket"], missing["size_bytes"], missing["valid_length"]) == ("bucket=b0", None, 18)


@pytest.mark.parametrize("words", [("--state", "stuck"), ("--bucket", "../x"), ("--limit", "0"), ("--min-bytes", "x")])
def test_a_filter_that_cannot_be_meant_is_usage(tmp_path: Path, words: tuple[str, str]) -> None:
    """An unknown state, a bucket outside the base or a bad number ends with 2."""
    assert run("list", tmp_path, *words).exit_code == 2


class HugeStore(LocalStore):
    """A tree of many finished files that are nowhere."""

    files = 50_000

    def list(self, directory: str = "") -> Iterator[StoredFile]:
        """One after the other, in no order."""
        for number in range(self.files):
            path = f"{directory}day={number % 365}/part-0a1b2c3d-0-{number * 7919 % self.files}.json"
            yield StoredFile(path=path, size=1, modified_at_ms=0)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path) -> None:
    """A stream and a page hold a bounded number of files, however many there are."""
    seen = SeenBase((), PartIndex(chains={"0a1b2c3d": KnownChain(Job("huge"), HugeStore.files)}))
    with LocalStore(str(tmp_path)) as store:
        huge = HugeStore(store.base)

        def files() -> Iterator[Any]:
            return listed(seen, huge, None, Filters(), now_ms=0, step=lambda _steps: None, unread=[])

        tracemalloc.start()
        assert sum(1 for _ in files()) == HugeStore.files
        first = page(files(), "", 100)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
        tracemalloc.stop()
    assert [part.path for part in first] == sorted(part.path for part in first)
    assert len(first) == 100


# One entry that is no file where a file should be: it is told, and every verb still says what it knows.


def seed(base: Path) -> Path:
    """A dead sink with four links; returns the newest."""

    def die() -> None:
        out = long_sink(base, retained_checkpoints=9).local().open()
        for first in range(3):
            out.write(batch(first, 1), position=first + 1)
            out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    return base / "_partfile" / "life" / "chk-4" / "_metadata"


@pytest.mark.parametrize("thing", ["directory", "pipe", "link"])
@pytest.mark.parametrize("number", [2, 4])
def test_something_else_in_the_place_of_metadata(tmp_path: Path, thing: str, number: int) -> None:
    """No verb ends as if the store could not be reached; what is damaged is a finding."""
    base = tmp_path / "out"
    place = seed(base).parents[1] / f"chk-{number}" / "_metadata"
    place.rename(tmp_path / "away")
    if thing == "directory":
        place.mkdir()
    elif thing == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "away")
    before = everything(base)
    for verb in ("status", "checkpoints", "list", "verify", "clean", "recover"):
        result = run(verb, base)
        assert result.exit_code in ({0, 1} if verb == "list" else {1}), f"{verb}: {result.stdout}{result.stderr}"
    assert everything(base) == before


@pytest.mark.parametrize("thing", ["directory", "pipe", "link"])
@pytest.mark.parametrize("is_newest", [True, False])
def test_something_else_in_the_place_of_a_state_file(tmp_path: Path, thing: str, is_newest: bool) -> None:
    """It is a problem of that sink alone: no verb ends as if the store could not be read, and another sink is shown."""
    base = tmp_path / "out"

    def die() -> None:
        for uid, inline_bytes in (("big", 0), ("good", 9999)):
            sink = long_sink(base, uid=uid, retained_checkpoints=9, inline_threshold_bytes=inline_bytes)
            out = sink.local().open()
            for first in range(2):
                out.write(batch(first, 1), position=first + 1)
                out.checkpoint()
        os._exit(0)

    assert in_child(die) == 0
    files = sorted((base / "_partfile" / "big").rglob("*.state"), key=lambda path: path.parent.name)
    place = files[-1 if is_newest else 0]
    place.rename(tmp_path / "away")
    if thing == "directory":
        place.mkdir()
    elif thing == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(tmp_path / "away")
    before = everything(base)
    for verb in ("status", "checkpoints", "list", "verify", "clean", "recover"):
        result = run(verb, base, "--json")
        assert result.exit_code in {0, 1}, f"{verb}: {result.stdout}{result.stderr}"
        assert "good" in result.stdout or verb == "clean", verb
    found = told_json("verify", base, code=1)["findings"]
    assert [one["job"] for one in found if "something else than a file" in one["message"]][:1] == ["big"]
    assert everything(base) == before


@pytest.mark.fault("H3", "H9")
@pytest.mark.parametrize("name", [b"new\nline", b"tab\t", b"esc\x1b[31m", b"bad\xff", b"_\x7f"])
def test_a_directory_that_no_part_can_be_in(tmp_path: Path, name: bytes) -> None:
    """It is another program's: passed over and, where its name can be written, told; every verb and reader goes on."""
    base = tmp_path / "out"
    run_to_the_end(make_sink(base))
    odd = base / os.fsdecode(name)
    odd.mkdir()
    (odd / "notes.txt").write_text("row-9999\n")
    for words in (("status", "--scan"), ("list",), ("verify",), ("clean",), ("recover", "--adopt-layout", "flink")):
        result = run(words[0], base, *words[1:])
        assert result.exit_code == 0, f"{words}: {result.stdout}{result.stderr}"
        assert ("is passed over: no part can be in one" in result.stderr) is (name != b"bad\xff")
        assert "\x1b" not in result.stderr
    if name == b"bad\xff":
        assert pf.read(base).count_rows() == ROWS


def test_something_else_among_savepoints(tmp_path: Path) -> None:
    """A symbolic link that is called like a savepoint has its problem told; the others are listed."""
    location = stopped_with_savepoint(tmp_path)
    (tmp_path / "savepoints" / "savepoint-x-000000000000").symlink_to(location)
    found = told_json("savepoint", "list", tmp_path / "savepoints", code=1)["savepoints"]
    assert sorted(bool(one["problem"]) for one in found) == [False, True]


@pytest.mark.parametrize("name", ["README", "notes.txt", "link"])
def test_something_else_among_the_directories_of_sinks(tmp_path: Path, name: str) -> None:
    """A file or a symbolic link in ``_partfile`` is passed by, as the sink does; verify notes it."""
    base = tmp_path / "out"
    seed(base)
    if name == "link":
        (tmp_path / "elsewhere").mkdir()
        (base / "_partfile" / name).symlink_to(tmp_path / "elsewhere")
    else:
        (base / "_partfile" / name).write_text("foreign")
    for verb in ("status", "list", "checkpoints", "verify", "clean", "recover"):
        result = run(verb, base)
        assert result.exit_code in {0, 1}, f"{verb}: {result.stdout}{result.stderr}"
    found = [one["message"] for one in told_json("verify", base)["findings"] if one["code"] == "in-the-way"]
    assert len(found) == 1
    assert name in found[0]


def test_a_directory_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``lost+found`` of a mount point is told and passed over; what only reads goes on, and clean says so."""
    base = tmp_path / "out"
    seed(base)
    (base / "lost+found").mkdir()
    opened = PosixCalls.open_directory

    def refusing(calls: PosixCalls, directory: int, segment: str) -> int:
        # Root, which may run this test, is refused nothing.
        if segment == "lost+found":
            raise PermissionError(errno.EACCES, "Permission denied", segment)
        return opened(calls, directory, segment)

    monkeypatch.setattr(PosixCalls, "open_directory", refusing)
    for words in (("list",), ("clean",), ("status", "--scan")):
        result = run(words[0], base, *words[1:])
        assert result.exit_code in {0, 1}, result.stderr
        assert "lost+found" in result.stderr
    (note,) = [one for one in told_json("verify", base)["findings"] if one["code"] == "unreadable"]
    assert (note["path"], note["severity"]) == ("lost+found", "note")
    assert told_json("clean", base)["plan"]["unreadable"] == ["lost+found"]


def test_names_that_are_no_utf8_are_told(tmp_path: Path) -> None:
    """``list`` leaves a file out whose name it cannot print, and says that it did."""
    base = tmp_path / "out"
    seed(base)
    (base / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    result = run("list", base)
    assert result.exit_code == 0
    assert not re.search(r"\bcaf", result.stdout)
    assert "1 names in '.' are not UTF-8" in result.stderr
