"""Read-only fsspec file system over HDFS, with the store's deadlines, retries and errors."""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem

from partfile.errors import NotApplied, NotFound, NotReady
from partfile.stores.hdfs.client import HdfsAccess, HdfsCalls, this_process
from partfile.stores.parts import SeekableFile
from partfile.stores.urls import HdfsUrl

if TYPE_CHECKING:
    from hdfs_native import FileReader

    from partfile.stores.hdfs.client import HdfsStatus
    from partfile.stores.hdfs.options import HdfsOptions


_BUFFER_BYTES = 1 << 20


class HdfsReading(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """One HDFS, with the options of a sink. Paths are literal, as the store takes them. Read-only.

    Asks for nothing when it is made, and may be used on in a forked child.

    Args:
        url: Where.
        options: How to connect and how long to wait for a call; what only writing needs is not looked at.

    Raises:
        FileNotFoundError: On looking, listing and opening, where nothing is under the path.
        NotApplied: On any call that HDFS refuses or has not answered within ``call_timeout_s``.
    """

    protocol = "hdfs"
    root_marker = "/"
    cachable = False

    def __init__(self, url: HdfsUrl, options: HdfsOptions) -> None:
        super().__init__()
        self._url = url
        self._access = HdfsAccess(url.root or "hdfs://", "", options, HdfsCalls(url.root, options))

    @property
    def fsid(self) -> str:
        """The identity of the file system."""
        return f"hdfs+{self._url.file_system}"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return HdfsUrl.of(path).path if path.lower().startswith("hdfs:") else f"/{path.strip('/')}"

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        return f"hdfs://{self._url.authority}{self._strip_protocol(name)}"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - fsspec's signature
        """The entry under a path."""
        path = self._strip_protocol(path)
        status = self._access.status(path[1:])
        if status is None:
            raise _not_found(path)
        return _entry(path, status)

    def exists(self, path: str, **kwargs: Any) -> bool:  # noqa: ARG002 - fsspec's signature
        """Whether anything is under a path; HDFS that does not answer is an error, not an absence."""
        return self._access.status(self._strip_protocol(path)[1:]) is not None

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # noqa: ARG002 - fsspec's signature
        """The entries directly in a directory; a file lists itself."""
        path = self._strip_protocol(path)
        found = self._access.list_status(path[1:])
        if not found:
            self.info(path)  # An empty directory is one that is there.
        entries = [_entry(f"{path.rstrip('/')}/{status.name}".rstrip("/"), status) for status in found]
        return entries if detail else [entry["name"] for entry in entries]

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> io.BufferedReader:  # noqa: ARG002 - fsspec's
        if mode != "rb":
            raise NotApplied(
                f"{path!r} can be opened for reading only",
                hint="Write by partfile.FileSink(BASE, uid=UID).",
                path=path,
            )
        return io.BufferedReader(_OpenFile(self._access, self._strip_protocol(path)), _BUFFER_BYTES)


class _OpenFile(SeekableFile):
    """A file of HDFS, each read with its deadline.

    Args:
        access: The file system.
        path: Absolute.

    Raises:
        FileNotFoundError: It is not there.
        NotReady: On reading to the end that HDFS shows, where a writer still has the file open and its end is unknown.
    """

    def __init__(self, access: HdfsAccess, path: str) -> None:
        super().__init__(path)
        self._access = access
        self._process = this_process()
        self._reader = self._opened()

    @property
    def _end(self) -> int:
        return len(self._reader)

    def readinto(self, buffer: Any) -> int:
        """Read what HDFS shows of the file."""
        if self._process is not this_process():
            # A connection of the parent's would never answer.
            self._reader, self._process = self._opened(), this_process()
        view = memoryview(buffer).cast("B")
        # hdfs-native panics where a range ends beyond the file.
        count = min(len(view), len(self._reader) - self._position)
        if count <= 0:
            if view:
                self._check_closed()
            return 0
        view[:count] = self._access.read(self._reader, self._position, count, self._path[1:])
        self._position += count
        return count

    def _opened(self) -> FileReader:
        try:
            return self._access.open(self._path[1:])
        except NotFound as error:
            raise _not_found(self._path) from error

    def _check_closed(self) -> None:
        """Raise where there is more than was read: of an open file HDFS shows its closed blocks alone.

        A file that is gone may have been open before it was renamed, so nothing is known of its end either.
        """
        status, shown = self._access.status(self._path[1:]), len(self._reader)
        if status is not None and status.length_bytes <= shown:
            return
        now = "it has moved since" if status is None else f"it has {status.length_bytes}"
        raise NotReady(
            f"{self._access.shown(self._path[1:])!r} was open when a reader saw {shown} bytes of it, and {now}",
            hint=(
                "Read again later: the sink closes what a writer holds open before it publishes it. See which are "
                "open: hdfs fsck PATH -openforwrite"
            ),
            path=self._path,
        )


def _entry(path: str, status: HdfsStatus) -> dict[str, Any]:
    return {
        "name": path,
        "size": status.length_bytes,
        "type": "directory" if status.is_directory else "file",
        "modification_time": status.modified_at_ms,
    }


def _not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
