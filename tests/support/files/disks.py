"""File systems with little room, and what this process has open on one."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def open_below(directory: Path) -> set[Path]:
    """The files and directories at or below one that this process has open; others may come and go meanwhile."""
    found: set[Path] = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(link.readlink())
    return {path for path in found if path.is_relative_to(directory.resolve())}


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own, which ends with the block; skips the test where it cannot be mounted.

    Args:
        path: Where it is mounted; it is made.
        size: Of it, as ``mount`` takes it: ``1m``.
    """
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "partfile-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
