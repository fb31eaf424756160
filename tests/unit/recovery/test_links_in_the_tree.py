"""Readers follow no symbolic link below the base, whichever way they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import run, told_lines
from dead_sinks import crash_when_promised
from life_cycle import batch, finished_files, make_sink

import partfile as pf
from partfile.errors import PartMissing

if TYPE_CHECKING:
    from pathlib import Path


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
