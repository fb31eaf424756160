"""The calls of the fsspec store: paths below the base, errors of ours, directories where needed."""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import fsspec

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    FileTooLarge,
    NotApplied,
    NotFound,
    OutcomeUnknown,
    PartfileError,
)
from partfile.stores.base import StoredFile
from partfile.stores.checksums import crc32_of
from partfile.stores.fsspec.schemes import scheme_named
from partfile.stores.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fsspec import AbstractFileSystem

    from partfile.stores.fsspec.schemes import FsspecUrl, Scheme


_UNABLE = (NotImplementedError, TypeError)
"""It has no such call, or not with what it was given."""


@contextmanager
def translated(action: str, shown: str, *, changes: bool) -> Iterator[None]:
    """Raise what is raised inside as an error of ours.

    Args:
        action: What is done, for the message.
        shown: The URL of what it is done to.
        changes: Whether it changes anything: then a failure that says nothing may have done it.
    """
    try:
        yield
    except PartfileError:
        raise
    except FileNotFoundError:
        raise NotFound(f"{shown!r} is not there", path=shown) from None
    except FileExistsError:
        raise AlreadyExists(f"{shown!r} is there already", path=shown) from None
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise NotApplied(f"cannot {action} {shown!r}: {type(error).__name__}", path=shown) from None
    except _UNABLE as error:
        raise ConfigError(
            f"cannot {action} {shown!r}: its file system raised {_said(error)}",
            hint=(
                "A sink needs this. Write to another file system, or install a later version of its client: pip "
                "install --upgrade PACKAGE"
            ),
        ) from None
    except Exception as error:  # noqa: BLE001 - each client has errors of its own; raised again as ours.
        kind = OutcomeUnknown if changes else NotApplied
        raise kind(f"cannot {action} {shown!r}: {_said(error)}", path=shown) from None


def _said(error: Exception) -> str:
    number = getattr(error, "errno", None) or getattr(error, "code", None) or getattr(error, "status_code", None)
    return f"{type(error).__name__} {number}" if isinstance(number, int | str) else type(error).__name__


Result = TypeVar("Result")
_CHUNK_BYTES = 8 << 20
_ATTEMPTS = 5
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class Entry(NamedTuple):
    """One name in a directory."""

    path: str
    """Relative to the base."""
    is_file: bool
    found: dict[str, Any]


class FsspecAccess:
    """Files below one base. May be shared between threads.

    Args:
        url: The base.
        scheme: What is known of its file system.
        calls: The calls.
    """

    def __init__(self, url: FsspecUrl, scheme: Scheme, calls: FsspecCalls) -> None:
        self.url = url
        self.scheme = scheme
        self._calls = calls
        self._is_closed = False

    @property
    def place(self) -> tuple[str, str]:
        """The identity of the base, also among those of the same URL."""
        return self._calls.place

    def shown(self, path: str) -> str:
        """A path as a URL, for messages."""
        return f"{self.url}/{path}" if path else str(self.url)

    def info(self, path: str) -> dict[str, Any] | None:
        """The entry of a file; None if it is not there, or is a directory."""
        try:
            found = self._ask("look at", path, self._calls.info)
        except NotFound:
            return None
        return None if found.get("type") == "directory" else found

    def size(self, path: str) -> int | None:
        """The length of a file, in bytes; None if it is not there."""
        found = self.info(path)
        return None if found is None else int(found["size"])

    def read(self, path: str, max_bytes: int) -> bytes:
        """A whole file.

        Raises:
            NotFound: It is not there.
            FileTooLarge: It is longer than ``max_bytes``.
        """
        size = self.size(path)
        if size is None:
            raise NotFound(f"{self.shown(path)!r} is not there", path=path)
        if size > max_bytes:
            raise FileTooLarge(f"{self.shown(path)!r} has {size} bytes; at most {max_bytes} were expected", path=path)
        return self._ask("read", path, self._calls.read)

    def checksum(self, path: str, size: int) -> int:
        """The CRC-32 of a file of so many bytes."""
        crc32 = 0
        for start in range(0, size, _CHUNK_BYTES):
            crc32 = crc32_of(self._read_range(path, start, min(start + _CHUNK_BYTES, size)), crc32)
        return crc32

    def _read_range(self, path: str, start: int, stop: int) -> bytes:
        return self._ask("read", path, lambda full: self._calls.read_range(full, start, stop))

    def create(self, path: str, data: bytes) -> None:
        """Create a file on the condition that its name is free."""
        self._write(path, lambda full: self._calls.create(full, data))

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, whatever was there."""
        self._write(path, lambda full: self._calls.write(full, data))

    def upload(self, path: str, source: IO[bytes]) -> None:
        """Write a file from the beginning of another one, whatever was there."""

        def send(full: str) -> None:
            source.seek(0)
            self._calls.upload(full, source)

        self._write(path, send)

    def link(self, path: str, name: str) -> None:
        """Give a file another name, which must be free."""
        self._change("link", name, lambda full: self._calls.link(self._full(path), full))

    def rename(self, path: str, name: str) -> None:
        """Give a file another name; what has it is replaced."""
        self._change("rename to", name, lambda full: self._calls.rename(self._full(path), full))

    def copy(self, path: str, name: str) -> None:
        """Copy a file, whatever was there; through this process where the file system cannot."""

        def copy(full: str) -> None:
            try:
                self._calls.copy(self._full(path), full)
            except NotImplementedError:
                self._calls.write(full, self._calls.read(self._full(path)))

        self._change("copy to", name, copy)

    def remove(self, path: str) -> bool:
        """Delete a file; False if it is not there."""
        try:
            self._change("delete", path, self._calls.remove)
        except NotFound:
            return False
        return True

    def make_directory(self, path: str) -> None:
        """Make a directory and what is missing above it, where there are any."""
        if self.scheme.has_directories:
            self._change("make", path, self._calls.make_directories)

    def remove_directory(self, path: str) -> None:
        """Delete a directory, where there are any; leave it where something is in it."""
        if self.scheme.has_directories:
            with suppress(PartfileError):
                self._change("delete", path, self._calls.remove_directory)

    def entries(self, directory: str) -> Iterator[Entry]:
        """The entries directly in a directory; none if it is not there, or is a file."""
        try:
            found = self._ask("list", directory, self._calls.entries)
        except NotFound:
            return
        own = self._full(directory).strip("/")
        for one in found:
            full = str(one["name"]).strip("/")
            # A file is listed as itself, and so are objects that stand for directories.
            if full != own:
                name = full.rpartition("/")[2]
                path = f"{directory}/{name}" if directory else name
                yield Entry(path, one.get("type") != "directory", one)

    def stored(self, entry: Entry) -> StoredFile:
        """One file as a listing of the port shows it."""
        when = next((entry.found[key] for key in _TIMES if entry.found.get(key) is not None), None)
        if when is None:
            when = self._ask("look at", entry.path, self._calls.modified)
        return StoredFile(path=entry.path, size=int(entry.found["size"]), modified_at_ms=_milliseconds(when))

    def close(self) -> None:
        """Refuse further calls."""
        self._is_closed = True

    def _full(self, path: str) -> str:
        root = self._calls.root()
        return f"{root}/{path}" if root and path else root or path

    def _ask(self, action: str, path: str, call: Callable[[str], Result]) -> Result:
        with translated(action, self.shown(path), changes=False):
            return call(self._checked(path))

    def _change(self, action: str, path: str, call: Callable[[str], Result]) -> Result:
        with translated(action, self.shown(path), changes=True):
            return call(self._checked(path))

    def _write(self, path: str, call: Callable[[str], None]) -> None:
        for _ in range(_ATTEMPTS if self.scheme.has_directories else 0):
            try:
                self._change("write", path, call)
            except NotFound:
                # Its directory is missing; another process may delete it again before there is anything in it.
                self._change("make the directory of", path, lambda full: self._calls.make_directories(_parent(full)))
            else:
                return
        self._change("write", path, call)

    def _checked(self, path: str) -> str:
        check_relative_path(path)
        if set(path) & set(self.scheme.reserved):
            raise ConfigError(
                f"{path!r} is not a name on {self.url.scheme}://: "
                f"its client drops what follows {self.scheme.reserved!r}",
                hint="Use a bucketer that escapes it: bucketer=HiveBucketer(COLUMN)",
                path=path,
            )
        if self._is_closed:
            raise NotApplied(f"the store of {self.shown('')!r} is closed", path=path)
        return self._full(path)


def _parent(full: str) -> str:
    return full.rpartition("/")[0]


def _milliseconds(when: Any) -> int:
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        when = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return int(float(when) * 1000)


CHANGING_CALLS = frozenset(
    {"copy", "create", "link", "make_directories", "remove", "remove_directory", "rename", "upload", "write"}
)
_OURS = frozenset({"asynchronous", "loop", "skip_instance_cache", "use_listings_cache"})
_READ_CHUNK_BYTES = 8 << 20
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
        """The identity of a base on its server and account: its URL, and a digest of the options.

        Options that are objects differ by their address, so that an answer is at worst asked for again.
        """
        options = repr(sorted(self._options.items()))
        return str(self._url), hashlib.sha256(options.encode(errors="surrogatepass")).hexdigest()

    def root(self) -> str:
        """The path of the base."""
        return self._client()[1]

    def info(self, path: str) -> dict[str, Any]:
        """The entry under a path: ``type``, ``size`` and more."""
        return dict(self._fresh().info(path))

    def entries(self, directory: str) -> list[dict[str, Any]]:
        """The entries directly in a directory."""
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
            while chunk := source.read(_READ_CHUNK_BYTES):
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
        raise ConfigError(
            f"storage_options of {url} cannot have {', '.join(reserved)}",
            hint="The store sets them. Leave them out of storage_options={...}.",
        )
