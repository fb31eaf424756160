"""From errno to the tree of errors: the one table of the local store."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotApplied, NotFound, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE = "Free space or raise the quota on this file system; the job can then be restarted."
_ACCESS = "Give the user that runs this process read, write and search permission on the directory."
_DESCRIPTORS = "Raise the limit on open files (ulimit -n) or lower the number of open parts."
_IN_THE_WAY = "Below the base every directory and part must be a real one: no symbolic link, pipe or device."

_DETERMINATE: dict[int, tuple[type[NotApplied], str]] = {
    errno.ENOENT: (NotFound, ""),
    errno.EEXIST: (AlreadyExists, ""),
    errno.ENOSPC: (NotApplied, _SPACE),
    errno.EDQUOT: (NotApplied, _SPACE),
    errno.EFBIG: (NotApplied, "Lower max_part_bytes or raise the limit on file size (ulimit -f)."),
    errno.EACCES: (NotApplied, _ACCESS),
    errno.EPERM: (NotApplied, "Check owner, attributes (lsattr) and that the file system supports hard links."),
    errno.EROFS: (NotApplied, "Mount the file system for writing."),
    errno.EMFILE: (NotApplied, _DESCRIPTORS),
    errno.ENFILE: (NotApplied, _DESCRIPTORS),
    errno.ELOOP: (NotApplied, _IN_THE_WAY),
    errno.ENOTDIR: (NotApplied, _IN_THE_WAY),
    errno.EISDIR: (NotApplied, _IN_THE_WAY),
    errno.ENXIO: (NotApplied, _IN_THE_WAY),
    errno.ENODEV: (NotApplied, _IN_THE_WAY),
    errno.ENAMETOOLONG: (NotApplied, "Shorten the bucket or the affixes of the part files."),
    errno.ENOTEMPTY: (NotApplied, "Something unknown to partfile is in the directory; look at it before removing it."),
    errno.EXDEV: (NotApplied, "The base must be on one file system, without mounts inside."),
    errno.EMLINK: (NotApplied, "The file system allows no more names of this file or in this directory."),
    errno.ENOLCK: (NotApplied, "The file system must support locks (flock); on NFS start the lock service."),
    errno.EOPNOTSUPP: (NotApplied, "The file system must support flock, fsync and hard links."),
    errno.ETXTBSY: (NotApplied, "The file is in use as a program."),
    errno.EBUSY: (NotApplied, "The directory is in use as a mount point."),
}


def store_error(error: OSError, doing: str, path: str) -> StoreError:
    """Classify the failure of a call that either happens or does not.

    Args:
        error: As the kernel reported it.
        doing: What was tried, to follow "cannot".
        path: At fault.

    Returns:
        NotApplied or one of its kinds where the errno proves that nothing happened, else OutcomeUnknown.
    """
    kind, hint = _DETERMINATE.get(error.errno or 0, (OutcomeUnknown, "Look at the file before doing it again."))
    return kind(f"cannot {doing} {path!r}: {_reason(error)}", hint=hint, path=path)


def unknown_outcome(error: OSError, doing: str, path: str) -> OutcomeUnknown:
    """Classify the failure of fsync or close, after which nobody knows which bytes or names are durable."""
    return OutcomeUnknown(
        f"cannot {doing} {path!r}: {_reason(error)}",
        hint="Some of it may be lost although a second attempt would succeed; look at disk and kernel log.",
        path=path,
    )


@contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Raise an OSError of the block as ``store_error``; our own errors pass."""
    try:
        yield
    except OSError as error:
        raise store_error(error, doing, path) from error


@contextmanager
def translated_as_unknown(doing: str, path: str) -> Iterator[None]:
    """Raise an OSError of the block as ``unknown_outcome``; for fsync and close."""
    try:
        yield
    except OSError as error:
        raise unknown_outcome(error, doing, path) from error


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
