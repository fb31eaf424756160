"""``partfile.valid_length_filesystem``: finished files as a read-only fsspec file system, cut at valid lengths."""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import fsspec
from fsspec import AbstractFileSystem
from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

from partfile.errors import ConfigError, NotApplied
from partfile.readers.files import (
    DEFAULT_SIDECARS,
    MAX_SIDECAR_BYTES,
    SidecarNaming,
    finished_files,
    is_hidden,
    part_too_short,
    path_text,
    readable_bytes,
)
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.tree import check_encoding_of_names
from partfile.stores.options import check_mapping
from partfile.stores.parts import SeekableFile
from partfile.stores.paths import is_unicode
from partfile.stores.s3.options import S3Options
from partfile.stores.urls import SCHEMES, HdfsUrl, S3Url, check_no_secret, local_path, shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
        """The facts about a file or directory; about a symbolic link, that it is one.

        Raises:
            FileNotFoundError: It is not there, or behind a symbolic link.
        """
        path = self._strip_protocol(path)
        if path == self.base:
            return _info(path, os.stat(path))  # noqa: PTH116 - as below, where there is no Path.
        with self._directory_of(path) as (directory, name):
            return _info(path, os.stat(name, dir_fd=directory, follow_symlinks=False))

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:  # noqa: ARG002 - fsspec's signature
        """The entries directly in a directory; a file lists itself.

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


_LOCAL = {None, "file"}
_CLIENT_HINTS = {
    "dbfs": "Pass storage_options={'instance': 'HOST', 'token': 'TOKEN'}; or read the storage behind it, as "
    "s3://bucket/path."
}
"""Of schemes whose client does not say what it needs."""


def open_for_reading(
    url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> tuple[AbstractFileSystem, str]:
    """Find the file system of a base path.

    Args:
        url: A plain path or ``file:`` URL, as a sink takes it, or a URL of any file system that fsspec knows.
        storage_options: What its client in fsspec needs; none for local files; for HDFS and S3 what a sink takes.

    Returns:
        The file system and the path in it.

    Raises:
        ConfigError: fsspec knows no such scheme, its client is not installed, an option cannot be used, or the URL
            carries a secret.
    """
    url = path_text(url)
    check_mapping(storage_options)
    scheme = split_protocol(url)[0]
    if scheme in _LOCAL:
        if storage_options:
            raise ConfigError(
                f"local files take no storage_options, got {sorted(storage_options)}",
                hint="Leave storage_options out, or write the URL of a remote store, as s3://bucket/path.",
            )
        check_encoding_of_names(url)
        base = os.path.realpath(local_path(url))
        return LocalReading(base), base
    if scheme == "hdfs":
        return _open_hdfs(url, storage_options)
    if scheme in SCHEMES:
        return _open_s3(url, storage_options)
    check_no_secret(url)
    try:
        file_system, path = fsspec.core.url_to_fs(url, **(storage_options or {}))
    except (ImportError, ValueError, TypeError) as error:
        # What a client says may hold what it was given; an import names a package.
        said = str(error) if isinstance(error, ImportError) else type(error).__name__
        raise ConfigError(
            f"{shown_url(url)} cannot be opened for reading: {said}",
            hint=_CLIENT_HINTS.get(scheme)
            or "Check the scheme and storage_options, and install the client of the scheme, as for hdfs://: pip "
            "install 'partfile[hdfs]'",
        ) from None
    return file_system, path


def _open_hdfs(url: str, storage_options: Mapping[str, object] | None) -> tuple[AbstractFileSystem, str]:
    # Imported here: only such a URL needs the package.
    if find_spec("hdfs_native") is None:
        raise ConfigError(f"{shown_url(url)} needs the package hdfs-native", hint="pip install 'partfile[hdfs]'")
    from partfile.stores.hdfs.reader import HdfsReading  # noqa: PLC0415

    place = HdfsUrl.of(url)
    return HdfsReading(place, HdfsOptions.of(storage_options)), place.path


def _open_s3(url: str, storage_options: Mapping[str, object] | None) -> tuple[AbstractFileSystem, str]:
    place = S3Url.of(url)
    if find_spec("s3fs") is None:
        raise ConfigError(f"{shown_url(url)} needs the package s3fs", hint="pip install 'partfile[s3]'")
    from partfile.stores.s3.reader import reading_client  # noqa: PLC0415 - only S3 needs it.

    return reading_client(S3Options.of(storage_options)), f"{place.bucket}/{place.prefix}".rstrip("/")


class ValidPrefix(SeekableFile):
    """Reads an open file up to its valid length and never beyond.

    Args:
        file: Open for reading; closed with this one.
        valid_length: In bytes.
        path: Of the file, for messages.

    Raises:
        PartMissing: On reading, where the file ends before its valid length.
    """

    def __init__(self, file: Any, valid_length: int, path: str) -> None:
        super().__init__(path)
        self._file = file
        self._valid_length = valid_length

    @property
    def _end(self) -> int:
        return self._valid_length

    def readinto(self, buffer: Any) -> int:
        """Read up to the valid length."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._valid_length - self._position)
        if wanted <= 0:
            return 0
        if self._file.tell() != self._position:
            self._file.seek(self._position)
        data = self._file.read(wanted)
        if not data:
            raise part_too_short(self._path, self._position, self._valid_length)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file as well."""
        if not self.closed:
            self._file.close()
        super().close()


def valid_prefix(file: Any, valid_length: int, path: str) -> io.BufferedReader:
    """The valid part of an open file, buffered; closed together with the file.

    Raises:
        PartMissing: On reading, where the file ends before its valid length.
    """
    return io.BufferedReader(ValidPrefix(file, valid_length, path))


Info = dict[str, Any]

SHOWN_KINDS = ("file", "directory")


class ValidLengthFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types.
    """Finished files below a base path, read through another file system. Read-only.

    Staged files, sidecars and state are not there; a file with a sidecar has its valid length, and reads end there.
    Paths are those of the file system behind it. Symbolic links and names that are not UTF-8 are passed over, as a
    local store does.

    Args:
        fs: The file system behind it.
        base: The base path of the sink in it; nothing outside is shown.
        sidecars: How the sink names its sidecars.

    Raises:
        SnapshotCorrupt: On listing, looking and opening, where a sidecar is damaged.
        PartMissing: Likewise, where a file is shorter than its sidecar says.
        NotApplied: On every call that would write.
    """

    protocol = "partfile"
    root_marker = "/"
    cachable = False

    def __init__(
        self, fs: AbstractFileSystem, base: str, *, sidecars: SidecarNaming = DEFAULT_SIDECARS, **options: Any
    ) -> None:
        super().__init__(**options)
        if not isinstance(sidecars, SidecarNaming):
            raise ConfigError(
                f"sidecars={sidecars!r} is no SidecarNaming",
                hint="Pass the affixes that the sink has: sidecars=partfile.SidecarNaming(prefix='_')",
            )
        self.fs = fs
        self.base = fs._strip_protocol(base).rstrip("/")  # noqa: SLF001 - how fsspec's wrappers do it
        self.sidecars = sidecars

    @property
    def fsid(self) -> str:
        """The identity of the file system."""
        return f"partfile+{self.fs.fsid}"

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:  # noqa: ARG002 - fsspec's signature
        """The finished files and visible directories directly in a directory; a file lists itself.

        Raises:
            FileNotFoundError: It is not there, or not to be seen.
        """
        itself = self.info(path)
        if itself["type"] == "file":
            return [itself if detail else itself["name"]]
        found = self._entries(itself["name"])
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> Info:  # noqa: ARG002 - fsspec's signature
        """The facts about a finished file or a visible directory; its size is the number of bytes that count.

        Raises:
            FileNotFoundError: It is not there, or not to be seen.
        """
        behind = self._behind(path)
        entry: Info = {**self.fs.info(behind), "name": behind}
        if entry["type"] not in SHOWN_KINDS or (entry.get("islink") and behind != self.base):
            raise FileNotFoundError(path)
        if behind == self.base and entry["type"] != "directory":
            raise NotADirectoryError(path)
        if entry["type"] == "file":
            # Looked for after the file was seen: it was made before the file's name.
            sidecar = self.sidecars.sidecar_of(behind)
            after = {sidecar} if self._is_there(sidecar) else set()
            return next(self._finished({behind: entry}, after))
        return entry

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is a finished file or a visible directory; a damaged sidecar is an error, not an absence."""
        try:
            self.info(path, **kwargs)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether there is a visible directory; a store that cannot be asked is an error, not an absence."""
        return self._type_of(path) == "directory"

    def isfile(self, path: str) -> bool:
        """Whether there is a finished file; a store that cannot be asked is an error, not an absence."""
        return self._type_of(path) == "file"

    def walk(self, path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As fsspec's, but a directory that cannot be listed is an error: its rows would be missing in silence."""
        yield from super().walk(path, *args, **{"on_error": _raise_unless_absent, **kwargs})

    def _type_of(self, path: str) -> object:
        try:
            return self.info(path)["type"]
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "rb":
            self._refuse(path)
        entry = self.info(path)
        if entry["type"] != "file":
            raise IsADirectoryError(path)
        kwargs = {name: value for name, value in kwargs.items() if value is not None and name != "autocommit"}
        return valid_prefix(self.fs.open(entry["name"], "rb", **kwargs), entry["size"], entry["name"])

    def _entries(self, directory: str) -> list[Info]:
        shown = [entry for entry in self._list(directory, detail=True) if _is_shown(entry, directory)]
        files = {entry["name"]: entry for entry in shown if entry["type"] == "file"}
        names_after = set(self._list(directory, detail=False)) if files else set[str]()
        directories = [entry for entry in shown if entry["type"] == "directory"]
        return [*directories, *self._finished(files, names_after)]

    def _list(self, directory: str, *, detail: bool) -> list[Any]:
        # What a client remembers of earlier listings may be older than the files.
        self.fs.invalidate_cache(directory)
        found: list[Any] = self.fs.ls(directory, detail=detail)
        return found

    def _finished(self, files: Mapping[str, Info], names_after: set[str]) -> Iterator[Info]:
        """The finished ones among files, each with the size that counts and the path of its sidecar below the base."""
        seen = ((self._relative(name), int(entry["size"])) for name, entry in files.items())
        after = {self._relative(name) for name in names_after}
        for file in finished_files(seen, after, self.sidecars):
            name = self._absolute(file.path)
            length = None if file.sidecar is None else self._length_in(file.sidecar)
            yield {**files[name], "size": readable_bytes(file, length), "sidecar": file.sidecar}

    def _length_in(self, sidecar: str) -> int:
        path = self._absolute(sidecar)
        with self.fs.open(path, "rb") as file:
            return self.sidecars.length_in(file.read(MAX_SIDECAR_BYTES), path)

    def _is_there(self, behind: str) -> bool:
        # Not by ``exists``: that of fsspec takes every error for an absence, and a tail would be read as rows.
        try:
            self.fs.info(behind)
        except FileNotFoundError:
            return False
        return True

    def _behind(self, path: str) -> str:
        """A path as the file system behind knows it, if it is to be seen."""
        behind: str = self.fs._strip_protocol(self._strip_protocol(path)).rstrip("/")  # noqa: SLF001 - see __init__
        is_inside = behind == self.base or behind.startswith(f"{self.base}/")
        if not is_inside or (behind != self.base and is_hidden(self._relative(behind))):
            raise FileNotFoundError(path)
        return behind

    def _relative(self, behind: str) -> str:
        return behind[len(self.base) + 1 :]

    def _absolute(self, relative: str) -> str:
        return f"{self.base}/{relative}"

    def _refuse(self, *paths: object, **options: object) -> NoReturn:  # noqa: ARG002 - stands for any writing call
        raise NotApplied(
            "this file system shows finished files and cannot be written to",
            hint="Write by partfile.FileSink(BASE, uid=UID), or through the file system behind this one.",
            path=str(paths[0]) if paths else None,
        )

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = copy = mv = touch = pipe_file = pipe = put_file = put = (
        _refuse
    )


def _is_shown(entry: Info, directory: str) -> bool:
    """Whether an entry of a listing is a visible file or directory; some stores list the directory itself as well."""
    name = entry["name"].rstrip("/")
    is_plain = entry["type"] in SHOWN_KINDS and not entry.get("islink") and is_unicode(name)
    return is_plain and name != directory and not is_hidden(posixpath.basename(name))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def valid_length_filesystem(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, object] | None = None,
    *,
    sidecars: SidecarNaming = DEFAULT_SIDECARS,
) -> ValidLengthFileSystem:
    """Open the finished files below a base path as an fsspec file system.

    Args:
        url: The base path of a sink: a plain path, ``file:``, or any URL that fsspec opens.
        storage_options: What its client in fsspec needs; none for local files.
        sidecars: How the sink names its sidecars, if not by default.

    Returns:
        The file system; its ``base`` is the path to begin with.

    Raises:
        ConfigError: fsspec knows no such scheme, or its client is not installed.
    """
    file_system, path = open_for_reading(url, storage_options)
    return ValidLengthFileSystem(file_system, path, sidecars=sidecars)
