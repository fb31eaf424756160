"""Open parts on HDFS: one that is written, held by its lease, and a staging file that is read."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from partfile.errors import (
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    StoreError,
)
from partfile.stores.parts import (
    OpenStream,
    SeekableFile,
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


GONE = "it is no longer under its in-progress name"
_TAKEN = "its lease was taken, or it was deleted"


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
            raise part_refused(self._handle, GONE)

    def close_for_commit(self) -> PartHandle:
        """Persist, rename to the pending name, release the lease.

        In this order, since a lease that was given back first could be taken by the name that others know. A lease
        follows its file through a rename.
        """
        checked_for_publishing(self._handle)
        handle = self.persist()
        self._failure = "it could not be made pending"
        try:
            self._access.move(self._path, handle.path_of(handle.pending))
        except NotFound as error:
            raise part_refused(handle, GONE) from error
        self._is_closed = True
        self._access.close_durable(self._writer, handle.path_of(handle.pending))
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
                self._access.close_durable(self._writer, self._path)
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


BUFFER_BYTES = 1 << 20
"""Also the most that is asked of WebHDFS at once."""


class StagingFileReader(SeekableFile):
    """The valid bytes of a staging file.

    Args:
        access: The store's files.
        handle: The staging file.
        reader: Of its closed blocks, as they were when it was opened.

    Raises:
        PartMissing: On reading what another process has removed meanwhile.
        NotApplied: On reading a block that no DataNode can serve, such as one without its checksum.
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

    def check_length(self) -> None:
        """See that HDFS knows of the valid bytes, of which the last ones may be in a block that is not closed."""
        status = self._access.status(self._path)
        if status is None:
            raise staging_file_gone(self._handle)
        if status.length_bytes < self._end:
            raise staging_file_too_short(self._handle, status.length_bytes)

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
        """The error where no byte comes; raises PartMissing where HDFS does not know of the byte either."""
        self.check_length()
        # A DataNode ends its answer like this where a block does not have its checksum: that is no reason to lose it.
        return NotApplied(
            f"no DataNode can serve byte {self._position} of staging file {self._access.shown(self._path)!r} "
            f"(it has at least {self._handle.valid_length} bytes)",
            hint="A block may be damaged: see `hdfs fsck -openforwrite -files -blocks` for its directory.",
            path=self._path,
        )

    def _read(self, count: int) -> bytes:
        closed = min(count, len(self._reader) - self._position)
        if closed > 0:
            return self._access.read(self._reader, self._position, closed, self._path)
        try:
            return self._access.read_open(self._path, self._position, min(count, BUFFER_BYTES))
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
                hint=error.hint
                or (
                    "Try again when its writer has ended; or say where WebHDFS is, with http_address=host:port in "
                    "storage_options."
                ),
                path=self._path,
            ) from error
