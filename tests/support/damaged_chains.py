"""A chain whose newest checkpoint is damaged, as tests make it and look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from life_cycle import batch, long_sink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

BACK: dict[str, Any] = {"accept_newer": True, "retained_checkpoints": 9}
"""Options of a sink that goes back whatever has come since."""


def chk(base: Path, checkpoint_id: int) -> Path:
    return base / "_partfile" / "life" / f"chk-{checkpoint_id}"


def newest_id(base: Path) -> int:
    return max(int(path.parent.name[4:]) for path in chk(base, 0).parent.glob("chk-*/_metadata"))


def damage(base: Path, checkpoint_id: int) -> bytes:
    """Cut a link; returns what is left."""
    path = chk(base, checkpoint_id) / "_metadata"
    path.write_bytes(path.read_bytes()[:-9])
    return path.read_bytes()


def seed(base: Path, *, is_published: bool = False) -> Path:
    """Rows 0 to 3 in open parts at ``chk-2``, which is returned; then rows 4 to 6, perhaps published; damaged."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    out.checkpoint()
    if is_published:
        out.finish()
    out.close()
    damage(base, newest_id(base))
    return chk(base, 2)


def expected(rows: int, doubled: Iterable[int] = ()) -> dict[str, int]:
    return {f"row-{number:04d}": 2 if number in doubled else 1 for number in range(rows)}


def ended(base: Path) -> None:
    """Rows 0 to 3 in open parts at ``chk-2``; then a clean end."""
    out = long_sink(base, retained_checkpoints=9).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.finish()
    out.close()
