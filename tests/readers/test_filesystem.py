"""The file system that shows finished files only, and follows no symbolic link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

import partfile as pf
from partfile.errors import NotApplied, PartMissing
from partfile.readers.filesystem import ValidLengthFileSystem
from support.files.trees import sidecars, write_tree
from support.processes.command_line import run, told_lines
from support.sinks.dead import crash_when_promised
from support.sinks.life_cycle import batch, finished_files, make_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# The wrapper that shows finished files: what is not there, and that it cannot write.


class PassedBy(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """A directory whose sidecars are created while it is listed, behind the place where the listing is."""

    cachable = False
    is_first = True

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        """The first listing of all shows no sidecar."""
        found: list[Any] = super().ls(path, detail=detail, **options)
        if self.is_first and detail:
            self.is_first = False
            return [entry for entry in found if not entry["name"].endswith(".valid-length")]
        return found


def test_a_sidecar_that_a_listing_passed_by_is_found(tmp_path: Path) -> None:
    """A listing that shows the final name need not show the sidecar that was there before it; the next one does."""
    (tmp_path / "part-0.txt").write_text("valid\ngarbage")
    (tmp_path / "_part-0.txt.valid-length").write_text("6")
    shown = ValidLengthFileSystem(PassedBy(), str(tmp_path))
    assert [entry["size"] for entry in shown.ls(str(tmp_path))] == [6]


class Faltering(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """A directory that cannot say for now whether there is a sidecar; ``exists`` says no, as fsspec's own does."""

    cachable = False

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Fail for sidecars."""
        if path.endswith(".valid-length"):
            raise NotApplied(f"cannot look at {path!r}")
        found: dict[str, Any] = super().info(path, **options)
        return found

    def exists(self, path: str, **options: Any) -> bool:
        """See ``AbstractFileSystem.exists``."""
        return bool(AbstractFileSystem.exists(self, path, **options))


def test_a_sidecar_that_cannot_be_looked_at_is_not_taken_for_absent(tmp_path: Path) -> None:
    """Its file is not opened: its tail would be read as rows."""
    (tmp_path / "part-0.txt").write_text("valid\ngarbage")
    (tmp_path / "_part-0.txt.valid-length").write_text("6")
    shown = ValidLengthFileSystem(Faltering(), str(tmp_path))
    with pytest.raises(NotApplied, match="cannot look at"):
        shown.cat_file(f"{tmp_path}/part-0.txt")


class Unreachable(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """A store whose server is away."""

    cachable = False

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """Fail as a socket does."""
        raise ConnectionRefusedError(111, "Connection refused", path)


def test_a_store_that_cannot_be_asked_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Fsspec's own answer is that nothing is there, and a reader that waits for data would wait on."""
    shown = ValidLengthFileSystem(Unreachable(), str(tmp_path))
    for ask in (shown.isdir, shown.isfile, shown.exists):
        with pytest.raises(ConnectionRefusedError):
            ask(str(tmp_path))


def test_the_wrapper_shows_nothing_else(tmp_path: Path) -> None:
    """Hidden files, links and what is outside the base are not there, by whichever way they are asked for."""
    base = tmp_path / "base"
    write_tree(base, "json", None)
    (tmp_path / "secret").write_text("s")
    (base / "part-link.json").symlink_to(tmp_path / "secret")
    shown = pf.valid_length_filesystem(base)
    staged = next(iter(base.rglob("*.pending")))
    for path in (staged, sidecars(base)[0], base / "_partfile", tmp_path / "secret", base / "part-link.json"):
        assert not shown.exists(str(path))
        with pytest.raises(FileNotFoundError):
            shown.open(str(path))
    assert all(name.endswith(".json") for name in shown.glob(f"{shown.base}/**/*.*"))
    assert str(base / "part-link.json") not in shown.find(shown.base)
    assert not [name for _, directories, _ in shown.walk(shown.base) for name in directories if name[0] in "_."]


def test_the_wrapper_refuses_to_write(tmp_path: Path) -> None:
    """Every verb that would change something fails with a reason and changes nothing."""
    (tmp_path / "part-0.txt").write_text("a\n")
    shown = pf.valid_length_filesystem(tmp_path)
    path = f"{shown.base}/part-0.txt"
    writes: list[Callable[[], object]] = [
        lambda: shown.open(path, "wb"),
        lambda: shown.open(path, "a"),
        lambda: shown.pipe_file(path, b"x"),
        lambda: shown.rm(path),
        lambda: shown.mv(path, f"{path}2"),
        lambda: shown.copy(path, f"{path}2"),
        lambda: shown.touch(path),
        lambda: shown.makedirs(f"{shown.base}/d"),
    ]
    for write in writes:
        with pytest.raises(NotApplied, match="cannot be written to"):
            write()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("part-0.txt", "a\n")]


# Readers follow no symbolic link below the base, whichever way they are asked.


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the base with a file that looks like a part."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret.txt").write_text("secret\n")
    return directory


def finished_base(base: Path) -> str:
    """A base with finished parts; returns one of them."""
    with make_sink(base).local() as out:
        out.write(batch(0, 2), position=2)
    return min(finished_files(base))


@pytest.mark.parametrize("kind", ["directory", "file", "deep"])
def test_nothing_behind_a_link_is_there(tmp_path: Path, outside: Path, kind: str) -> None:
    """cat, list, read and the fsspec wrapper say alike that a file behind a link below the base is not there."""
    base = tmp_path / "out"
    finished_base(base)
    if kind == "file":
        (base / "secret.txt").symlink_to(outside / "secret.txt")
        part = "secret.txt"
    else:
        place = base / "bucket=b0" if kind == "deep" else base
        (place / "b").symlink_to(outside)
        part = str((place / "b" / "secret.txt").relative_to(base))
    for words in ((part,), (part, "--raw"), (str(base / part),)):
        result = run("cat", base, *words)
        assert (result.exit_code, result.stdout) == (2, "")
    assert not any("secret" in one["path"] for one in told_lines("list", base))
    shown = pf.valid_length_filesystem(base)
    assert not any("secret" in name for name in shown.find(shown.base))
    for call in (shown.info, shown.open, shown.ls):
        with pytest.raises(FileNotFoundError):
            call(f"{shown.base}/{part}")
    assert pf.read(base, format="text").count_rows() == 2


def test_a_base_that_is_a_link_is_read(tmp_path: Path) -> None:
    """The path of the base itself may lead through links: they are resolved once."""
    part = finished_base(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert run("cat", tmp_path / "link", part).stdout.startswith("row-000")
    assert pf.read(tmp_path / "link", format="text").count_rows() == 2


def test_a_pending_part_behind_a_link_is_not_read(tmp_path: Path) -> None:
    """include="pending" finds a promised part in real directories alone."""
    base = tmp_path / "out"
    crash_when_promised(base)
    (base / "bucket=b0").rename(tmp_path / "away")
    (base / "bucket=b0").symlink_to(tmp_path / "away")
    staged = min((tmp_path / "away").iterdir())
    result = run("cat", base, f"bucket=b0/{staged.name}")
    assert (result.exit_code, result.stdout) == (1, "")
    with pytest.raises(PartMissing):
        pf.read(base, include="pending", format="text").to_table()
