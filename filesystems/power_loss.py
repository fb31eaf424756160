"""What of a local tree would survive a power loss: a pessimistic model of POSIX below the local store.

POSIX promises bytes after an fsync of their file and names after an fsync of their directory, and nothing else; any of
them may also survive without, and each name by itself. So there are many trees to look at; ``Watch`` looks at all of
them after every call.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from partfile.filesystems.local_tree import Identity, identity
from partfile.filesystems.posix import CHANGING_CALLS
from partfile.filesystems.tracked_calls import TrackedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.filesystems.faults import Call
    from partfile.filesystems.port import PartHandle

Tree = dict[str, bytes]
"""Files by path relative to the base."""

_Names = dict[str, Identity]


class PowerLossCalls(TrackedCalls):
    """System calls that remember what is durable. One object serves every store on one base.

    Wrap it to skip a sync (``faults.SkipAt``), and what depends on that sync is no longer among the survivors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._base = -1
        self._bytes: dict[Identity, bytes] = {}
        self._names: dict[Identity, _Names] = {}
        self._uncut: dict[Identity, bytes] = {}
        self._renamed: set[tuple[Identity, str]] = set()

    def open_base(self, path: str) -> int:
        """Open the base; what it holds when it is opened first counts as durable."""
        descriptor = super().open_base(path)
        if self._base < 0:
            # A descriptor of its own, which outlives the stores and any simulated death.
            self._base = os.dup(descriptor)
            self._remember_tree(self._base)
        return descriptor

    def make_directory(self, directory: int, segment: str) -> None:
        """Make a directory, which is empty and not durable."""
        super().make_directory(directory, segment)
        self._names[identity(os.stat(segment, dir_fd=directory))] = {}

    def create(self, directory: int, name: str) -> int:
        """Create a file, whose inode may be that of a file deleted before."""
        descriptor = super().create(directory, name)
        for known in (self._bytes, self._uncut):
            known.pop(identity(os.fstat(descriptor)), None)
        return descriptor

    def sync(self, descriptor: int) -> None:
        """Make bytes durable."""
        super().sync(descriptor)
        self._bytes[identity(os.fstat(descriptor))] = _content(descriptor)
        self._uncut.pop(identity(os.fstat(descriptor)), None)

    def sync_directory(self, directory: int) -> None:
        """Make names durable."""
        super().sync_directory(directory)
        inode = identity(os.fstat(directory))
        self._names[inode] = dict(_names_now(directory))
        self._renamed = {(parent, name) for parent, name in self._renamed if parent != inode}

    def rename(self, directory: int, name: str, new_name: str) -> None:
        """Rename, which is atomic but not durable."""
        super().rename(directory, name, new_name)
        self._renamed.add((identity(os.fstat(directory)), name))

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file, whose tail may have been written back and may come back."""
        self._uncut.setdefault(identity(os.fstat(descriptor)), _content(descriptor))
        super().truncate(descriptor, length)

    def all_survivors(self) -> list[Tree]:
        """Every tree that may be left by a power loss now: files by path relative to the base."""
        directories, contents = self._read_tree(self._base)
        synced = {inode: self._names.get(inode, {}) for inode in {*directories, *self._names}}
        views = [directories, synced]
        for inode, names in directories.items():
            durable = synced[inode]
            new, gone = names.items() - durable.items(), durable.keys() - names.keys()
            # A rename is atomic: it survives with both names or not at all.
            gone -= {name for directory, name in self._renamed if directory == inode}
            views += [{**synced, inode: {**durable, name: child}} for name, child in new]
            views += [{**synced, inode: {n: child for n, child in durable.items() if n != name}} for name in gone]
        bytes_now = {**self._bytes, **contents}
        bytes_synced = {inode: self._bytes.get(inode, b"") for inode in bytes_now}
        versions = [bytes_now, bytes_synced] + ([{**bytes_synced, **self._uncut}] if self._uncut else [])
        return [self._tree(view, version) for view in views for version in versions]

    def _tree(self, directories: dict[Identity, _Names], contents: dict[Identity, bytes]) -> Tree:
        files: Tree = {}
        waiting = [("", identity(os.fstat(self._base)))]
        while waiting:
            path, inode = waiting.pop()
            for name, child in directories[inode].items():
                below = f"{path}/{name}" if path else name
                if child in directories:
                    waiting.append((below, child))
                else:
                    files[below] = contents.get(child, b"")
        return files

    def stop(self) -> None:
        """Release the descriptors; what has been learnt stays."""
        self.die()
        if self._base >= 0:
            os.close(self._base)
            self._base = -1

    def _remember_tree(self, base: int) -> None:
        directories, contents = self._read_tree(base)
        self._names.update(directories)
        self._bytes.update(contents)

    def _read_tree(self, base: int) -> tuple[dict[Identity, _Names], dict[Identity, bytes]]:
        directories: dict[Identity, _Names] = {}
        contents: dict[Identity, bytes] = {}
        waiting = [os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=base)]
        while waiting:
            directory = waiting.pop()
            names = dict(_names_now(directory))
            directories[identity(os.fstat(directory))] = names
            for name in names:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory)
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    waiting.append(descriptor)
                else:
                    contents[identity(os.fstat(descriptor))] = _content(descriptor)
                    os.close(descriptor)
            os.close(directory)
        return directories, contents


class Violation(BaseException):
    """A power loss at this moment would break a promise. No Exception, so that nobody handles it by accident."""


class Watch:
    """An interceptor that checks, after each call that changes something, everything that could survive it.

    Args:
        model: What is durable; the object that is wrapped, or below it.
        is_right: Whether a tree that survived keeps the promise.
    """

    def __init__(self, model: PowerLossCalls, is_right: Callable[[Tree], bool]) -> None:
        self._model = model
        self._is_right = is_right

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, then look."""
        result = proceed()
        if call.name in CHANGING_CALLS and not all(map(self._is_right, self._model.all_survivors())):
            raise Violation(f"after {call.name}{call.arguments}")
        return result


def part_in(tree: Tree, handle: PartHandle) -> bytes | None:
    """What a reader that honours sidecars sees of a part; None for no part."""
    data, sidecar = tree.get(handle.path_of(handle.name)), tree.get(handle.path_of(handle.sidecar))
    if data is None or sidecar is None:
        return data
    return data[: int(sidecar)] if sidecar.isdigit() else b"a sidecar that cannot be read"


def _names_now(directory: int) -> Iterator[tuple[str, Identity]]:
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)
    try:
        with os.scandir(own) as entries:
            for entry in entries:
                yield entry.name, identity(entry.stat(follow_symlinks=False))
    finally:
        os.close(own)


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
