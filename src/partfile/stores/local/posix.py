"""The seam below the local store: every system call it makes, one method each.

All names are relative to the descriptor of an open directory and no symbolic link is followed, so that a link swapped
into the tree cannot lead outside the base. ``faults.intercept`` wraps an object of this class: the calls that change
state or take locks are the points at which the crash tests kill the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shlex
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from partfile.errors import AlreadyExists, NotApplied, NotFound, OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_CLOSED_ON_EXEC = os.O_CLOEXEC | os.O_NOFOLLOW
# Opening a FIFO must neither wait for its other end nor, for a terminal, take control of it.
_EXISTING = _CLOSED_ON_EXEC | os.O_NONBLOCK | os.O_NOCTTY
_ACCESS = {"read": os.O_RDONLY, "modify": os.O_RDWR, "append": os.O_WRONLY | os.O_APPEND}

CHANGING_CALLS = frozenset(
    {
        "make_directory",
        "create",
        "lock",
        "lock_shared",
        "unlock",
        "write",
        "sync",
        "sync_directory",
        "truncate",
        "rename",
        "rename_noreplace",
        "move",
        "link",
        "unlink",
        "remove_directory",
    }
)
"""Methods that change files, their durability or their locks: the points at which dying makes a difference."""

Access = Literal["read", "modify", "append"]


class PosixCalls:
    """System calls on directories, files and locks. Raises OSError as the kernel reports it; keeps no state."""

    def open_base(self, path: str) -> int:
        """Open the base directory by its resolved absolute path."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _CLOSED_ON_EXEC)

    def open_directory(self, directory: int, segment: str) -> int:
        """Open a directory by one name below another; a symbolic link is refused."""
        return os.open(segment, os.O_RDONLY | os.O_DIRECTORY | _CLOSED_ON_EXEC, dir_fd=directory)

    def make_directory(self, directory: int, segment: str) -> None:
        """Make a directory below another."""
        os.mkdir(segment, dir_fd=directory)

    def create(self, directory: int, name: str) -> int:
        """Create a file exclusively and open it for reading and appending; the umask sets its mode."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _CLOSED_ON_EXEC
        return os.open(name, flags, 0o666, dir_fd=directory)

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """Open what is there under ``name``, never creating it; the caller checks that it is a regular file."""
        return os.open(name, _ACCESS[access] | _EXISTING, dir_fd=directory)

    def lock(self, descriptor: int) -> bool:
        """Take the exclusive lock without waiting; False when another process holds a lock."""
        return _flock(descriptor, fcntl.LOCK_EX)

    def lock_shared(self, descriptor: int) -> bool:
        """Take a shared lock without waiting; False when another process holds the exclusive one."""
        return _flock(descriptor, fcntl.LOCK_SH)

    def unlock(self, descriptor: int) -> None:
        """Release the lock for every process that inherited the descriptor."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write once; returns how many bytes were taken, which may be fewer."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, count: int, offset: int) -> bytes:
        """Read once at ``offset``; may return fewer bytes, and none at the end of the file."""
        return os.pread(descriptor, count, offset)

    def read_into(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read once at ``offset``, to where the bytes are wanted; returns how many, none at the end of the file."""
        return os.preadv(descriptor, [buffer], offset)

    def sync(self, descriptor: int) -> None:
        """Make a file's bytes and length durable."""
        os.fsync(descriptor)

    def sync_directory(self, directory: int) -> None:
        """Make the names in a directory durable."""
        os.fsync(directory)

    def start_writeback(self, descriptor: int, offset: int, length: int) -> None:
        """Ask the kernel to begin writing a range to disk; changes nothing but when the work is done."""
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut an open file to ``length`` bytes."""
        os.ftruncate(descriptor, length)

    def rename(self, directory: int, name: str, new_name: str) -> None:
        """Rename within a directory. Replaces what has the new name, so only for names that carry a token."""
        os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=directory)

    def rename_noreplace(self, directory: int, name: str, new_name: str) -> None:
        """Rename within a directory, replacing nothing: ``renameat2`` with ``RENAME_NOREPLACE`` (Linux 3.15).

        Raises:
            FileExistsError: The new name is taken.
            OSError: EINVAL or ENOSYS where the file system, the kernel or the C library does not offer it.
        """
        if _renameat2()(directory, os.fsencode(name), directory, os.fsencode(new_name), _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name, None, new_name)

    def move(self, directory: int, name: str, new_directory: int) -> None:
        """Move to another directory under the same name. Replaces, so only into a directory whose name has a token."""
        os.rename(name, name, src_dir_fd=directory, dst_dir_fd=new_directory)

    def link(self, directory: int, name: str, new_name: str) -> None:
        """Give a file a second name within its directory, replacing nothing."""
        os.link(name, new_name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)

    def unlink(self, directory: int, name: str) -> None:
        """Remove one name of a file."""
        os.unlink(name, dir_fd=directory)

    def remove_directory(self, directory: int, segment: str) -> None:
        """Remove an empty directory."""
        os.rmdir(segment, dir_fd=directory)

    def stat_name(self, directory: int, name: str) -> os.stat_result | None:
        """Return what is under ``name``, a symbolic link itself, or None if nothing is."""
        try:
            return os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def stat_open(self, descriptor: int) -> os.stat_result:
        """Return what an open descriptor stands for."""
        return os.fstat(descriptor)

    def list_names(self, directory: int) -> list[str]:
        """Return the names in a directory, in no order."""
        # Opened anew: two threads that read one open directory would share its position and miss names.
        own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _CLOSED_ON_EXEC, dir_fd=directory)
        try:
            with os.scandir(own) as entries:
                return [entry.name for entry in entries]
        finally:
            os.close(own)

    def close(self, descriptor: int) -> None:
        """Close a descriptor; it is gone even when this fails."""
        os.close(descriptor)


_RENAME_NOREPLACE = 1
NO_RENAME_NOREPLACE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors by which a file system says that it cannot rename without replacing."""


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int]:
    """The function of the C library; Python has none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return _no_renameat2
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return cast("Callable[[int, bytes, int, bytes, int], int]", function)


def _no_renameat2(*_arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_SPACE = "Free space on this file system or raise its quota, and start the job again. See what is free: df -h DIRECTORY"
_ACCESS_ERRORS = (
    "See whose it is: ls -ld DIRECTORY. Run this as that user, or let it give permission: chmod g+rwx DIRECTORY"
)
_DESCRIPTORS = "Hold fewer parts open, with max_open_parts=100, or fewer states; or raise the limit: ulimit -n 65536"
_IN_THE_WAY = (
    "Below the base every directory and part must be a real one: no symbolic link, pipe or device. See which is "
    "none: ls -l PATH"
)

_DETERMINATE: dict[int, tuple[type[NotApplied], str]] = {
    errno.ENOENT: (NotFound, ""),
    errno.EEXIST: (AlreadyExists, ""),
    errno.ENOSPC: (NotApplied, _SPACE),
    errno.EDQUOT: (NotApplied, _SPACE),
    errno.EFBIG: (
        NotApplied,
        (
            "Write smaller parts: rolling=RollingPolicy(max_part_bytes=N); or raise the limit on file size: ulimit -f "
            "unlimited"
        ),
    ),
    errno.EACCES: (NotApplied, _ACCESS_ERRORS),
    errno.EPERM: (
        NotApplied,
        (
            "The path must not be immutable, and the file system must support hard links. See owner and attributes: "
            "ls -ld PATH; lsattr -d PATH"
        ),
    ),
    errno.EROFS: (NotApplied, "Mount the file system for writing: mount -o remount,rw MOUNT"),
    errno.EMFILE: (NotApplied, _DESCRIPTORS),
    errno.ENFILE: (NotApplied, _DESCRIPTORS),
    errno.ELOOP: (NotApplied, _IN_THE_WAY),
    errno.ENOTDIR: (NotApplied, _IN_THE_WAY),
    errno.EISDIR: (NotApplied, _IN_THE_WAY),
    errno.ENXIO: (NotApplied, _IN_THE_WAY),
    errno.ENODEV: (NotApplied, _IN_THE_WAY),
    errno.ENAMETOOLONG: (
        NotApplied,
        ("Shorten the bucket, or the affixes of the part files: naming=PartNaming(part_prefix='p')"),
    ),
    errno.ENOTEMPTY: (
        NotApplied,
        ("Something unknown to partfile is in the directory. Look at it before removing it: ls -la DIRECTORY"),
    ),
    errno.EXDEV: (
        NotApplied,
        ("The base must be on one file system, without mounts inside. See where it is: df -h DIRECTORY"),
    ),
    errno.EMLINK: (
        NotApplied,
        ("The file system allows no more names of this file or in this directory. See what is free: df -i DIRECTORY"),
    ),
    errno.ENOLCK: (
        NotApplied,
        (
            "The file system must support locks (flock); on NFS start the lock service, and mount without nolock. See "
            "how: mount -l"
        ),
    ),
    errno.EOPNOTSUPP: (
        NotApplied,
        ("The file system must support flock, fsync and hard links. See which one it is: df -T DIRECTORY"),
    ),
    errno.ETXTBSY: (NotApplied, "The file is in use as a program. See by which process: fuser -v PATH"),
    errno.EBUSY: (NotApplied, "The directory is in use as a mount point. See what uses it: fuser -vm PATH"),
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
    kind, hint = _DETERMINATE.get(
        error.errno or 0, (OutcomeUnknown, ("Look at the file before doing it again: ls -l PATH"))
    )
    named = {"PATH": path, "DIRECTORY": _nearest_directory(path)}
    hint = re.sub("PATH|DIRECTORY", lambda word: shlex.quote(named[word[0]]), hint)
    return kind(f"cannot {doing} {path!r}: {_reason(error)}", hint=hint, path=path)


def _nearest_directory(path: str) -> str:
    """The directory that a path is in, or is to be in: what was to be created may not be there."""
    for directory in Path(path).parents:
        with suppress(OSError):
            if directory.is_dir():
                return str(directory)
    return "/"


def unknown_outcome(error: OSError, doing: str, path: str) -> OutcomeUnknown:
    """Classify the failure of fsync or close, after which it is unknown which bytes or names are durable."""
    return OutcomeUnknown(
        f"cannot {doing} {path!r}: {_reason(error)}",
        hint=(
            "Some of it may be lost although a second attempt would succeed. Look at the disk and the kernel's "
            "log: dmesg -T"
        ),
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
