"""The local files below one base, for readers: opened step by step and through no link, as the store opens them."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from partfile.filesystems.posix import PosixCalls

if TYPE_CHECKING:
    from collections.abc import Iterator

_CALLS = PosixCalls()
_FIELDS = ("mode", "uid", "gid", "mtime", "ino", "nlink")


class LocalReading(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """fsspec's local files without those that a symbolic link, pipe or device below the base leads to.

    Args:
        base: The resolved absolute path of the base; nothing outside is there.
    """

    cachable = False

    def __init__(self, base: str, **options: Any) -> None:
        super().__init__(base=base, **options)
        self.base = base

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - fsspec's signature
        """What is known of a file or directory; of a symbolic link that it is one.

        Raises:
            FileNotFoundError: It is not there, or behind a symbolic link.
        """
        path = self._strip_protocol(path)
        if path == self.base:
            return _info(path, os.stat(path))  # noqa: PTH116 - as below, where there is no Path.
        with self._directory_of(path) as (directory, name):
            return _info(path, os.stat(name, dir_fd=directory, follow_symlinks=False))

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:  # noqa: ARG002 - fsspec's signature
        """What is directly in a directory; a file lists itself.

        Raises:
            FileNotFoundError: It is not there, or behind a symbolic link.
        """
        path = self._strip_protocol(path)
        entry = self.info(path)
        if entry["type"] != "directory":
            return [entry if detail else path]
        with self._directory(path) as directory:
            names = _CALLS.list_names(directory)
            if not detail:
                return [f"{path}/{name}" for name in names]
            seen = ((name, _CALLS.stat_name(directory, name)) for name in names)
            return [_info(f"{path}/{name}", status) for name, status in seen if status is not None]

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> BinaryIO:  # noqa: ARG002
        path = self._strip_protocol(path)
        if mode != "rb":
            raise PermissionError(errno.EACCES, "opened for reading alone", path)
        with self._directory_of(path) as (directory, name):
            descriptor = _CALLS.open_existing(directory, name, "read")
        if not stat.S_ISREG(_CALLS.stat_open(descriptor).st_mode):
            _CALLS.close(descriptor)
            raise _not_there(path)
        return os.fdopen(descriptor, "rb")

    @contextmanager
    def _directory_of(self, path: str) -> Iterator[tuple[int, str]]:
        above, _, name = path.rpartition("/")
        with self._directory(above) as directory, _links_are_absent(path):
            yield directory, name

    @contextmanager
    def _directory(self, path: str) -> Iterator[int]:
        """Hold a directory open that is reached from the base by real directories alone."""
        if path != self.base and not path.startswith(f"{self.base.rstrip('/')}/"):
            raise _not_there(path)
        directory = _CALLS.open_base(self.base)
        try:
            for segment in path[len(self.base) :].strip("/").split("/"):
                if segment:
                    with _links_are_absent(path):
                        below = _CALLS.open_directory(directory, segment)
                    _CALLS.close(directory)
                    directory = below
            yield directory
        finally:
            _CALLS.close(directory)


@contextmanager
def _links_are_absent(path: str) -> Iterator[None]:
    """Raise what the kernel says of a symbolic link, or of a file in a directory's place, as an absence."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise _not_there(path) from error
        raise


def _not_there(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _info(path: str, status: os.stat_result) -> dict[str, Any]:
    """As fsspec describes a local file."""
    kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file"}
    fields = {name: getattr(status, f"st_{name}") for name in _FIELDS}
    return {
        "name": path,
        "size": status.st_size,
        "type": kinds.get(stat.S_IFMT(status.st_mode), "other"),
        "created": status.st_ctime,
        "islink": stat.S_ISLNK(status.st_mode),
        **fields,
    }
