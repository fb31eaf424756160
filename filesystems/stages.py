"""Stages: parts that are read back and encoded, and that no verb may show to readers (S5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotApplied, PartfileError
from partfile.filesystems.part_errors import part_missing
from partfile.filesystems.part_names import check_handle

if TYPE_CHECKING:
    from partfile.filesystems.errors import PartMissing
    from partfile.filesystems.port import PartHandle


def checked_for_publishing(handle: PartHandle) -> PartHandle:
    """Return the handle of a part that may become pending and finished.

    Raises:
        ConfigError: One of its names leaves its bucket.
        PartfileError: It is a stage.
    """
    handle = check_handle(handle)
    if handle.is_stage:
        raise PartfileError(
            f"stage {handle.path_of(handle.in_progress)!r} cannot be settled or published: no reader of "
            f"{handle.path_of(handle.name)!r} could read it",
            hint="Encode it into a part of its own, and publish that one.",
            path=handle.path_of(handle.in_progress),
        )
    return handle


def checked_stage(handle: PartHandle) -> PartHandle:
    """Return the handle of a stage.

    Raises:
        ConfigError: One of its names leaves its bucket.
        PartfileError: It is no stage.
    """
    handle = check_handle(handle)
    if not handle.is_stage:
        raise PartfileError(
            f"part {handle.path_of(handle.name)!r} is no stage, so it is not read before it is finished",
            path=handle.path_of(handle.in_progress),
        )
    return handle


def stage_gone(handle: PartHandle) -> PartMissing:
    """A stage that is not under its only name."""
    return part_missing(handle, f"its stage {handle.in_progress!r} is not there")


def stage_too_short(handle: PartHandle, size: int) -> PartMissing:
    """A stage that has lost bytes which a completed checkpoint vouches for."""
    return part_missing(handle, f"its stage {handle.in_progress!r} has only {size} bytes")


def stages_refused(handle: PartHandle, base: str) -> NotApplied:
    """A store whose stages nobody can read back."""
    return NotApplied(
        f"stage {handle.path_of(handle.in_progress)!r} cannot be read back from {base!r}",
        hint="Let columnar parts roll at every checkpoint there.",
        path=handle.path_of(handle.in_progress),
    )
