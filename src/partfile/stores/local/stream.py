"""Open parts on the local file system: one that is written, held by its flock, and a staging file that is read."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from partfile.errors import NotApplied
from partfile.stores.local.posix import translated
from partfile.stores.local.tree import identity
from partfile.stores.parts import (
    OpenStream,
    SeekableFile,
    checked_for_publishing,
    part_refused,
    staging_file_too_short,
)

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle
    from partfile.stores.local.tree import LocalTree


WRITEBACK_BYTES = 512 << 10
BUFFER_BYTES = 1 << 20
"""Read ahead of a staging file."""


class LocalPartStream(OpenStream):
    """An open part. Keeps no bytes: ``position`` counts what the kernel has taken.

    Args:
        tree: The store's directories.
        handle: The part, as created or as resumed.
        descriptor: Open for appending, locked, checked; owned by this object from now on.
        is_new: Whether the name of the part and those of its directories have yet to become durable.
    """

    def __init__(self, tree: LocalTree, handle: PartHandle, descriptor: int, *, is_new: bool) -> None:
        super().__init__(handle.path_of(handle.in_progress))
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
            # Before the names: a name that survives without its bytes would be a part that is too short.
            self._tree.sync_file(descriptor, self._path)
            self._bytes_are_durable = True
        if not self._names_are_durable:
            self._tree.sync_names(self._handle.bucket)
            self._names_are_durable = True
        self._failure = ""
        # Only now the length may enter a snapshot (R9).
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
        # Durable before it is pending: publishing does not sync a pending part of its valid length again.
        handle = self.persist()
        self.verify()
        self._failure = "it could not be made pending"
        with self._tree.directory(handle.bucket) as directory:
            names = (handle.in_progress, handle.pending)
            self._tree.rename(directory, *names, handle.bucket, self._usable_descriptor())
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


class StagingFileReader(SeekableFile):
    """The valid bytes of an open staging file.

    Args:
        tree: The store's directories.
        handle: The staging file.
        descriptor: Open for reading; owned by this object from now on.

    Raises:
        PartMissing: On reading what another process has cut off meanwhile.
    """

    def __init__(self, tree: LocalTree, handle: PartHandle, descriptor: int) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._tree = tree
        self._handle = handle
        self._descriptor: int | None = descriptor

    @property
    def _end(self) -> int:
        return self._handle.valid_length

    def check_length(self) -> None:
        """See that the valid bytes are there."""
        size = self._tree.status_open(self._opened, self._path).st_size
        if size < self._end:
            raise staging_file_too_short(self._handle, size)

    def readinto(self, buffer: Any) -> int:
        """Read on, at most to the valid length."""
        descriptor = self._opened
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._end - self._position, BUFFER_BYTES)
        if count <= 0:
            return 0
        with translated("read", self._tree.shown(self._path)):
            taken = self._tree.calls.read_into(descriptor, view[:count], self._position)
        if not taken:
            raise staging_file_too_short(self._handle, self._position)
        self._position += taken
        return taken

    @property
    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path!r} is closed")
        return self._descriptor

    def close(self) -> None:
        """Release the descriptor; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        try:
            super().close()
        finally:
            if descriptor is not None:
                self._tree.close_descriptor(descriptor, self._path)
