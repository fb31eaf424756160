"""A tree that another program tampers with between checkpoint and restart: its files stay, no row is lost (H2)."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from partfile.errors import PartfileError
from support.processes.command_line import run
from support.sinks.life_cycle import ROWS, assert_exactly_once, batch, continue_to, everything, long_sink, make_sink
from support.state.tampered import newest_metadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = [pytest.mark.fault("H2"), pytest.mark.timeout(240)]
VERBS = ("status --scan", "verify", "list", "recover", "recover --apply --fence", "clean --older-than 0s")
WRITTEN = 4


def seed(base: Path) -> Path:
    """A sink that crashed with two open parts; returns one of them."""
    out = long_sink(base).local().open()
    out.write(batch(0, WRITTEN), position=WRITTEN)
    out.checkpoint()
    out.close()
    return min(base.glob("bucket=*/_part-*"))


def symlink(place: Path, victim: Path) -> None:
    """A link to a file that is none of the sink's."""
    place.symlink_to(victim)


def dangling(place: Path, victim: Path) -> None:
    """A link to nothing."""
    place.symlink_to(victim.with_name("nothing"))


def pipe(place: Path, _victim: Path) -> None:
    """A FIFO, whose opening would wait for ever."""
    os.mkfifo(place)


def unix_socket(place: Path, _victim: Path) -> None:
    """A socket; its path may be too long for the usual call."""
    directory = os.open(place.parent, os.O_RDONLY)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as server:
            server.bind(f"/proc/self/fd/{directory}/s")
        (place.parent / "s").rename(place)
    finally:
        os.close(directory)


def directory(place: Path, _victim: Path) -> None:
    """A directory that is not empty."""
    place.mkdir()
    (place / "inside").write_bytes(b"not ours")


def device(place: Path, _victim: Path) -> None:
    """The null device, into which bytes vanish."""
    try:
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices, and not in every container")


def zeroes(place: Path, _victim: Path) -> None:
    """The device that never ends."""
    try:
        os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices, and not in every container")


THINGS = [symlink, dangling, pipe, unix_socket, directory, device, zeroes]


@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_file_in_a_parts_place_is_not_touched(tmp_path: Path, thing: Callable[[Path, Path], None]) -> None:
    """Starts leave the part owed and verbs pass it over, in time; when it is back, every row is there once."""
    base, victim, away = tmp_path / "base", tmp_path / "victim", tmp_path / "away"
    part = seed(base)
    victim.write_bytes(part.read_bytes() + b"more")
    content = victim.read_bytes()
    part.rename(away)
    thing(part, victim)
    for _ in range(2):
        make_sink(base).local().open().close()
        assert not list(part.parent.glob("part-*"))
    for verb in VERBS:
        result = run(verb.split()[0], base, *verb.split()[1:])
        assert isinstance(result.exception, SystemExit | None), verb
    assert victim.read_bytes() == content
    assert not victim.with_name("nothing").exists()
    assert not stat.S_ISREG(part.lstat().st_mode), "another program replaced it by a file"
    if part.is_dir():
        (part / "inside").unlink()
        part.rmdir()
    else:
        part.unlink()
    away.rename(part)
    continue_to(make_sink(base), ROWS)
    assert_exactly_once(base)


@pytest.mark.parametrize("thing", [symlink, pipe, directory, device, zeroes])
def test_what_is_no_file_in_the_place_of_metadata_is_refused(
    tmp_path: Path, thing: Callable[[Path, Path], None]
) -> None:
    """A checkpoint that is no regular file is not read, wherever it leads, and nothing is begun afresh beside it."""
    base, away = tmp_path / "base", tmp_path / "away"
    seed(base)
    metadata = newest_metadata(base)
    metadata.rename(away)
    thing(metadata, away)
    with pytest.raises(PartfileError):
        make_sink(base).local().open()
    for verb in VERBS:
        result = run(verb.split()[0], base, *verb.split()[1:])
        assert isinstance(result.exception, SystemExit | None), verb
    assert len(list(base.glob("bucket=*/_part-*.in-progress"))) == 2
    assert not list(base.glob("bucket=*/part-*"))


def test_a_hard_link_to_a_foreign_file_is_not_cut(tmp_path: Path) -> None:
    """A part whose file has a name elsewhere is published from a copy: that file keeps every byte."""
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    part = seed(base)
    with part.open("ab") as file:
        file.write(b"what another program added\n")
    os.link(part, elsewhere)
    content = elsewhere.read_bytes()
    continue_to(make_sink(base), ROWS)
    assert_exactly_once(base)
    assert elsewhere.read_bytes() == content


def test_nothing_goes_through_a_bucket_that_became_a_link(tmp_path: Path) -> None:
    """Parts that a link leads to are left as they are, and owed until the directory is back."""
    base, away = tmp_path / "base", tmp_path / "away"
    bucket = seed(base).parent
    bucket.rename(away)
    bucket.symlink_to(away, target_is_directory=True)
    before = everything(away)
    make_sink(base).local().open().close()
    for verb in VERBS:
        run(verb.split()[0], base, *verb.split()[1:])
    assert everything(away) == before
    bucket.unlink()
    away.rename(bucket)
    continue_to(make_sink(base), ROWS)
    assert_exactly_once(base)


def test_a_base_behind_a_link_is_the_directory_that_it_leads_to(tmp_path: Path) -> None:
    """The base's own path may have links in it, which are followed once: two ways to one base are one sink."""
    base, way = tmp_path / "base", tmp_path / "way"
    seed(base)
    way.symlink_to(base)
    continue_to(make_sink(way), ROWS)
    assert_exactly_once(base)
