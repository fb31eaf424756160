"""The seam below the HDFS store: every call it makes of hdfs-native and of WebHDFS, one method each.

All paths are absolute. ``faults.intercept`` wraps an object of this class: the calls that change something are the
points at which the crash tests kill the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.hdfs_process import this_process
from partfile.filesystems.hdfs_setup import block_layout, configuration_of
from partfile.filesystems.hdfs_truncation import HdfsTruncation, connect_to_web

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus
    from hdfs_native._internal import RawFileWriter

    from partfile.filesystems.hdfs_options import HdfsOptions
    from partfile.filesystems.webhdfs import WebHdfs

CHANGING_CALLS = frozenset(
    {
        "create",
        "append",
        "write",
        "sync",
        "close",
        "rename",
        "make_directories",
        "recover_lease",
        "truncate",
        "delete",
    }
)
"""Methods that change files, their durability or their leases: the points at which dying makes a difference."""


class HdfsStatus(NamedTuple):
    """What the NameNode says of a path."""

    name: str
    length_bytes: int
    is_directory: bool
    modified_at_ms: int


class HdfsCalls:
    """Calls to one HDFS. Raises what hdfs-native raises; keeps no state but the address.

    Args:
        url: ``hdfs://host:port`` or ``hdfs://name-service``; None takes ``fs.defaultFS``.
        options: How to connect.

    Raises:
        ConfigError: Hadoop's files or its properties cannot be used.
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url
        self._options = options
        self._layout = block_layout(options, configuration_of(url, options))
        self._truncation = HdfsTruncation(url, options)
        self._web: WebHdfs | None = None

    @property
    def truncates(self) -> bool:
        """Whether a file can be cut in place, as far as is known without trying."""
        return self._truncation.is_possible

    def create(self, path: str) -> RawFileWriter:
        """Create a file exclusively, with its directories, and open it; the lease is this client's."""
        from hdfs_native import WriteOptions  # noqa: PLC0415 - only who opens an hdfs:// URL needs it.

        options = WriteOptions(
            block_size=self._layout.size_bytes,
            replication=self._layout.replication,
            overwrite=False,
            create_parent=True,
        )
        # Not by Client.create, whose FileWriter closes itself when it is collected: without deadline, or in a child.
        return self._client.inner.create(path, options)

    def append(self, path: str) -> RawFileWriter:
        """Open a closed file for appending, which takes its lease."""
        return self._client.inner.append(path)

    def write(self, writer: RawFileWriter, data: bytes | memoryview) -> None:
        """Hand over all of ``data``."""
        writer.write(data)

    def sync(self, writer: RawFileWriter) -> None:
        """Make everything handed over durable, on every DataNode of the block, and its length known."""
        writer.hsync()

    def close(self, writer: RawFileWriter) -> None:
        """Close an open file, which gives its lease back."""
        writer.close()

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically; replaces nothing, and moves into no directory (rename2 without overwrite)."""
        self._client.rename(path, new_path, overwrite=False)

    def make_directories(self, path: str) -> None:
        """Make a directory and what is missing above it."""
        self._client.mkdirs(path, create_parent=True)

    def recover_lease(self, path: str) -> bool:
        """Take the lease from whoever holds it; True when the file is closed, False while that takes its time."""
        return self._client.recover_lease(path)

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun. Asking again asks how far it is."""
        return self._truncation.truncate(path, length_bytes)

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete a file or an empty directory, or a whole tree; False if nothing is there."""
        return self._client.delete(path, recursive)

    def status(self, path: str) -> HdfsStatus:
        """What is under a path."""
        return _status(self._client.get_file_info(path))

    def list_status(self, path: str) -> list[HdfsStatus]:
        """What is directly in a directory."""
        return [_status(status) for status in self._client.list_status(path)]

    def count_directories(self, path: str) -> int:
        """How many directories are below one, at any depth."""
        # HDFS counts the one it is asked about as well, and none where that is a file.
        return max(0, self._client.get_content_summary(path).directory_count - 1)

    def open(self, path: str) -> FileReader:
        """Open a closed file for reading."""
        this_process().wait_for_inherited_connections()
        return self._client.read(path)

    def read(self, reader: FileReader, offset: int, count: int) -> bytes:
        """Read a range that the file has."""
        return reader.read_range(offset, count)

    def read_open(self, path: str, offset: int, count: int) -> bytes:
        """Read a range of a file that somebody has open, over WebHDFS; what its writer has made durable is seen."""
        if self._web is None:
            self._web = connect_to_web(self._url or "hdfs:///", self._options)
        return self._web.read(path, offset, count, self._options.call_timeout_s)

    @property
    def _client(self) -> Client:
        return this_process().client(self._url, self._options)


def _status(status: FileStatus) -> HdfsStatus:
    return HdfsStatus(status.path.rpartition("/")[2], status.length, status.isdir, status.modification_time)
