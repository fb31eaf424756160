"""A local tree after a power loss: a pessimistic model of POSIX below the local store.

POSIX promises bytes after an fsync of their file and names after an fsync of their directory, and nothing else; any of
them may also survive without, and each name by itself. So there are many trees to look at; ``Watch`` looks at all of
them after every call.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from partfile.stores.local.posix import CHANGING_CALLS
from partfile.stores.local.tree import Identity, identity
from partfile.testing.faults import TrackedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.stores.base import PartHandle
    from partfile.stores.local.posix import Access
    from partfile.testing.faults import Call


Tree = dict[str, bytes]
"""Files by path relative to the base."""

_Names = dict[str, Identity]
_Directories = dict[Identity, _Names]
_MOST_COMBINED = 4
"""Names changed since the last sync, up to which every combination of them is looked at, and not only each alone."""


class Survivor(NamedTuple):
    """A tree that a power loss may leave."""

    directories: list[str]
    """Below the base, each after the one that it is in."""
    names: dict[str, Identity]
    """The file behind each path; a file with two names is behind both."""
    contents: dict[Identity, bytes]

    @property
    def files(self) -> Tree:
        """The bytes behind each path."""
        return {path: self.contents.get(file, b"") for path, file in self.names.items()}


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
        self._renamed: dict[tuple[Identity, str], str] = {}
        """The name that a file had when its directory was synced last, by the directory and the name it has now."""

    def open_base(self, path: str) -> int:
        """Open the base; what it holds when it is opened first counts as durable."""
        descriptor = super().open_base(path)
        if self._base < 0:
            # A descriptor of its own, which outlives the stores and any simulated death.
            self._base = os.dup(descriptor)
            self._remember_tree(self._base)
        return descriptor

    def make_directory(self, directory: int, segment: str) -> None:
        """Make a directory, which is empty and not durable; its inode may be that of something deleted before."""
        super().make_directory(directory, segment)
        inode = identity(os.stat(segment, dir_fd=directory))
        self._forget(inode)
        self._names[inode] = {}

    def create(self, directory: int, name: str) -> int:
        """Create a file, whose inode may be that of something deleted before, a directory as well."""
        descriptor = super().create(directory, name)
        self._forget(identity(os.fstat(descriptor)))
        return descriptor

    def open_existing(self, directory: int, name: str, access: Access) -> int:
        """Open a file; one that is appended to can be read too, since its bytes are looked at when it is synced."""
        descriptor = super().open_existing(directory, name, "modify" if access == "append" else access)
        if access == "append":
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_APPEND)
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
        self._forget_renames(inode)

    def rename(self, directory: int, name: str, new_name: str) -> None:
        """Rename, which is atomic but not durable."""
        super().rename(directory, name, new_name)
        self._note_rename(directory, name, new_name)

    def rename_noreplace(self, directory: int, name: str, new_name: str) -> None:
        """Rename where nothing is, which is atomic but not durable."""
        super().rename_noreplace(directory, name, new_name)
        self._note_rename(directory, name, new_name)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cut a file, whose tail may have been written back and may come back."""
        self._uncut.setdefault(identity(os.fstat(descriptor)), _content(descriptor))
        super().truncate(descriptor, length)

    def all_survivors(self) -> list[Tree]:
        """Every tree that may be left by a power loss now: files by path relative to the base."""
        return [survivor.files for survivor in self.survivors()]

    def survivors(self) -> list[Survivor]:
        """The same, with directories and with what tells two names of one file from two files alike."""
        if self._base < 0:
            return []
        directories, contents = _read_tree(self._base)
        synced = {inode: self._names.get(inode, {}) for inode in {*directories, *self._names}}
        bytes_now = {**self._bytes, **contents}
        versions = [bytes_now, *self._older_versions(bytes_now)]
        views = [directories, *_views(synced, self._unsynced(directories, synced))]
        base = identity(os.fstat(self._base))
        return [_survivor(base, view, version) for view in views for version in versions]

    def _unsynced(self, directories: _Directories, synced: _Directories) -> list[_Change]:
        """The changes of names that may survive or not, each by itself."""
        found = []
        for inode, names in directories.items():
            durable = synced[inode]
            # A rename never leaves a file without a name. It may leave both, where a file system has no journal.
            olds = {new: old for (parent, new), old in self._renamed.items() if parent == inode and old not in names}
            added = names.items() - durable.items()
            found += [_Change(inode, name, child) for name, child in added]
            found += [_Change(inode, name, child, olds[name]) for name, child in added if name in olds]
            gone = durable.keys() - names.keys() - set(olds.values())
            found += [_Change(inode, name, None) for name in gone]
        return found

    def _older_versions(self, bytes_now: dict[Identity, bytes]) -> list[dict[Identity, bytes]]:
        """The contents that files may have instead of the last ones written."""
        synced = {inode: self._bytes.get(inode, b"") for inode in bytes_now}
        half = {inode: _half_between(synced[inode], data) for inode, data in bytes_now.items()}
        versions = [synced, *([{**synced, **self._uncut}] if self._uncut else []), half]
        return [version for version in versions if version != bytes_now]

    def stop(self) -> None:
        """Release the descriptors; what has been learnt stays."""
        self.die()
        if self._base >= 0:
            os.close(self._base)
            self._base = -1

    def _forget(self, inode: Identity) -> None:
        """Nothing that was known of an inode holds for the one that has got its number."""
        self._bytes.pop(inode, None)
        self._uncut.pop(inode, None)
        self._names.pop(inode, None)
        self._forget_renames(inode)

    def _note_rename(self, directory: int, name: str, new_name: str) -> None:
        inode = identity(os.fstat(directory))
        self._renamed[inode, new_name] = self._renamed.pop((inode, name), name)

    def _forget_renames(self, directory: Identity) -> None:
        self._renamed = {key: old for key, old in self._renamed.items() if key[0] != directory}

    def _remember_tree(self, base: int) -> None:
        directories, contents = _read_tree(base)
        self._names.update(directories)
        self._bytes.update(contents)


class _Change(NamedTuple):
    """A name that was given or taken since its directory was synced."""

    directory: Identity
    name: str
    file: Identity | None
    old_name: str | None = None
    """What a rename took away when it gave the name."""


class Violation(BaseException):
    """A power loss at this moment would break a promise. No Exception, so that no handler catches it by accident."""


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
    """The bytes of a part for a reader that honours sidecars; None for no part."""
    data, sidecar = tree.get(handle.path_of(handle.name)), tree.get(handle.path_of(handle.sidecar))
    if data is None or sidecar is None:
        return data
    return data[: int(sidecar)] if sidecar.isdigit() else b"a sidecar that cannot be read"


def survivor_below(path: str) -> Survivor:
    """Everything that is below a directory, as it is now."""
    base = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _survivor(identity(os.fstat(base)), *_read_tree(base))
    finally:
        os.close(base)


def _views(synced: _Directories, changes: list[_Change]) -> Iterator[_Directories]:
    """The contents of directories: with no change, all but one, each alone, and where they are few any of them."""
    few = len(changes) <= _MOST_COMBINED
    sizes = range(1, len(changes)) if few else {1, len(changes) - 1}
    yield synced
    for size in sizes:
        for some in itertools.combinations(changes, size):
            view = dict(synced)
            for change in some:
                taken = {change.name, change.old_name}
                names = {name: file for name, file in view[change.directory].items() if name not in taken}
                view[change.directory] = names if change.file is None else {**names, change.name: change.file}
            yield view


def _half_between(durable: bytes, written: bytes) -> bytes:
    """A file of which half of what was added has been written back."""
    return written[: (len(durable) + len(written) + 1) // 2] if written.startswith(durable) else durable


def _survivor(base: Identity, directories: _Directories, contents: dict[Identity, bytes]) -> Survivor:
    found = Survivor([], {}, contents)
    waiting = [("", base)]
    while waiting:
        path, inode = waiting.pop()
        for name, child in directories[inode].items():
            below = f"{path}/{name}" if path else name
            if child in directories:
                found.directories.append(below)
                waiting.append((below, child))
            else:
                found.names[below] = child
    return found


def _read_tree(base: int) -> tuple[_Directories, dict[Identity, bytes]]:
    directories: _Directories = {}
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
