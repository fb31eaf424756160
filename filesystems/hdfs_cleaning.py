"""Taking files away on HDFS, for the cleaner alone: one literal name at a time, after taking its lease (S6)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import LeaseUnavailable, NotFound
from partfile.filesystems.hdfs_lease import close_durable
from partfile.filesystems.hdfs_names import rename_staged
from partfile.filesystems.part_names import rewritten, split_path

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.port import PartHandle


def discard_part(access: HdfsAccess, handle: PartHandle) -> bool:
    """Delete the staged names of a part after taking its lease; see ``PartStore.discard``."""
    # In the order in which a part moves, so that none is missed.
    names = (handle.in_progress, handle.pending, rewritten(handle).pending)
    taken = [take_away(access, handle.path_of(name), None) for name in names]
    return any(taken)


def take_away(access: HdfsAccess, path: str, into: str | None) -> bool:
    """Delete or move one file that nobody writes; see ``CleaningStore.take_away``."""
    split_path(path)
    try:
        # Not by recovery: a part that is being written is no orphan.
        writer = access.append(path)
        if into is None:
            try:
                return access.delete(path)
            finally:
                with suppress(NotFound):
                    access.close_file(writer, path)
        # A file that is renamed while it is open could not be closed by this writer. Who opens it by the old name
        # between these two calls goes on under the other one, and finds before he acknowledges that he lost his.
        close_durable(access, writer, path)
        access.make_directories(into)
        rename_staged(access, path, f"{into}/{split_path(path)[1]}")
    except NotFound:
        return False
    return True


def is_being_written(access: HdfsAccess, path: str) -> bool:
    """Whether somebody has a file open and renews its lease; see ``CleaningStore.is_being_written``."""
    split_path(path)
    try:
        # HDFS refuses it to anybody else while the lease is renewed.
        writer = access.append(path, is_repeated=False)
    except NotFound:
        return False
    except LeaseUnavailable as error:
        # HDFS itself closes what somebody has left who does not renew his leases.
        return "RecoveryInProgressException" not in error.message
    access.close_file(writer, path)
    return False
