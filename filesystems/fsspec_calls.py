"""Calls of a file system of fsspec, one client a process. Paths are the file system's own; errors are its own too.

Traps, each seen in fsspec 2026.9.0: ``open("xb")`` and ``mode="create"`` are a look and then a write unless an
implementation says otherwise (local files and memory among those that do not); ``mv``, ``cp`` and ``rm`` expand glob
characters, ``mv`` is a copy by default; listings are remembered; leaving ``with open(...)`` by an error keeps the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import IO, TYPE_CHECKING, Any

import fsspec

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.fsspec_schemes import scheme_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

    from partfile.filesystems.fsspec_url import FsspecUrl

CHANGING_CALLS = frozenset(
    {"copy", "create", "link", "make_directories", "remove", "remove_directory", "rename", "upload", "write"}
)
_OURS = frozenset({"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"})
_CHUNK_BYTES = 8 << 20
# Memory looks and then writes. One lock for each process: a forked child must not inherit one that is held.
_MEMORY_LOCKS: dict[int, threading.Lock] = {}


class FsspecCalls:
    """The calls that a store makes. The client is made with the first, and again in a forked child.

    Args:
        url: The base.
        options: What the client takes.

    Raises:
        ConfigError: The client is not installed, or an option is not the user's to set.
    """

    def __init__(self, url: FsspecUrl, options: Mapping[str, object]) -> None:
        check_client(url, options)
        self._url = url
        self._options = dict(options)
        self._opened: tuple[int, AbstractFileSystem, str] | None = None

    @property
    def place(self) -> tuple[str, str]:
        """What tells one base of one server and account from others: its URL, and a digest of the options.

        Options that are objects differ by their address, so that an answer is at worst asked for again.
        """
        options = repr(sorted(self._options.items()))
        return str(self._url), hashlib.sha256(options.encode(errors="surrogatepass")).hexdigest()

    def root(self) -> str:
        """The path of the base."""
        return self._client()[1]

    def info(self, path: str) -> dict[str, Any]:
        """What is there: ``type``, ``size`` and more."""
        return dict(self._fresh().info(path))

    def entries(self, directory: str) -> list[dict[str, Any]]:
        """What is directly in a directory."""
        return list(self._fresh().ls(directory, detail=True))

    def modified(self, path: str) -> object:
        """When a file was changed, where a listing does not say it."""
        return self._files.modified(path)

    def read(self, path: str) -> bytes:
        """A whole file."""
        return bytes(self._files.cat_file(path))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """A part of a file, which must not be empty."""
        return bytes(self._files.cat_file(path, start=start, end=stop))

    def create(self, path: str, data: bytes) -> None:
        """Create a file on the condition that the name is free."""
        if self._url.scheme == "memory":
            with _MEMORY_LOCKS.setdefault(os.getpid(), threading.Lock()):
                self._files.pipe_file(path, data, mode="create")
        else:
            self._files.pipe_file(path, data, mode="create")

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whatever was there."""
        self._files.pipe_file(path, data)

    def upload(self, path: str, source: IO[bytes]) -> None:
        """Write a file from another one, whatever was there. After a failure a part of it may be there."""
        with self._files.open(path, "wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)

    def link(self, path: str, name: str) -> None:
        """Give a file another name, which must be free; only of ``dir``."""
        root = self._url.path
        self._files.fs.link(f"{root}/{path}", f"{root}/{name}")

    def rename(self, path: str, name: str) -> None:
        """Give a file another name; what has it is replaced."""
        self._files.mv(path, name)

    def copy(self, path: str, name: str) -> None:
        """Copy a file, whatever was there."""
        self._files.cp_file(path, name)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._files.rm_file(path)

    def make_directories(self, path: str) -> None:
        """Make a directory and those above it, unless they are there."""
        self._files.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        """Delete a directory that is empty."""
        self._files.rmdir(path)

    @property
    def _files(self) -> AbstractFileSystem:
        return self._client()[0]

    def _fresh(self) -> AbstractFileSystem:
        files = self._files
        files.invalidate_cache()
        return files

    def _client(self) -> tuple[AbstractFileSystem, str]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            # Not under a lock: one that was held at the fork would stay held. A second client does no harm.
            files, root = self._open()
            opened = self._opened = (os.getpid(), files, root)
        return opened[1], opened[2]

    def _open(self) -> tuple[AbstractFileSystem, str]:
        if self._url.scheme == "dir":
            inner = fsspec.filesystem("file", skip_instance_cache=True)
            return fsspec.filesystem("dir", path=self._url.path, fs=inner, skip_instance_cache=True), ""
        try:
            files, root = fsspec.core.url_to_fs(str(self._url), **self._options, skip_instance_cache=True)
        except (ImportError, TypeError, ValueError) as error:
            # Its text may hold what it was given.
            raise ConfigError(
                f"the client of {self._url} cannot be made: it raised {type(error).__name__}",
                hint=f"Check storage_options, which has {sorted(self._options)}.",
            ) from None
        listings = getattr(files, "dircache", None)
        if listings is not None:
            # An option of this name would reach the server's own client, where there is one that knows no such thing.
            listings.use_listings_cache = False
        return files, root


def check_client(url: FsspecUrl, options: Mapping[str, object]) -> None:
    """Insist that the client of a URL is installed and may be given these options, without asking it anything.

    Raises:
        ConfigError: It is not, and what to install; or an option is not the user's to set.
    """
    package = scheme_named(url.scheme).package
    try:
        fsspec.get_filesystem_class(url.scheme)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{url} needs the package {package or 'of its file system'}, which is not installed",
            hint=f"pip install {package}" if package else str(error),
        ) from error
    reserved = sorted(_OURS & set(options)) if url.scheme != "dir" else sorted(options)
    if reserved:
        raise ConfigError(f"storage_options of {url} cannot have {', '.join(reserved)}", hint="The store sets them.")
