"""One open in-progress part on the local file system, held by its flock."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.errors import NotApplied, NotFound
from partfile.stores.local.posix import store_error, translated
from partfile.stores.local.tree import identity
from partfile.stores.parts import OpenStream, check_new, checked_for_publishing, part_refused

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle
    from partfile.stores.local.tree import LocalTree


WRITEBACK_BYTES = 512 << 10


def create_part(tree: LocalTree, handle: PartHandle) -> LocalPartStream:
    """Create the in-progress file of ``handle`` and take its lock; see ``PartStore.create``."""
    check_new(handle)
    with tree.directory(handle.bucket, create=True) as directory:
        with translated("create", tree.shown(_path(handle))):
            descriptor = tree.calls.create(directory, handle.in_progress)
        # Between the two calls a cleaner may have locked or removed it.
        _take(tree, directory, handle, descriptor)
    return LocalPartStream(tree, handle, descriptor, is_new=True)


def resume_part(tree: LocalTree, handle: PartHandle) -> LocalPartStream:
    """Open an in-progress part as its sole owner; see ``PartStore.resume``."""
    try:
        with tree.directory(handle.bucket) as directory:
            descriptor = tree.open_regular(directory, handle.in_progress, _path(handle), "append")
            _take(tree, directory, handle, descriptor)
    except NotFound as error:
        raise part_refused(handle, "it is no longer under its in-progress name") from error
    return LocalPartStream(tree, handle, descriptor, is_new=False)


def _take(tree: LocalTree, directory: int, handle: PartHandle, descriptor: int) -> None:
    """Lock the open part and check that it is the one its name stands for, as long as its handle says."""
    path, locked = _path(handle), False
    try:
        with translated("lock", tree.shown(path)):
            locked = tree.calls.lock(descriptor)
        refusal = _why_refused(tree, directory, handle, descriptor) if locked else "another process holds its lock"
    except BaseException:
        tree.release(descriptor, path, locked=locked)
        raise
    if refusal:
        tree.release(descriptor, path, locked=locked)
        raise part_refused(handle, refusal)


def _why_refused(tree: LocalTree, directory: int, handle: PartHandle, descriptor: int) -> str:
    path = _path(handle)
    if not tree.names(directory, handle.in_progress, path, descriptor):
        return "it is no longer under its in-progress name"
    status = tree.status_open(descriptor, path)
    if status.st_size != handle.valid_length:
        return f"it has {status.st_size} bytes instead of {handle.valid_length}"
    # Another name may be a finished one, or that of a file that is not ours at all.
    return "" if status.st_nlink == 1 else f"it has {status.st_nlink} names"


def _path(handle: PartHandle) -> str:
    return handle.path_of(handle.in_progress)


class LocalPartStream(OpenStream):
    """An open part. Keeps no bytes: ``position`` counts what the kernel has taken.

    Args:
        tree: The store's directories.
        handle: The part, as created or as resumed.
        descriptor: Open for appending, locked, checked; owned by this object from now on.
        is_new: Whether the name of the part and those of its directories have yet to become durable.
    """

    def __init__(self, tree: LocalTree, handle: PartHandle, descriptor: int, *, is_new: bool) -> None:
        super().__init__(_path(handle))
        self._tree = tree
        self._handle = handle
        self._descriptor: int | None = descriptor
        self._position = handle.valid_length
        self._handed_on = handle.valid_length
        self._bytes_are_durable = not is_new
        self._names_are_durable = not is_new

    @property
    def handle(self) -> PartHandle:
        """The part at the length of the last persist."""
        return self._handle

    @property
    def position(self) -> int:
        """Bytes handed over so far, durable or not."""
        return self._position

    def write(self, data: bytes | memoryview) -> None:
        """Append all of ``data``; a failure poisons the stream."""
        descriptor = self._usable()
        rest = memoryview(data).cast("B")
        if not rest:
            return
        self._bytes_are_durable = False
        self._failure = "a write failed"
        with translated("write", self._tree.shown(self._path)):
            while rest:
                taken = self._tree.calls.write(descriptor, rest)
                self._position += taken
                rest = rest[taken:]
        self._failure = ""
        self._hand_on(descriptor)

    def _hand_on(self, descriptor: int) -> None:
        """Let the disk work while the next rows are made, so that the fsync at the checkpoint has little left to do."""
        waiting = self._position - self._handed_on
        if waiting >= WRITEBACK_BYTES:
            with suppress(OSError):
                self._tree.calls.start_writeback(descriptor, self._handed_on, waiting)
            self._handed_on = self._position

    def persist(self) -> PartHandle:
        """Make bytes and names durable, unless they are; a failure poisons the stream, for good."""
        descriptor = self._usable()
        # A second fsync may report success although the first one dropped the pages.
        self._failure = "persisting it failed"
        if not self._bytes_are_durable:
            self._tree.sync_file(descriptor, self._path)
            self._bytes_are_durable = True
        if not self._names_are_durable:
            self._tree.sync_names(self._handle.bucket)
            self._names_are_durable = True
        self._failure = ""
        self._handle = self._handle.at(self._position)
        return self._handle

    def verify(self) -> None:
        """Check that the part is still under its in-progress name, with no bytes but ours."""
        descriptor = self._usable()
        with self._tree.directory(self._handle.bucket) as directory:
            status = self._tree.status(directory, self._handle.in_progress, self._path)
        if status is None or identity(status) != identity(self._tree.status_open(descriptor, self._path)):
            raise part_refused(self._handle, "it is no longer under its in-progress name")
        if status.st_size != self._position:
            raise part_refused(self._handle, f"it has {status.st_size} bytes instead of {self._position}")

    def close_for_commit(self) -> PartHandle:
        """Persist, rename to the pending name, release the lock."""
        checked_for_publishing(self._handle)
        handle = self.persist()
        self.verify()
        self._failure = "it could not be made pending"
        with self._tree.directory(handle.bucket) as directory:
            rename_part(self._tree, directory, handle, self._usable_descriptor())
        self.close()
        return handle

    def close(self) -> None:
        """Release the lock and the descriptor; a forked child only closes its copy, for the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, None
        self._is_closed = True
        if descriptor is not None:
            self._tree.release(descriptor, self._path, locked=os.getpid() == self._process)

    def _usable(self) -> int:
        self._check_usable()
        return self._usable_descriptor()

    def _usable_descriptor(self) -> int:
        if self._descriptor is None:
            raise NotApplied(f"part {self._path!r} is closed", path=self._path)
        return self._descriptor


def rename_part(tree: LocalTree, directory: int, handle: PartHandle, descriptor: int) -> None:
    """Rename a part that we hold from its in-progress to its pending name, and check the result.

    On failure: the names decide, for a rename can be reported as failed although it was done.
    """
    _rename(tree, directory, handle, descriptor, (handle.in_progress, handle.pending))


def rename_back(tree: LocalTree, directory: int, handle: PartHandle, descriptor: int) -> None:
    """Rename a part that we hold from its pending to its in-progress name, before it is cut."""
    _rename(tree, directory, handle, descriptor, (handle.pending, handle.in_progress))


def _rename(tree: LocalTree, directory: int, handle: PartHandle, descriptor: int, names: tuple[str, str]) -> None:
    old, new = names
    failure: OSError | None = None
    try:
        tree.calls.rename(directory, old, new)
    except OSError as error:
        failure = error
    old_path, new_path = handle.path_of(old), handle.path_of(new)
    if tree.names(directory, new, new_path, descriptor) and tree.status(directory, old, old_path) is None:
        return
    raise store_error(failure or OSError(f"it did not arrive at {new!r}"), "rename", tree.shown(old_path))
