"""One open in-progress part on HDFS, held by its lease."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    StoreError,
)
from partfile.stores.hdfs.client import close_durable, recover_lease, rename_staged
from partfile.stores.parts import (
    OpenStream,
    SeekableFile,
    check_new,
    checked_for_publishing,
    part_of_another_process,
    part_refused,
    staging_file_gone,
    staging_file_too_short,
)
from partfile.stores.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdfs_native import FileReader
    from hdfs_native._internal import RawFileWriter

    from partfile.stores.base import PartHandle
    from partfile.stores.hdfs.client import HdfsAccess


_GONE = "it is no longer under its in-progress name"
_TAKEN = "its lease was taken, or it was deleted"


def create_part(access: HdfsAccess, handle: PartHandle) -> HdfsPartStream:
    """Create the in-progress file of ``handle`` and hold its lease; see ``PartStore.create``."""
    check_new(handle)
    return HdfsPartStream(access, handle, _create(access, handle.path_of(handle.in_progress)))


def _create(access: HdfsAccess, path: str) -> RawFileWriter:
    backoff = Backoff(access.options.call_timeout_s)
    try:
        return access.create(path)
    except OutcomeUnknown:
        if not backoff.pause():
            raise
        # The token is this attempt's alone: whatever has the name is what was made by the call whose answer was lost.
        access.delete(path)
        return access.create(path)


def resume_part(access: HdfsAccess, handle: PartHandle) -> HdfsPartStream:
    """Open an in-progress part as its sole owner; see ``PartStore.resume``."""
    path = handle.path_of(handle.in_progress)
    try:
        writer = access.append(path)
    except NotFound as error:
        raise part_refused(handle, _GONE) from error
    except (LeaseUnavailable, AlreadyExists) as error:
        raise part_refused(handle, "another process holds its lease") from error
    refusal = "its length cannot be read"
    try:
        # Only under the lease: before, its last holder may have been writing.
        refusal = _why_refused(access, handle, path)
    finally:
        if refusal:
            with suppress(StoreError):
                access.close_file(writer, path)
    if refusal:
        raise part_refused(handle, refusal)
    return HdfsPartStream(access, handle, writer)


def _why_refused(access: HdfsAccess, handle: PartHandle, path: str) -> str:
    status = access.status(path)
    if status is None:
        return _GONE
    if status.length_bytes != handle.valid_length:
        return f"it has {status.length_bytes} bytes instead of {handle.valid_length}"
    return ""


class HdfsPartStream(OpenStream):
    """An open part. The lease is held from opening to closing, over every persist.

    hdfs-native sends bytes on in packets; persisting sends the last one and waits for every DataNode of the block.

    Args:
        access: The store's files.
        handle: The part, as created or as resumed.
        writer: Open for appending; owned by this object from now on.
    """

    def __init__(self, access: HdfsAccess, handle: PartHandle, writer: RawFileWriter) -> None:
        super().__init__(handle.path_of(handle.in_progress))
        self._access = access
        self._handle = handle
        self._writer = writer
        self._position = handle.valid_length

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
        self._check_usable()
        rest = memoryview(data).cast("B")
        if not rest:
            return
        self._failure = "a write failed"
        with self._leased():
            self._access.write(self._writer, rest, self._path)
        self._position += len(rest)
        self._failure = ""

    def persist(self) -> PartHandle:
        """Make the bytes durable, unless they are; the name was when it was made. A failure poisons the stream."""
        self._check_usable()
        if self._position != self._handle.valid_length:
            self._failure = "persisting it failed"
            with self._leased():
                self._access.sync(self._writer, self._path)
            self._failure = ""
            self._handle = self._handle.at(self._position)
        return self._handle

    def verify(self) -> None:
        """Check that the part is still under its in-progress name.

        A coordinator renames a part before it cuts it, so as long as the name is there, every byte that counts is
        there too. The lease may be gone all the same, to a late ``close`` of another attempt; then the next write
        fails.
        """
        self._check_usable()
        if self._access.status(self._path) is None:
            raise part_refused(self._handle, _GONE)

    def close_for_commit(self) -> PartHandle:
        """Persist, rename to the pending name, release the lease.

        In this order, since a lease that was given back first could be taken by the name that others know. A lease
        follows its file through a rename.
        """
        checked_for_publishing(self._handle)
        handle = self.persist()
        self._failure = "it could not be made pending"
        try:
            rename_staged(self._access, self._path, handle.path_of(handle.pending))
        except NotFound as error:
            raise part_refused(handle, _GONE) from error
        self._is_closed = True
        close_durable(self._access, self._writer, handle.path_of(handle.pending))
        return handle

    def close(self) -> None:
        """Close the file, which releases the lease; a forked child does nothing, for the lease is its parent's.

        A close that HDFS did not answer is finished by lease recovery, so that the next batch can resume the part. If
        it was done and another attempt has opened the part since, that one loses its lease: its next write fails, the
        part is abandoned, and nothing that was acknowledged is lost.
        """
        if not self._is_ours_to_close:
            return
        self._is_closed = True
        # If the file or its lease is held by now, it is by another process.
        with suppress(NotFound, LeaseUnavailable):
            if not self._failure:
                close_durable(self._access, self._writer, self._path)
                return
            # After a failure that was reported there is nothing to add: the coordinator takes the lease by itself.
            with suppress(StoreError):
                self._access.close_file(self._writer, self._path)

    @contextmanager
    def _leased(self) -> Iterator[None]:
        """Say of a file that HDFS no longer finds open for us that it was taken away."""
        backoff = Backoff(self._access.options.call_timeout_s)
        try:
            yield
        except (NotFound, LeaseUnavailable) as error:
            raise part_refused(self._handle, _TAKEN) from error
        except OutcomeUnknown as error:
            # A DataNode refuses a fenced writer in words of its own; the coordinator renamed the file before it fenced.
            if backoff.left_s and self._has_lost_its_name():
                raise part_refused(self._handle, _TAKEN) from error
            raise

    def _has_lost_its_name(self) -> bool:
        with suppress(StoreError):
            return self._access.status(self._path) is None
        return False


_BUFFER_BYTES = 1 << 20
"""Also the most that is asked of WebHDFS at once."""


def open_staging_file(access: HdfsAccess, handle: PartHandle, *, fences: bool) -> io.BufferedReader:
    """Open a staging file to read its valid bytes; see ``PartStore.open_staging_file``."""
    path = handle.path_of(handle.in_progress)
    try:
        reader = access.open(path)
        if len(reader) < handle.valid_length:
            _check_length(access, handle)
            if fences:
                recover_lease(access, path)
                reader = access.open(path)
                if len(reader) < handle.valid_length:
                    raise staging_file_too_short(handle, len(reader))
    except NotFound as error:
        raise staging_file_gone(handle) from error
    file = _StagingFileReader(access, handle, reader)
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
        raise staging_file_gone(handle)
    if status.length_bytes < handle.valid_length:
        raise staging_file_too_short(handle, status.length_bytes)


class _StagingFileReader(SeekableFile):
    """The valid bytes of a staging file.

    Args:
        access: The store's files.
        handle: The staging file.
        reader: Of its closed blocks, as they were when it was opened.

    Raises:
        PartMissing: On reading what another process has removed meanwhile.
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
            f"no DataNode hands out byte {self._position} of staging file {self._access.shown(self._path)!r}, of "
            "which HDFS "
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
            raise staging_file_gone(self._handle) from error
        except (NotApplied, ConfigError) as error:
            # It may have been closed since it was opened.
            self._reader = self._access.open(self._path)
            if len(self._reader) > self._position:
                return self._read(count)
            raise NotReady(
                f"staging file {self._access.shown(self._path)!r} is open, and what was added to it last is seen over "
                f"WebHDFS alone: {error.message}",
                hint=error.hint or "Set http_address, or try again when its writer has ended.",
                path=self._path,
            ) from error
