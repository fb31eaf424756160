"""Side objects: bytes of parts that are too few for an upload part, until they are more or the part is finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import FileTooLarge, NotFound
from partfile.filesystems.part_errors import part_damaged, part_missing
from partfile.filesystems.s3_process import this_process
from partfile.filesystems.s3_staging import SideObject, owner_metadata, part_id, side_path
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partfile.filesystems.errors import PartDamaged
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access


def write_side(access: S3Access, handle: PartHandle, data: bytes) -> SideObject:
    """Write bytes under a name that carries this writer's own token, so that no other attempt meets it (S4)."""
    name = f"{part_id(handle)}.{new_token()}"
    access.put(side_path(name), data, owner_metadata(handle))
    return SideObject(name=name, size_bytes=len(data), crc32=crc32_of(data))


def read_sides(access: S3Access, handle: PartHandle, sides: Sequence[SideObject]) -> bytes:
    """Read side objects and join them.

    Raises:
        NotFound: One is not there.
        PartDamaged: One is not what was written.
    """
    if len(sides) == 1:
        return _read(access, handle, sides[0])
    return b"".join(this_process().pool.map(lambda side: _read(access, handle, side), sides))


def committed_bytes(access: S3Access, handle: PartHandle, sides: Sequence[SideObject]) -> bytes:
    """The same for who reads what a checkpoint vouches for: to him a side object that is not there is lost.

    Raises:
        PartMissing: One is not there.
        PartDamaged: One is not what was written.
    """
    try:
        return read_sides(access, handle, sides)
    except NotFound as error:
        raise part_missing(handle, error.message) from error


def _read(access: S3Access, handle: PartHandle, side: SideObject) -> bytes:
    path = side_path(side.name)
    try:
        data = access.get(path, side.size_bytes)
    except FileTooLarge as error:
        raise _damaged(access, handle, side) from error
    except NotFound as error:
        raise NotFound(f"side object {access.shown(path)!r} is not there", path=path) from error
    if len(data) != side.size_bytes or crc32_of(data) != side.crc32:
        raise _damaged(access, handle, side)
    return data


def _damaged(access: S3Access, handle: PartHandle, side: SideObject) -> PartDamaged:
    return part_damaged(handle, f"side object {access.shown(side_path(side.name))!r} is not what was written")
