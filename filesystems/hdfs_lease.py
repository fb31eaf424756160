"""Taking the lease of a part from whoever holds it, and waiting until HDFS has closed the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import LeaseUnavailable, NotApplied, NotFound, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

    from partfile.filesystems.hdfs_access import HdfsAccess


def recover_lease(access: HdfsAccess, path: str) -> None:
    """Fence the writer of a file: afterwards it is closed, and every DataNode refuses him.

    Raises:
        NotFound: The file is gone.
        NotApplied: HDFS has not closed it within ``lease_timeout_s``.
        OutcomeUnknown: HDFS has not answered within it.
    """
    if not _ask(access, path):
        _wait_until_closed(access, path, access.options.lease_timeout_s)


def _ask(access: HdfsAccess, path: str) -> bool:
    """Ask for the recovery; whether the file is closed already.

    Once, since asking again can begin a recovery anew that is about to end (FLINK-18592); again only where the answer
    was lost, and with it perhaps the NameNode that was asked.
    """
    backoff = Backoff(access.options.lease_timeout_s)
    while True:
        try:
            return access.recover_lease(path)
        except OutcomeUnknown:
            if not backoff.pause():
                raise


def close_durable(access: HdfsAccess, writer: RawFileWriter, path: str) -> None:
    """Close a file that nobody else writes and whose every byte that counts is durable.

    Where the NameNode was away or not ready at that moment, HDFS itself closes it, by recovering its lease.

    Raises:
        NotFound, LeaseUnavailable: The file or its lease was taken away before.
        NotApplied: HDFS has not closed it within ``lease_timeout_s``.
    """
    try:
        access.close_file(writer, path)
    except (NotFound, LeaseUnavailable):
        raise
    except StoreError:
        recover_lease(access, path)


def _wait_until_closed(access: HdfsAccess, path: str, timeout_s: float) -> None:
    """Wait until nobody has a file open, neither a writer nor HDFS itself that recovers its lease.

    Raises:
        NotFound: The file is gone.
        NotApplied: Somebody still has it open at the deadline.
    """
    backoff = Backoff(timeout_s)
    while True:
        try:
            # HDFS has no other question whose answer is yes or no and which disturbs no recovery (FLINK-18592).
            writer = access.append(path, is_repeated=False)
        except OutcomeUnknown:
            # It may be open by now for nobody but us.
            if _ask(access, path):
                return
            if not backoff.pause():
                raise
        except LeaseUnavailable as error:
            if not backoff.pause():
                raise NotApplied(
                    f"{access.shown(path)!r}: the recovery of its lease has not ended within {timeout_s:g} s",
                    hint="Look at the DataNodes that hold the last block of this file; the part is tried again.",
                    path=path,
                ) from error
        else:
            access.close_file(writer, path)
            return
