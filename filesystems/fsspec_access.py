"""What the verbs of the fsspec store do to files: paths below the base, errors of ours, directories where needed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import ConfigError, FileTooLarge, NotApplied, NotFound, PartfileError
from partfile.filesystems.fsspec_errors import translated
from partfile.filesystems.port import StoredFile
from partfile.filesystems.relative_paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.filesystems.fsspec_calls import FsspecCalls
    from partfile.filesystems.fsspec_schemes import Scheme
    from partfile.filesystems.fsspec_url import FsspecUrl

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
        """What tells the base from others, under its URL too."""
        return self._calls.place

    def shown(self, path: str) -> str:
        """A path as a URL, for messages."""
        return f"{self.url}/{path}" if path else str(self.url)

    def info(self, path: str) -> dict[str, Any] | None:
        """What a file is like; None if it is not there, or is a directory."""
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
        """What is directly in a directory; nothing if it is not there, or is a file."""
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
                # Its directory is missing; somebody may delete it again before there is anything in it.
                self._change("make the directory of", path, lambda full: self._calls.make_directories(_parent(full)))
            else:
                return
        self._change("write", path, call)

    def _checked(self, path: str) -> str:
        check_relative_path(path)
        if set(path) & set(self.scheme.reserved):
            raise ConfigError(
                f"{path!r} is no name on {self.url.scheme}://: its client drops what follows {self.scheme.reserved!r}",
                hint="Use a bucketer that escapes it, as HiveBucketer does.",
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
