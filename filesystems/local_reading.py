"""Stages on the local file system, read up to their valid length while somebody may be appending."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import NotFound
from partfile.filesystems.local_errors import translated
from partfile.filesystems.seekable_file import SeekableFile
from partfile.filesystems.stages import stage_gone, stage_too_short

if TYPE_CHECKING:
    from partfile.filesystems.local_tree import LocalTree
    from partfile.filesystems.port import PartHandle

_BUFFER_BYTES = 1 << 20


def open_stage(tree: LocalTree, handle: PartHandle) -> io.BufferedReader:
    """Open a stage to read its valid bytes; see ``PartStore.open_stage``."""
    path = handle.path_of(handle.in_progress)
    try:
        with tree.directory(handle.bucket) as directory:
            descriptor = tree.open_regular(directory, handle.in_progress, path, "read")
    except NotFound as error:
        raise stage_gone(handle) from error
    file = _StageFile(tree, handle, descriptor)
    try:
        file.check_length()
    except BaseException:
        file.close()
        raise
    return io.BufferedReader(file, _BUFFER_BYTES)


class _StageFile(SeekableFile):
    """The valid bytes of an open stage.

    Args:
        tree: The store's directories.
        handle: The stage.
        descriptor: Open for reading; owned by this object from now on.

    Raises:
        PartMissing: On reading what somebody has cut off meanwhile.
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
            raise stage_too_short(self._handle, size)

    def readinto(self, buffer: Any) -> int:
        """Read on, at most to the valid length."""
        descriptor = self._opened
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._end - self._position, _BUFFER_BYTES)
        if count <= 0:
            return 0
        with translated("read", self._tree.shown(self._path)):
            taken = self._tree.calls.read_into(descriptor, view[:count], self._position)
        if not taken:
            raise stage_too_short(self._handle, self._position)
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
