"""From a URL to the store that serves it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from partfile.errors import ConfigError
from partfile.stores.fsspec.schemes import FsspecUrl, canonical, is_of_fsspec
from partfile.stores.hdfs.options import COORDINATOR_OPTIONS, HdfsOptions
from partfile.stores.local.store import LocalStore
from partfile.stores.s3.options import S3Options
from partfile.stores.urls import SCHEME, SCHEMES, HdfsUrl, S3Url, local_path, shown_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.base import Cut, Store


def open_store(url: str, storage_options: Mapping[str, object] | None = None, *, create_base: bool = True) -> Store:
    """Open the store at ``url``.

    Args:
        url: A plain path, taken literally and relative to the working directory; a ``file:`` URL, which is
            percent-decoded and must be absolute; or an ``hdfs:`` or ``s3:`` URL, or one of fsspec's, which is literal.
        storage_options: What the store's client needs; none for local files, for others see
            ``HdfsOptions`` and ``S3Options``, or the client of fsspec.
        create_base: Make the base directory and what is missing above it with the first file; False for reading, which
            needs one that is there.

    Returns:
        A store that the caller closes.

    Raises:
        ConfigError: The scheme is not supported, its package is not installed, the URL names another host, or an
            option is unknown.
        NotApplied: The base is missing, or cannot be written to.
    """
    if _is_hdfs(url):
        return _open_hdfs(url, storage_options, create_base=create_base)
    if _is_s3(url):
        return _open_s3(url, storage_options, create_base=create_base)
    if is_of_fsspec(url):
        from partfile.stores.fsspec.store import FsspecStore  # noqa: PLC0415 - only such a URL needs it.

        return FsspecStore(url, storage_options, create_base=create_base)
    path = local_path(url)
    _check_local(storage_options)
    return LocalStore(path, create_base=create_base)


def options_for(url: str, base: str, storage_options: Mapping[str, object]) -> Mapping[str, object]:
    """The storage options of a base for another place: all of them where one service serves both, else none.

    So what opens the base opens what lies beside it, and credentials go to no other host, bucket or scheme.

    Args:
        url: The other place, as a path or a URL.
        base: What the options were given for.
        storage_options: What the client of the base needs.
    """
    if _is_hdfs(url) and _is_hdfs(base):
        known = HdfsOptions.of(storage_options)
        return storage_options if _hdfs_of(url, known) == _hdfs_of(base, known) else {}
    return storage_options if _service(url) == _service(base) else {}


def _service(url: str) -> tuple[str, str]:
    """Scheme and authority; every way to write a local path is of one service."""
    match = SCHEME.match(url)
    scheme = match.group(1).lower() if match else "file"
    if match is None or scheme == "file":
        return "file", ""
    scheme = SCHEMES[0] if scheme in SCHEMES else canonical(scheme)
    rest = url[match.end() :]
    return scheme, rest[2:].partition("/")[0].lower() if rest.startswith("//") else ""


def check_url(url: str) -> None:
    """Refuse a URL that no store serves, without opening one.

    Raises:
        ConfigError: The scheme is not supported, or the URL names another host or is relative.
    """
    if _is_hdfs(url):
        HdfsUrl.of(url)
    elif _is_s3(url):
        S3Url.of(url)
    elif is_of_fsspec(url):
        FsspecUrl.of(url)
    else:
        local_path(url)


def check_options(url: str, storage_options: Mapping[str, object], cut: Cut) -> None:
    """Refuse options that the coordinator's store at ``url`` could not use, without opening one or asking it anything.

    Raises:
        ConfigError: As ``open_store``; or Hadoop's files, the way to its web server or ``ca_file`` cannot be used.
    """
    if _is_hdfs(url):
        from partfile.stores.hdfs.client import check_setup  # noqa: PLC0415 - it loads TLS and HTTP.

        check_setup(HdfsUrl.of(url).root, HdfsOptions.of(storage_options), cut)
    elif _is_s3(url):
        S3Url.of(url)
        S3Options.of(storage_options)
    elif is_of_fsspec(url):
        from partfile.stores.fsspec.client import check_client  # noqa: PLC0415 - as above.

        check_client(FsspecUrl.of(url), storage_options)
    else:
        local_path(url)
        _check_local(storage_options)


def options_of_tasks(url: str, storage_options: Mapping[str, object]) -> dict[str, object]:
    """The ``storage_options`` of a process that writes or reads parts below ``url`` and never cuts one.

    The rest stays with the coordinator: of HDFS the way to the NameNode's web server, and the secret it asks for.
    """
    mine = COORDINATOR_OPTIONS if _is_hdfs(url) else frozenset[str]()
    return {name: value for name, value in storage_options.items() if name not in mine}


def with_call_timeout(url: str, storage_options: Mapping[str, object], timeout_s: float) -> Mapping[str, object]:
    """The options of a store whose calls end after ``timeout_s`` seconds, unless they say already after how many.

    Those of a store without such an option are the same: local files, and what fsspec opens.
    """
    if not _is_hdfs(url) and not _is_s3(url):
        return storage_options
    return {"call_timeout_s": timeout_s, **storage_options}


def has_directories(url: str) -> bool:
    """Whether a base is a directory, which is there without a file: not on S3, nor in what fsspec opens."""
    return not (_is_s3(url) or is_of_fsspec(url))


def is_same_place(one: str, other: str, storage_options: Mapping[str, object]) -> bool:
    """Whether two paths or URLs name the same place, whichever way they are written; local links are followed.

    Args:
        one: A path or URL.
        other: Another one.
        storage_options: What opens ``other``; says where an HDFS is that a URL does not name.

    Raises:
        ConfigError: One of them is of no store that there is.
    """
    return path_inside(one, other, storage_options) == ()


def is_adrift(url: str, base: str) -> bool:
    """Whether a path depends on the working directory although its base is where no working directory is."""
    match = SCHEME.match(base)
    is_remote = match is not None and match.group(1).lower() != "file"
    return is_remote and not SCHEME.match(url) and not Path(url).is_absolute()


def absolute(url: str) -> str:
    """A plain path as it is from the working directory of now; a URL as it is."""
    return url if SCHEME.match(url) else os.path.abspath(url)  # noqa: PTH100 - links stay as they are


def resolved(url: str) -> str:
    """A local path with its links followed as they are now; any other URL as it is.

    Raises:
        ConfigError: It is of no store that there is.
    """
    return os.path.realpath(local_path(url)) if is_local(url) else url


def is_local(url: str) -> bool:
    """Whether it is no URL of a store that is reached over a network, or by fsspec."""
    return not (_is_hdfs(url) or _is_s3(url) or is_of_fsspec(url))


def path_inside(path: str, base: str, storage_options: Mapping[str, object]) -> tuple[str, ...] | None:
    """The names from ``base`` down to ``path``, however both are written; None if it is elsewhere.

    Args:
        path: A path or URL.
        base: Another one.
        storage_options: What opens ``base``; says where an HDFS is that a URL does not name.

    Raises:
        ConfigError: One of them is of no store that there is.
    """
    if _is_hdfs(path) != _is_hdfs(base):
        check_url(path)
        check_url(base)
        return None
    known = HdfsOptions.of(storage_options if _is_hdfs(base) else None)
    inner, outer = _Place.of(path, known), _Place.of(base, known)
    if inner.file_system != outer.file_system or not inner.path.is_relative_to(outer.path):
        return None
    return inner.path.relative_to(outer.path).parts


class _Place(NamedTuple):
    """A form that two spellings of one place have in common."""

    file_system: str
    path: PurePosixPath

    @classmethod
    def of(cls, url: str, known: HdfsOptions) -> _Place:
        if _is_hdfs(url):
            return cls(f"hdfs://{_hdfs_of(url, known)}", PurePosixPath(HdfsUrl.of(url).path))
        if _is_s3(url):
            place = S3Url.of(url)
            return cls(f"s3://{place.bucket}", PurePosixPath("/", place.prefix))
        if is_of_fsspec(url):
            other = FsspecUrl.of(url)
            if other.scheme != "dir":
                return cls(other.file_system, PurePosixPath("/", other.place))
            return cls("file", PurePosixPath(os.path.realpath(other.path)))
        return cls("file", PurePosixPath(os.path.realpath(local_path(url))))


def is_of_one_process(url: str) -> bool:
    """Whether nothing but the process that writes there can see it."""
    return _scheme_of(url) == "memory"


def _is_hdfs(url: str) -> bool:
    return _scheme_of(url) == "hdfs"


def _is_s3(url: str) -> bool:
    return _scheme_of(url) in SCHEMES


def _scheme_of(url: str) -> str:
    match = SCHEME.match(url)
    return match.group(1).lower() if match else ""


def _hdfs_of(url: str, known: HdfsOptions) -> str:
    """The authority of an HDFS URL in one spelling; without one that of ``fs.defaultFS``, empty if that is no HDFS."""
    named = HdfsUrl.of(url).file_system
    if named:
        return named
    from partfile.stores.hdfs.client import default_file_system  # noqa: PLC0415 - likewise.

    return default_file_system(known)


def _open_hdfs(url: str, storage_options: Mapping[str, object] | None, *, create_base: bool) -> Store:
    # Imported here: only such a URL needs the package, and its import takes time.
    if find_spec("hdfs_native") is None:
        raise ConfigError(
            f"{shown_url(url)} needs the package hdfs-native, which is not installed",
            hint="pip install 'partfile[hdfs]'",
        )
    from partfile.stores.hdfs.store import HdfsStore  # noqa: PLC0415

    return HdfsStore(url, HdfsOptions.of(storage_options), create_base=create_base)


def _open_s3(url: str, storage_options: Mapping[str, object] | None, *, create_base: bool) -> Store:
    S3Url.of(url)
    if find_spec("s3fs") is None:
        raise ConfigError(
            f"{shown_url(url)} needs the package s3fs, which is not installed", hint="pip install 'partfile[s3]'"
        )
    from partfile.stores.s3.store import S3Store  # noqa: PLC0415

    return S3Store(url, S3Options.of(storage_options), create_base=create_base)


def _check_local(storage_options: Mapping[str, object] | None) -> None:
    if storage_options:
        raise ConfigError(
            f"local files take no storage_options, got {sorted(storage_options)}",
            hint="Leave storage_options out, or write the URL of a remote store, as s3://bucket/path.",
        )
