"""Small whole files on the local file system: checkpoint metadata, sidecars, markers."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, FileTooLarge, NotApplied, NotFound, OutcomeUnknown
from partfile.filesystems.local_errors import store_error, translated
from partfile.filesystems.part_names import split_path
from partfile.filesystems.port import StoredFile
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from partfile.filesystems.local_tree import LocalTree

READ_BYTES = 1 << 20
MAX_ATTEMPTS = 100


def create_whole(tree: LocalTree, path: str, data: bytes) -> None:
    """Create a file exclusively and whole or not at all; see ``MetadataStore.create_file``."""
    parent, name = split_path(path)
    with tree.directory(parent, create=True) as directory:
        if tree.status(directory, name, path) is None and _create_by_link(tree, directory, path, data):
            return
        # Whoever made it may have crashed before its name was durable, and the caller will act on what he reads.
        tree.sync_names(parent)
    raise AlreadyExists(f"{path!r} is there already", path=path)


def _create_by_link(tree: LocalTree, directory: int, path: str, data: bytes) -> bool:
    """Create a whole file; False if the name is taken."""
    parent, name = split_path(path)
    temporary = f"_tmp.{new_token()}"
    with translated("create", tree.shown(path)):
        descriptor = tree.calls.create(directory, temporary)
    try:
        try:
            tree.write_all(descriptor, data, path)
            tree.sync_file(descriptor, path)
            try:
                with translated("link", tree.shown(path)):
                    tree.calls.link(directory, temporary, name)
            except AlreadyExists:
                return False
            tree.sync_names(parent)
            return True
        finally:
            # The name is known to nobody else, and the file itself stays where it has been linked.
            with suppress(OSError):
                tree.calls.unlink(directory, temporary)
    finally:
        # All that counts has been synced, or has failed already.
        with suppress(OSError):
            tree.calls.close(descriptor)


def read_whole(tree: LocalTree, path: str, max_bytes: int) -> bytes:
    """Read a whole file; see ``MetadataStore.read_file``."""
    parent, name = split_path(path)
    with tree.directory(parent) as directory:
        descriptor = tree.open_regular(directory, name, path, "read")
    try:
        with translated("read", tree.shown(path)):
            chunks, size = [], 0
            while chunk := tree.calls.read(descriptor, min(READ_BYTES, max_bytes + 1 - size), size):
                chunks.append(chunk)
                size += len(chunk)
    finally:
        tree.close_descriptor(descriptor, path)
    if size > max_bytes:
        raise FileTooLarge(f"{tree.shown(path)!r} is longer than {max_bytes} bytes", path=path)
    return b"".join(chunks)


def is_file(tree: LocalTree, path: str) -> bool:
    """Whether a regular file is there now."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            status = tree.status(directory, name, path)
    except NotFound:
        return False
    return status is not None and stat.S_ISREG(status.st_mode)


def look_at(tree: LocalTree, path: str) -> StoredFile | None:
    """One regular file as a listing shows it; see ``PartStore.look_at``."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            status = tree.status(directory, name, path)
    except NotFound:
        return None
    return stored(path, status) if status is not None and stat.S_ISREG(status.st_mode) else None


def stored(path: str, status: os.stat_result) -> StoredFile:
    """A file as a listing shows it."""
    return StoredFile(
        path=path,
        size=status.st_size,
        modified_at_ms=status.st_mtime_ns // 1_000_000,
        identity=f"{status.st_dev}:{status.st_ino}" if status.st_nlink > 1 else None,
    )


def names_in(tree: LocalTree, path: str) -> list[str]:
    """The names directly in a directory, durable by then; empty if it is not there."""
    try:
        with tree.directory(path) as directory, translated("list", tree.shown(path)):
            names = tree.calls.list_names(directory)
        # Whoever made them may have crashed before they were durable, and the caller will build on what is there.
        tree.sync_names(path)
    except NotFound:
        return []
    except OutcomeUnknown as error:
        if isinstance(error.__cause__, NotFound):
            return []  # Deleted meanwhile, with all that was in it.
        raise NotApplied(error.message, hint=error.hint, path=error.path) from error
    return names


def delete_one(tree: LocalTree, path: str) -> None:
    """Delete one file by its literal name; absent counts as done."""
    parent, name = split_path(path)
    with suppress(NotFound), tree.directory(parent) as directory:
        tree.drop_name(directory, name, path)


def delete_flat(tree: LocalTree, path: str) -> None:
    """Delete a directory and the files directly in it; absent counts as done."""
    parent, name = split_path(path)
    for _ in range(MAX_ATTEMPTS):
        try:
            with tree.directory(path) as directory, translated("list", tree.shown(path)):
                for entry in tree.calls.list_names(directory):
                    tree.drop_name(directory, entry, f"{path}/{entry}")
            with tree.directory(parent) as above:
                if _remove_empty(tree, above, name, path):
                    return
        except NotFound:
            return
    raise NotApplied(f"{tree.shown(path)!r} is being filled while it is deleted", path=path)


def _remove_empty(tree: LocalTree, directory: int, name: str, path: str) -> bool:
    try:
        tree.calls.remove_directory(directory, name)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            return False
        raise store_error(error, "remove", tree.shown(path)) from error
    return True


class Markers:
    """The marker files whose locks this process holds (S13).

    Args:
        tree: The store's directories.
    """

    def __init__(self, tree: LocalTree) -> None:
        self._tree = tree
        self._process = os.getpid()
        self._held: dict[str, int] = {}

    def hold(self, path: str) -> bool:
        """Lock the marker, making it if need be; see ``MetadataStore.hold_marker``."""
        if path in self._held and os.getpid() != self._process:
            return False
        parent, name = split_path(path)
        with self._tree.directory(parent, create=True) as directory:
            if path in self._held:
                if self._tree.names(directory, name, path, self._held[path]):
                    return True
                # Somebody deleted the file: nobody can see this lock any more.
                self._tree.release(self._held.pop(path), path, locked=True)
            for _ in range(MAX_ATTEMPTS):
                descriptor = self._open(directory, name, path)
                locked = False
                try:
                    with translated("lock", self._tree.shown(path)):
                        locked = self._lock(descriptor, path)
                    if locked and self._tree.names(directory, name, path, descriptor):
                        self._held[path] = descriptor
                        return True
                finally:
                    if path not in self._held:
                        self._tree.release(descriptor, path, locked=locked)
                if not locked:
                    return False
        raise NotApplied(f"marker {self._tree.shown(path)!r} keeps being replaced", path=path)

    def is_held(self, path: str) -> bool:
        """Whether somebody holds the marker; see ``MetadataStore.marker_is_held``."""
        parent, name = split_path(path)
        try:
            with self._tree.directory(parent) as directory:
                descriptor = self._tree.open_regular(directory, name, path, "read")
        except NotFound as error:
            raise NotFound(
                f"marker {self._tree.shown(path)!r} is not visible from this host",
                hint="The base path must be on a file system that all executors share.",
                path=path,
            ) from error
        free = False
        try:
            with translated("lock", self._tree.shown(path)):
                free = self._tree.calls.lock_shared(descriptor)
        finally:
            self._tree.release(descriptor, path, locked=free)
        return not free

    def close(self) -> None:
        """Release every marker; in a forked child only its copies, for the locks are its parent's."""
        while self._held:
            path, descriptor = self._held.popitem()
            self._tree.release(descriptor, path, locked=os.getpid() == self._process)

    def _open(self, directory: int, name: str, path: str) -> int:
        try:
            return self._tree.open_regular(directory, name, path, "modify")
        except NotFound:
            try:
                return self._tree.calls.create(directory, name)
            except FileExistsError:
                return self._tree.open_regular(directory, name, path, "modify")
            except OSError as error:
                raise store_error(error, "create", self._tree.shown(path)) from error

    def _lock(self, descriptor: int, path: str) -> bool:
        """Lock, unless somebody holds the marker; one who only looks whether it is held is waited out."""
        for _ in range(MAX_ATTEMPTS):
            if self._tree.calls.lock(descriptor):
                return True
            if not self._tree.calls.lock_shared(descriptor):
                return False
        raise NotApplied(f"marker {self._tree.shown(path)!r} is being looked at all the time; try again", path=path)
