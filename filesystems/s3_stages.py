"""Stages on S3, read from their side objects and discarded with all that ever belonged to them."""

from __future__ import annotations

import io
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import SnapshotCorrupt
from partfile.filesystems.s3_sides import committed_bytes
from partfile.filesystems.s3_staging import SIDE_DIRECTORY, S3Staging, claim_path, part_id, side_path
from partfile.filesystems.seekable_file import SeekableFile
from partfile.filesystems.stages import stage_gone, stage_too_short

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_staging import SideObject

_AT_ONCE_BYTES = 8 << 20
"""Small side objects are read several at a time, up to so many bytes."""
_BUFFER_BYTES = 1 << 16


def staging_of_stage(handle: PartHandle) -> S3Staging | None:
    """What a handle says of a stage; None if it was never created on S3.

    Raises:
        SnapshotCorrupt: It is not what this store writes of a stage.
    """
    staging = S3Staging.of(handle)
    if staging is None:
        return None
    own = f"{part_id(handle)}."
    if staging.upload is not None or staging.spent or not all(side.name.startswith(own) for side in staging.sides):
        raise SnapshotCorrupt(f"stage {handle.in_progress!r} has an upload, or side objects that are not its own")
    return staging


def open_stage(access: S3Access, handle: PartHandle) -> io.BufferedReader:
    """Open a stage to read its valid bytes; see ``PartStore.open_stage``. Asks nothing of S3 before it is read."""
    staging = staging_of_stage(handle)
    if staging is None:
        raise stage_gone(handle)
    if staging.size_bytes < handle.valid_length:
        raise stage_too_short(handle, staging.size_bytes)
    return io.BufferedReader(_StageFile(access, handle, staging), _BUFFER_BYTES)


def discard_stage(access: S3Access, handle: PartHandle) -> bool:
    """Delete every side object of a stage, those of older versions and of others included, and its claims."""
    staging = staging_of_stage(handle) or S3Staging()
    # What was merged is in no handle, so that handles stay small; but its name says whose it is.
    pages = access.pages_beginning(f"{SIDE_DIRECTORY}/{part_id(handle)}.")
    found = {access.relative(one.key) for page in pages for one in page.objects}
    named = {side_path(side.name) for side in staging.sides}
    claims = [claim_path(handle, number) for number in range(staging.claims + 1)]
    access.delete_many([*sorted(found | named), *claims])
    return bool(found)


class _StageFile(SeekableFile):
    """The valid bytes of a stage: of its side objects a few are held at a time.

    Args:
        access: The store's objects.
        handle: The stage.
        staging: What it is made of.

    Raises:
        PartMissing: On reading a side object that is gone.
        PartDamaged: On reading one that is not what was written.
    """

    def __init__(self, access: S3Access, handle: PartHandle, staging: S3Staging) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._access = access
        self._handle = handle
        self._sides = staging.sides
        self._starts = list(accumulate((side.size_bytes for side in self._sides), initial=0))
        self._held = b""
        self._held_from = 0

    @property
    def _end(self) -> int:
        return self._handle.valid_length

    def readinto(self, buffer: Any) -> int:
        """Read on, at most to the valid length."""
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._end - self._position)
        if count <= 0:
            return 0
        if not 0 <= self._position - self._held_from < len(self._held):
            self._load()
        start = self._position - self._held_from
        data = self._held[start : start + count]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Let go of what is held; may be called twice."""
        self._held = b""
        super().close()

    def _load(self) -> None:
        """Hold the side object of the position, and those after it that are small."""
        first = bisect_right(self._starts, self._position) - 1
        # Not twice as many for a moment.
        self._held = b""
        self._held_from = self._starts[first]
        self._held = committed_bytes(self._access, self._handle, self._together(first))

    def _together(self, first: int) -> tuple[SideObject, ...]:
        last = first + 1
        while last < len(self._sides) and self._starts[last + 1] - self._starts[first] <= _AT_ONCE_BYTES:
            last += 1
        return self._sides[first:last]
