"""One entry that is no file where a file should be: it is told, and every verb still says what it knows."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

import partfile as pf
from partfile.stores.local.posix import PosixCalls
from support.command_line import run, told_json
from support.life_cycle import (
    ROWS,
    batch,
    everything,
    in_child,
    long_sink,
    make_sink,
    run_to_the_end,
    stopped_with_savepoint,
)

if TYPE_CHECKING:
    from pathlib import Path


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
    assert [line for line in result.stdout.splitlines() if "caf" in line and ".txt" in line] == []
    assert "1 names in '.' are not UTF-8" in result.stderr
