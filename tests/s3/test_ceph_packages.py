"""How Ceph's servers come onto a machine: by apt where that is allowed, else by a sentence that says how."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from ceph_packages import PACKAGES, PROGRAMS, ensure_ceph
from server_process import MissingProgram

if TYPE_CHECKING:
    from pathlib import Path

APT = """#!/bin/sh
echo "$@" >> {directory}/called
case "$*" in *install*) {install} ;; esac
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only directory of the ``PATH``, on a machine whose root we are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return tmp_path


def give_apt(machine: Path, install: str) -> None:
    """Put an ``apt-get`` there that notes how it is called, and runs a command to install."""
    apt = machine / "apt-get"
    apt.write_text(APT.format(directory=machine, install=install))
    apt.chmod(0o755)


def test_as_root_with_apt_it_is_installed_once_and_said_before(machine: Path) -> None:
    """The lists of packages are fetched first; a second call finds everything and does nothing."""
    give_apt(machine, f"for name in {' '.join(PROGRAMS)}; do /bin/cp $0 {machine}/$name; done")
    said: list[str] = []
    ensure_ceph(said.append)
    ensure_ceph(said.append)
    update, install = (machine / "called").read_text().splitlines()
    assert " update" in update
    assert f" install --no-install-recommends {' '.join(PACKAGES)} " in install
    assert len(said) == 1
    assert " ".join(PACKAGES) in said[0]


def test_a_failed_installation_shows_what_apt_said(machine: Path) -> None:
    """The reason is apt's own."""
    give_apt(machine, "echo no such package; exit 100")
    with pytest.raises(RuntimeError, match="no such package"):
        ensure_ceph(lambda _text: None)


@pytest.mark.parametrize("user", [0, 1000])
def test_where_it_cannot_be_installed_the_message_says_what_to_do(
    machine: Path, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    """Without apt, or without being root, nothing is called, and there is a way to do without."""
    if user:
        give_apt(machine, "exit 100")
        monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(MissingProgram, match=r"needs ceph-mon.*apt-get install.* radosgw.*PARTFILE_SKIP=radosgw"):
        ensure_ceph(lambda _text: None)
    assert not (machine / "called").exists()
