"""Ceph's servers from Debian's packages: found, installed where that is allowed, or asked for."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from server_process import MissingProgram

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = ("ceph-mon", "ceph-osd", "ceph-common", "radosgw")
PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "monmaptool", "radosgw", "radosgw-admin")
INSTALL_TIMEOUT_S = 600


def ensure_ceph(say: Callable[[str], object]) -> None:
    """Install Ceph's servers unless they are there; 60 MB are fetched in about half a minute, and nothing is started.

    Args:
        say: Is told before anything is installed.

    Raises:
        MissingProgram: They are missing, and we are not root or there is no apt.
        RuntimeError: apt could not install them.
    """
    if not missing_programs():
        return
    install = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingProgram(
            f"The S3 server of Ceph needs {', '.join(missing_programs())}, and installing takes root and apt. "
            f"Install them (Debian: {install}), or set PARTFILE_SKIP=radosgw to leave it out."
        )
    with Path(tempfile.gettempdir(), "partfile-ceph.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing_programs():
            say(f"Installing Ceph's S3 server, once: {install}")
            _run("update", "-q")
            _run(*install.split()[1:], "-q", "-y")


def missing_programs() -> list[str]:
    """The programs that are not on the ``PATH``."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def _run(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_TIMEOUT_S}", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"apt-get {' '.join(arguments)} failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
