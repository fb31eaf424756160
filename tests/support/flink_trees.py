"""Trees as Flink's BucketingSink leaves them, file by file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LINES = [f"{number:04d}\n".encode() for number in range(100)]
"""Rows of five bytes."""
DAYS_OLD = 2
FLINK = ("--adopt-layout", "flink")
MOVE_OPEN = "--quarantine-in-progress"


def rows(first: int, last: int) -> bytes:
    """Whole rows."""
    return b"".join(LINES[first:last])


def write_utf(text: str) -> bytes:
    """What ``DataOutputStream.writeUTF`` writes, for text in ASCII."""
    data = text.encode("ascii")
    return len(data).to_bytes(2, "big") + data


def put(path: Path, data: bytes) -> None:
    """A file of two days ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    then = path.stat().st_mtime - DAYS_OLD * 86_400
    os.utime(path, (then, then))


def killed_job(base: Path) -> None:
    """What a job leaves that was restored once without truncate, and then was killed.

    Rows 0 to 39 are finished; 40 to 49 are in a part that somebody was about to cut; 50 to 59 are closed; 60 on are
    open.
    """
    put(base / "d=1" / "part-0-0", rows(0, 20))
    put(base / "d=1" / "part-0-1", rows(20, 40) + b"tail of a dead attempt")
    put(base / "d=1" / ".part-0-1.crc", b"crc\0checksum")
    put(base / "d=1" / "_part-0-1.valid-length", write_utf("100"))
    put(base / "d=1" / "_part-1-0.pending", rows(40, 50) + b"00")
    put(base / "d=1" / "_part-1-0.valid-length", write_utf("50"))
    put(base / "d=2" / "_part-0-2.pending", rows(50, 60))
    put(base / "d=2" / "_part-0-3.in-progress", rows(60, 63) + b"00")
    put(base / "d=2" / "notes.txt", b"not Flink's")
    put(base / "_SUCCESS", b"")


def visible(base: Path) -> dict[str, bytes]:
    """The files that every reader sees."""
    paths = [path for path in base.rglob("part-*") if path.is_file() and "_partfile" not in path.parts]
    return {path.relative_to(base).as_posix(): path.read_bytes() for path in sorted(paths)}
