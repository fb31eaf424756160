"""HDFS for readers: hdfs-native's fsspec file system on the client that the stores of this process share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsspec import AbstractFileSystem
from hdfs_native.fsspec import HdfsFileSystem

from partfile.filesystems.hdfs_process import this_process
from partfile.filesystems.hdfs_url import HdfsUrl

if TYPE_CHECKING:
    from partfile.filesystems.hdfs_options import HdfsOptions


class HdfsReading(HdfsFileSystem):
    """One HDFS, with the options of a sink. Paths are literal, as the store takes them.

    Args:
        url: Where.
        options: How to connect; what only writing needs is not looked at.
    """

    cachable = False

    def __init__(self, url: HdfsUrl, options: HdfsOptions) -> None:
        # Not by the class above, which would make a client of its own without these options.
        AbstractFileSystem.__init__(self)
        host, _, port = url.authority.rpartition(":") if url.authority.rpartition(":")[2].isdigit() else ("", "", "")
        self.host = host or url.authority or None
        self.port = int(port) if port else None
        self.client = this_process().client(url.root, options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        # The class above reads it as a URL of the web, and ends names at ? and #.
        return HdfsUrl.of(path).path if path.lower().startswith("hdfs:") else f"/{path.strip('/')}"
