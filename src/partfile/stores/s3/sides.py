"""Side objects: what S3 holds of a part beside its upload, and how a staging file is read from them."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from partfile.errors import FileTooLarge, NotFound, SnapshotCorrupt
from partfile.stores.checksums import crc32_of
from partfile.stores.parts import SeekableFile, part_damaged, part_missing
from partfile.stores.paths import new_token
from partfile.stores.s3.client import this_process
from partfile.stores.s3.handle import (
    S3Staging,
    SideObject,
    owner_metadata,
    part_id,
    side_path,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.stores.base import PartHandle
    from partfile.stores.s3.requests import S3Access


_AT_ONCE_BYTES = 8 << 20
"""Small side objects are read several at a time, up to so many bytes."""
BUFFER_BYTES = 1 << 16


class SideObjects:
    """The side objects of a store's parts. Each has its checksum in the handle that names it.

    Args:
        access: The store's objects.
    """

    def __init__(self, access: S3Access) -> None:
        self._access = access

    def write(self, handle: PartHandle, data: bytes) -> SideObject:
        """Write bytes under a name that carries this writer's own token, so that no other attempt meets it (R4)."""
        name = f"{part_id(handle)}.{new_token()}"
        self._access.put(side_path(name), data, owner_metadata(handle))
        return SideObject(name=name, size_bytes=len(data), crc32=crc32_of(data))

    def read(self, handle: PartHandle, sides: Sequence[SideObject]) -> bytes:
        """Read side objects and join them.

        Raises:
            NotFound: One is not there.
            PartDamaged: One is not what was written.
        """
        if len(sides) == 1:
            return self._read_one(handle, sides[0])
        return b"".join(this_process().pool.map(lambda side: self._read_one(handle, side), sides))

    def read_committed(self, handle: PartHandle, sides: Sequence[SideObject]) -> bytes:
        """Read side objects that a checkpoint vouches for, and join them.

        Raises:
            PartMissing: One is not there.
            PartDamaged: One is not what was written.
        """
        try:
            return self.read(handle, sides)
        except NotFound as error:
            raise part_missing(handle, error.message) from error

    def _read_one(self, handle: PartHandle, side: SideObject) -> bytes:
        path = side_path(side.name)
        shown = self._access.shown(path)
        damaged = part_damaged(handle, f"side object {shown!r} is not what was written")
        try:
            data = self._access.get(path, side.size_bytes)
        except FileTooLarge as error:
            raise damaged from error
        except NotFound as error:
            raise NotFound(f"side object {shown!r} is not there", path=path) from error
        if len(data) != side.size_bytes or crc32_of(data) != side.crc32:
            raise damaged
        return data


def staging_of_staging_file(handle: PartHandle) -> S3Staging | None:
    """The staging in the handle of a staging file; None if it was never created on S3.

    Raises:
        SnapshotCorrupt: It is not what this store writes of a staging file.
    """
    staging = S3Staging.of(handle)
    if staging is None:
        return None
    own = f"{part_id(handle)}."
    if staging.upload is not None or staging.spent or not all(side.name.startswith(own) for side in staging.sides):
        raise SnapshotCorrupt(
            f"staging file {handle.in_progress!r} has an upload, or side objects that are not its own"
        )
    return staging


class StagingFileReader(SeekableFile):
    """The valid bytes of a staging file: of its side objects a few are held at a time.

    Args:
        sides: The store's side objects.
        handle: The staging file.
        staging: What it is made of.

    Raises:
        PartMissing: On reading a side object that is gone.
        PartDamaged: On reading one that is not what was written.
    """

    def __init__(self, sides: SideObjects, handle: PartHandle, staging: S3Staging) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._sides = sides
        self._handle = handle
        self._named = staging.sides
        self._starts = list(accumulate((side.size_bytes for side in self._named), initial=0))
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
        self._held = self._sides.read_committed(self._handle, self._together(first))

    def _together(self, first: int) -> tuple[SideObject, ...]:
        last = first + 1
        while last < len(self._named) and self._starts[last + 1] - self._starts[first] <= _AT_ONCE_BYTES:
            last += 1
        return self._named[first:last]
