"""From a URL to the store that serves it."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.local import LocalStore
from partfile.filesystems.s3_options import S3Options
from partfile.filesystems.s3_url import SCHEMES, S3Url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.filesystems.port import Store

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_SUPPORTED = "a plain path, file:// and s3://"


def open_store(url: str, storage_options: Mapping[str, object] | None = None, *, create_base: bool = True) -> Store:
    """Open the store at ``url``.

    Args:
        url: A plain path, taken literally and relative to the working directory, or a ``file:`` URL, which is
            percent-decoded and must be absolute; or ``s3://bucket/prefix``, literally.
        storage_options: What the store's client needs, see ``S3Options``; none for local files.
        create_base: Make the base directory and what is missing above it; False for reading.

    Returns:
        A store that the caller closes.

    Raises:
        ConfigError: The scheme is not supported or needs a package that is not installed, the URL names another host,
            or an option is unknown.
        NotApplied: The base is missing, or cannot be written to.
    """
    if _is_s3(url):
        return _s3_store(url, storage_options, create_base=create_base)
    if storage_options:
        raise ConfigError(
            f"local files take no storage_options, got {sorted(storage_options)}",
            hint="Leave storage_options out, or check the URL.",
        )
    return LocalStore(local_path(url), create_base=create_base)


def check_url(url: str) -> None:
    """Refuse a URL that no store serves, without opening one.

    Raises:
        ConfigError: The scheme is not supported, or the URL names another host or is relative.
    """
    _place(url)


def local_path(url: str) -> str:
    """Return the absolute path that a plain path or a ``file:`` URL stands for.

    Raises:
        ConfigError: It has another scheme, names another host, or is relative although it is a URL.
    """
    match = _SCHEME.match(url)
    if match is None:
        if not url:
            raise ConfigError("the base path is empty")
        return str(Path(url).absolute())
    scheme = match.group(1).lower()
    if scheme != "file":
        raise ConfigError(
            f"no store for scheme {scheme!r}",
            hint=f"Supported: {_SUPPORTED}. A local path that begins like this can be written as ./{scheme}:...",
        )
    return _path_of_file_url(url, url[match.end() :])


def is_same_place(one: str, other: str) -> bool:
    """Whether two paths or URLs name the same place, whichever way they are written; links are followed.

    Raises:
        ConfigError: One of them is of no store that there is.
    """
    return _place(one) == _place(other)


def path_inside(path: str, base: str) -> tuple[str, ...] | None:
    """The names from ``base`` down to ``path``, however both are written; None if it is elsewhere.

    Raises:
        ConfigError: One of them is of no store that there is.
    """
    (inner_root, inner), (outer_root, outer) = _place(path), _place(base)
    is_inside = inner_root == outer_root and inner.is_relative_to(outer)
    return inner.relative_to(outer).parts if is_inside else None


def _place(url: str) -> tuple[str, PurePosixPath]:
    """What is the same for everything in one file system or S3 bucket, and the path in it with links followed."""
    if _is_s3(url):
        place = S3Url.of(url)
        return f"s3://{place.bucket}", PurePosixPath("/", place.prefix)
    return "", PurePosixPath(os.path.realpath(local_path(url)))


def _is_s3(url: str) -> bool:
    match = _SCHEME.match(url)
    return match is not None and match.group(1).lower() in SCHEMES


def _s3_store(url: str, storage_options: Mapping[str, object] | None, *, create_base: bool) -> Store:
    S3Url.of(url)
    if find_spec("s3fs") is None:
        raise ConfigError("s3:// needs the package s3fs, which is not installed", hint="pip install 'partfile[s3]'")
    from partfile.filesystems.s3 import S3Store  # noqa: PLC0415 - only who opens an s3:// URL needs it.

    return S3Store(url, S3Options.of(storage_options), create_base=create_base)


def _path_of_file_url(url: str, rest: str) -> str:
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", rest[:1], rest[1:])
    if host not in {"", "localhost"}:
        raise ConfigError(f"{url!r} names the host {host!r}", hint="Write file:///path, with three slashes.")
    if "?" in path or "#" in path:
        raise ConfigError(f"{url!r} has a query or a fragment", hint="Write ? as %3F and # as %23.")
    if slash != "/":
        raise ConfigError(f"{url!r} is a relative file URL", hint="Write file:///absolute/path or a plain path.")
    try:
        return f"/{unquote(path, errors='strict')}"
    except UnicodeDecodeError as error:
        raise ConfigError(f"{url!r} does not decode to UTF-8") from error
