"""Renaming staged files of HDFS, with a lost reply decided by looking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import NotFound, OutcomeUnknown

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_access import HdfsAccess


def rename_staged(access: HdfsAccess, path: str, new_path: str) -> None:
    """Rename a file between two names that carry its token, so that nobody but its owners gives or takes them.

    Raises:
        NotFound: It is under neither name, or was not renamed.
        AlreadyExists: Something is under the new name.
        OutcomeUnknown: Nobody can say; it may be renamed later.
    """
    try:
        access.rename(path, new_path)
    except (NotFound, OutcomeUnknown):
        if access.status(new_path) is None or access.status(path) is not None:
            raise
