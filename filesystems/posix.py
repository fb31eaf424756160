"""The seam below the local store: every system call it makes, one method each.

All names are relative to the descriptor of an open directory and no symbolic link is followed, so that a link swapped
into the tree cannot lead outside the base. ``faults.intercept`` wraps an object of this class: the calls that change
state or take locks are the points at which the crash tests kill the process.
"""

from __future__ import annotations

import fcntl
import os
from typing import Literal

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
        """Take the exclusive lock without waiting; False when somebody else holds a lock."""
        return _flock(descriptor, fcntl.LOCK_EX)

    def lock_shared(self, descriptor: int) -> bool:
        """Take a shared lock without waiting; False when somebody else holds the exclusive one."""
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


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
