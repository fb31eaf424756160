"""Stages on HDFS, read up to their valid length while somebody may be appending.

hdfs-native shows of an open file its closed blocks alone. What comes after them is asked of WebHDFS, which shows all
that the writer has made durable. Where WebHDFS is out of reach, only taking the writer's lease closes the file.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError, NotApplied, NotFound, NotReady
from partfile.filesystems.hdfs_lease import recover_lease
from partfile.filesystems.part_errors import part_of_another_process
from partfile.filesystems.seekable_file import SeekableFile
from partfile.filesystems.stages import stage_gone, stage_too_short

if TYPE_CHECKING:
    from hdfs_native import FileReader

    from partfile.filesystems.hdfs_access import HdfsAccess
    from partfile.filesystems.port import PartHandle

_BUFFER_BYTES = 1 << 20
"""Also the most that is asked of WebHDFS at once."""


def open_stage(access: HdfsAccess, handle: PartHandle, *, fences: bool) -> io.BufferedReader:
    """Open a stage to read its valid bytes; see ``PartStore.open_stage``."""
    path = handle.path_of(handle.in_progress)
    try:
        reader = access.open(path)
        if len(reader) < handle.valid_length:
            _check_length(access, handle)
            if fences:
                recover_lease(access, path)
                reader = access.open(path)
                if len(reader) < handle.valid_length:
                    raise stage_too_short(handle, len(reader))
    except NotFound as error:
        raise stage_gone(handle) from error
    file = _StageFile(access, handle, reader)
    if len(reader) < handle.valid_length:
        # Whether the rest can be read at all is better known now than after half of it.
        file.seek(handle.valid_length - 1)
        file.read(1)
        file.seek(0)
    return io.BufferedReader(file, _BUFFER_BYTES)


def _check_length(access: HdfsAccess, handle: PartHandle) -> None:
    """See that HDFS knows of the valid bytes, of which the last ones may be in a block that is not closed."""
    status = access.status(handle.path_of(handle.in_progress))
    if status is None:
        raise stage_gone(handle)
    if status.length_bytes < handle.valid_length:
        raise stage_too_short(handle, status.length_bytes)


class _StageFile(SeekableFile):
    """The valid bytes of a stage.

    Args:
        access: The store's files.
        handle: The stage.
        reader: Of its closed blocks, as they were when it was opened.

    Raises:
        PartMissing: On reading what somebody has taken away meanwhile.
        NotApplied: On reading a block that no DataNode hands out, such as one without its checksum.
        NotReady: On reading what only WebHDFS shows, which does not answer.
    """

    def __init__(self, access: HdfsAccess, handle: PartHandle, reader: FileReader) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._access = access
        self._handle = handle
        self._reader = reader
        self._process = os.getpid()

    @property
    def _end(self) -> int:
        return self._handle.valid_length

    def readinto(self, buffer: Any) -> int:
        """Read on, at most to the valid length."""
        if os.getpid() != self._process:
            # A connection of the parent's would never answer.
            raise part_of_another_process(self._path, self._process, os.getpid())
        view = memoryview(buffer).cast("B")
        count = min(len(view), self._end - self._position)
        if count <= 0:
            return 0
        data = self._read(count)
        if not data:
            raise self._nothing_read()
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _nothing_read(self) -> NotApplied:
        """What it means that no byte comes; raises PartMissing where HDFS does not know of it either."""
        _check_length(self._access, self._handle)
        # A DataNode ends its answer like this where a block does not have its checksum: that is no reason to lose it.
        return NotApplied(
            f"no DataNode hands out byte {self._position} of stage {self._access.shown(self._path)!r}, of which HDFS "
            f"has {self._handle.valid_length} or more",
            hint="A block may be damaged: see `hdfs fsck -openforwrite -files -blocks` for its directory.",
            path=self._path,
        )

    def _read(self, count: int) -> bytes:
        closed = min(count, len(self._reader) - self._position)
        if closed > 0:
            return self._access.read(self._reader, self._position, closed, self._path)
        try:
            return self._access.read_open(self._path, self._position, min(count, _BUFFER_BYTES))
        except NotFound as error:
            raise stage_gone(self._handle) from error
        except (NotApplied, ConfigError) as error:
            # It may have been closed since it was opened.
            self._reader = self._access.open(self._path)
            if len(self._reader) > self._position:
                return self._read(count)
            raise NotReady(
                f"stage {self._access.shown(self._path)!r} is open, and what was added to it last is seen over "
                f"WebHDFS alone: {error.message}",
                hint=error.hint or "Set http_address, or try again when its writer has ended.",
                path=self._path,
            ) from error
