"""Taking files away on the local file system, for the cleaner alone: one literal name a time, under its lock (S6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.errors import LeaseUnavailable, NotFound
from partfile.filesystems.local_errors import translated
from partfile.filesystems.part_names import split_path

if TYPE_CHECKING:
    from partfile.filesystems.local_tree import LocalTree
    from partfile.filesystems.port import PartHandle


def discard_part(tree: LocalTree, handle: PartHandle) -> bool:
    """Delete the staged names of a part under its lock; see ``PartStore.discard``."""
    # In the order in which a part moves, so that none is missed.
    taken = [take_away(tree, handle.path_of(name), None) for name in (handle.in_progress, handle.pending)]
    return any(taken)


def take_away(tree: LocalTree, path: str, into: str | None) -> bool:
    """Delete or move one file under its lock; see ``CleaningStore.take_away``."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            descriptor = tree.open_regular(directory, name, path, "modify")
            locked = False
            try:
                with translated("lock", tree.shown(path)):
                    locked = tree.calls.lock(descriptor)
                if not locked:
                    raise LeaseUnavailable(f"{path!r} is being written, so it is left", path=path)
                if not tree.names(directory, name, path, descriptor):
                    return False
                if into is not None:
                    return _move(tree, directory, path, into)
                if tree.status_open(descriptor, path).st_nlink > 1:
                    # Its other name may be a finished one that is not durable yet; losing both would lose the part.
                    tree.sync_directory(directory, path)
                return tree.drop_name(directory, name, path)
            finally:
                tree.release(descriptor, path, locked=locked)
    except NotFound:
        return False


def is_being_written(tree: LocalTree, path: str) -> bool:
    """Whether somebody holds the lock of a file; see ``CleaningStore.is_being_written``."""
    parent, name = split_path(path)
    try:
        with tree.directory(parent) as directory:
            descriptor = tree.open_regular(directory, name, path, "read")
    except NotFound:
        return False
    free = False
    try:
        with translated("lock", tree.shown(path)):
            free = tree.calls.lock_shared(descriptor)
    finally:
        tree.release(descriptor, path, locked=free)
    return not free


def _move(tree: LocalTree, directory: int, path: str, into: str) -> bool:
    _, name = split_path(path)
    with tree.directory(into, create=True) as new_directory:
        with translated("move", tree.shown(path)):
            tree.calls.move(directory, name, new_directory)
        tree.sync_names(into)
    return True
