"""Settle, publish and discard on a file system of fsspec (S3, S5, S6).

A part is one staged file that never changes, so there is nothing to cut. A finished file is known again by its length
and its CRC-32: whatever publishing answers short of success, a look at the final name decides. Any number of
coordinators may publish one part at once: each gives the name to the same bytes.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import FileTooLarge, NotFound, PartfileError, StoreError
from partfile.filesystems.fsspec_probe import learn_way
from partfile.filesystems.fsspec_schemes import Way
from partfile.filesystems.fsspec_staging import FsspecStaging
from partfile.filesystems.part_errors import part_conflict, part_missing, part_too_short

if TYPE_CHECKING:
    from partfile.filesystems.fsspec_access import FsspecAccess
    from partfile.filesystems.port import PartHandle

logger = logging.getLogger("partfile")
_MOST_DIGITS = 20
_LENGTH = re.compile(rb"0|[1-9][0-9]*")


def settle_part(access: FsspecAccess, handle: PartHandle) -> PartHandle:
    """See to it that the part can be published; see ``PartStore.settle``."""
    if not _is_finished(access, handle) and not _staged(access, handle) and not _is_finished(access, handle):
        raise _gone(handle)
    return handle


def publish_part(access: FsspecAccess, handle: PartHandle) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    _check_sidecar(access, handle)
    staging = FsspecStaging.of(handle)
    if _is_finished(access, handle):
        _drop_same_file(access, handle, staging)
        return
    if staging is None or not _staged(access, handle):
        # Another coordinator may have published it since the look at its name.
        if _is_finished(access, handle):
            return
        raise _gone(handle)
    try:
        _give_name(access, handle, staging)
    except StoreError as error:
        if not _is_finished(access, handle):
            raise _gone(handle) if isinstance(error, NotFound) else error from None
    else:
        if learn_way(access) is Way.COPY and not _is_finished(access, handle):
            raise part_missing(handle, "it was copied, and is not there")
    _drop_staged(access, handle, staging)


def discard_part(access: FsspecAccess, handle: PartHandle) -> bool:
    """Delete what is staged of a part; see ``PartStore.discard``. There is no lease: only age tells an orphan."""
    staging = FsspecStaging.of(handle)
    names = {handle.in_progress, handle.pending, *((staging.file, *staging.spent) if staging else ())}
    removed = [access.remove(handle.path_of(name)) for name in sorted(names)]
    return any(removed)


def _give_name(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging) -> None:
    source, name = handle.path_of(staging.file), handle.path_of(handle.name)
    match learn_way(access):
        case Way.LINK:
            access.link(source, name)
        case Way.CREATE:
            data = access.read(source, handle.valid_length)
            if crc32_of(data) != staging.crc32:
                raise part_missing(handle, "its staged file is not what was written")
            access.create(name, data)
        case Way.RENAME:
            access.rename(source, name)
        case Way.COPY:
            access.copy(source, name)


def _is_finished(access: FsspecAccess, handle: PartHandle) -> bool:
    """Whether the finished file is there and ours.

    Raises:
        CommitConflict: It is there, and is another one.
    """
    path = handle.path_of(handle.name)
    size = access.size(path)
    if size is None:
        return False
    if size != handle.valid_length:
        raise part_conflict(handle, f"it is there with {size} bytes, the checkpoint says {handle.valid_length}")
    staging = FsspecStaging.of(handle)
    if staging is not None and access.checksum(path, size) != staging.crc32:
        raise part_conflict(handle, f"a file of {size} bytes is there that is not this part")
    return True


def _staged(access: FsspecAccess, handle: PartHandle) -> bool:
    staging = FsspecStaging.of(handle)
    size = None if staging is None else access.size(handle.path_of(staging.file))
    if size is None:
        return False
    if size < handle.valid_length:
        raise part_too_short(handle, size)
    if size > handle.valid_length:
        raise part_missing(handle, f"its staged file has {size} bytes, so it is not what was written")
    return True


def _drop_same_file(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging | None) -> None:
    """Delete the staged name where it is another name of the finished file; a copy of it is the cleaner's."""
    if staging is None or access.scheme.way is not Way.LINK:
        return
    staged, finished = access.info(handle.path_of(staging.file)), access.info(handle.path_of(handle.name))
    if staged and finished and staged["ino"] == finished["ino"]:
        _drop_staged(access, handle, staging)


def _drop_staged(access: FsspecAccess, handle: PartHandle, staging: FsspecStaging) -> None:
    """Delete what a finished part was staged in. It is published whether that works or not."""
    try:
        for name in (staging.file, *staging.spent):
            access.remove(handle.path_of(name))
    except PartfileError as error:
        logger.warning(
            "part %r is published; its staged file stays, for the cleaner: %s", handle.path_of(handle.name), error
        )


def _check_sidecar(access: FsspecAccess, handle: PartHandle) -> None:
    """No sidecar is ever written here. Readers would believe one that is there."""
    try:
        content = access.read(handle.path_of(handle.sidecar), _MOST_DIGITS)
    except NotFound:
        return
    except FileTooLarge:
        content = b""
    if not _LENGTH.fullmatch(content) or int(content) != handle.valid_length:
        raise part_conflict(handle, f"its sidecar {handle.sidecar!r} says {content!r}, not {handle.valid_length}")


def _gone(handle: PartHandle) -> Exception:
    return part_missing(handle, "its staged file is gone, and no finished file is there")
