"""What can be wrong with a part that a completed checkpoint vouches for, in one wording for every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import (
    CommitConflict,
    LeaseUnavailable,
    NotApplied,
    PartDamaged,
    PartfileError,
    PartMissing,
)

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle


def part_conflict(handle: PartHandle, reason: str) -> CommitConflict:
    """Bytes that are not ours stand where a part should be published."""
    return CommitConflict(
        f"part {handle.path_of(handle.name)!r} cannot be published: {reason}",
        hint="Nothing was replaced. Move that file away and start again; a part that is then missing says what to do.",
        path=handle.path_of(handle.name),
    )


def part_missing(handle: PartHandle, reason: str) -> PartMissing:
    """A part that a completed checkpoint vouches for is gone."""
    return PartMissing(
        f"part {handle.path_of(handle.name)!r} of {handle.valid_length} valid bytes is missing: {reason}",
        hint="Committed rows are gone: put the file back, or run once with accept_missing=True, which gives them up.",
        path=handle.path_of(handle.name),
    )


def part_too_short(handle: PartHandle, size: int) -> PartMissing:
    """A part has lost bytes that a completed checkpoint vouches for."""
    return part_missing(handle, f"only {size} bytes are left, {handle.valid_length - size} are gone")


def part_damaged(handle: PartHandle, reason: str) -> PartDamaged:
    """What a part is made of is there, and is not what a completed checkpoint vouches for."""
    return PartDamaged(
        f"part {handle.path_of(handle.name)!r} of {handle.valid_length} valid bytes is damaged: {reason}",
        hint="Bring back what was written from a backup; it was not published. Without one delete what is there, and "
        "run once with accept_missing=True, which gives its rows up.",
        path=handle.path_of(handle.name),
    )


def part_refused(handle: PartHandle, reason: str) -> LeaseUnavailable:
    """A part that this process may not append to."""
    return LeaseUnavailable(
        f"part {handle.path_of(handle.name)!r} cannot be appended to: {reason}",
        hint="Another process has it, or it was moved by hand: then put it back. A new start settles it.",
        path=handle.path_of(handle.in_progress),
    )


def part_lost(path: str, failure: str) -> NotApplied:
    """An open part whose stream has failed before."""
    return NotApplied(
        f"part {path!r} is lost to this process: {failure}",
        hint="Close it and start another part; never persist this one.",
        path=path,
    )


def part_of_another_process(path: str, owner: int, user: int) -> PartfileError:
    """An open part that was carried over a fork."""
    return PartfileError(
        f"part {path!r} was opened by process {owner} and is used by process {user}",
        hint="A part belongs to the process that opened it; open parts after the fork, in the child.",
        path=path,
    )
