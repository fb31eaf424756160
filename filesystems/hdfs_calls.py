"""The seam below the HDFS store: every call it makes of hdfs-native and of WebHDFS, one method each.

All paths are absolute. ``faults.intercept`` wraps an object of this class: the calls that change something are the
points at which the crash tests kill the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from partfile.filesystems.errors import NotApplied
from partfile.filesystems.hdfs_process import this_process

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileStatus, FileWriter

    from partfile.filesystems.hdfs_options import HdfsOptions

CHANGING_CALLS = frozenset(
    {
        "create",
        "append",
        "write",
        "sync",
        "close",
        "rename",
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
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url
        self._options = options

    @property
    def truncates(self) -> bool:
        """Whether there is a way to truncate, as far as is known."""
        return False

    def create(self, path: str) -> FileWriter:
        """Create a file exclusively, with its directories, and open it; the lease is this client's."""
        from hdfs_native import WriteOptions  # noqa: PLC0415 - only who opens an hdfs:// URL needs it.

        options = WriteOptions(
            block_size=self._options.block_size_bytes,
            replication=self._options.replication,
            overwrite=False,
            create_parent=True,
        )
        return self._client.create(path, options)

    def append(self, path: str) -> FileWriter:
        """Open a closed file for appending, which takes its lease."""
        return self._client.append(path)

    def write(self, writer: FileWriter, data: bytes | memoryview) -> None:
        """Hand over all of ``data``."""
        writer.write(data)

    def sync(self, writer: FileWriter) -> None:
        """Make everything handed over durable, on every DataNode of the block, and its length known."""
        writer.hsync()

    def close(self, writer: FileWriter) -> None:
        """Close an open file, which gives its lease back."""
        writer.close()

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically; replaces nothing, and moves into no directory (rename2 without overwrite)."""
        self._client.rename(path, new_path, overwrite=False)

    def recover_lease(self, path: str) -> bool:
        """Take the lease from whoever holds it; True when the file is closed, False while that takes its time."""
        return self._client.recover_lease(path)

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun."""
        raise NotApplied(
            f"{path!r} cannot be cut to {length_bytes} bytes: no address of WebHDFS is known",
            hint="Set dfs.namenode.http-address or the option http_address, or take cut='rewrite'.",
            path=path,
        )

    def delete(self, path: str, *, recursive: bool = False) -> bool:
        """Delete a file or an empty directory, or a whole tree; False if nothing is there."""
        return self._client.delete(path, recursive)

    def status(self, path: str) -> HdfsStatus:
        """What is under a path."""
        return _status(self._client.get_file_info(path))

    def list_status(self, path: str) -> list[HdfsStatus]:
        """What is directly in a directory."""
        return [_status(status) for status in self._client.list_status(path)]

    def open(self, path: str) -> FileReader:
        """Open a closed file for reading."""
        return self._client.read(path)

    def read(self, reader: FileReader, offset: int, count: int) -> bytes:
        """Read a range that the file has."""
        return reader.read_range(offset, count)

    @property
    def _client(self) -> Client:
        return this_process().client(self._url, self._options)


def _status(status: FileStatus) -> HdfsStatus:
    return HdfsStatus(status.path.rpartition("/")[2], status.length, status.isdir, status.modification_time)
