"""From a URL to the store that serves it."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.filesystems.port import Store

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_SUPPORTED = "a plain path or file://"


def open_store(url: str, storage_options: Mapping[str, object] | None = None, *, create_base: bool = True) -> Store:
    """Open the store at ``url``.

    Args:
        url: A plain path, taken literally and relative to the working directory, or a ``file:`` URL, which is
            percent-decoded and must be absolute.
        storage_options: What the store's client needs; none for local files.
        create_base: Make the base directory and what is missing above it with the first file; False for reading, which
            needs one that is there.

    Returns:
        A store that the caller closes.

    Raises:
        ConfigError: The scheme is not supported, the URL names another host, or an option is unknown.
        NotApplied: The base is missing, or cannot be written to.
    """
    if storage_options:
        raise ConfigError(
            f"local files take no storage_options, got {sorted(storage_options)}",
            hint="Leave storage_options out, or check the URL.",
        )
    return LocalStore(local_path(url), create_base=create_base)


def options_for(url: str, base: str, storage_options: Mapping[str, object]) -> Mapping[str, object]:
    """The storage options of a base for another place: all of them where one service serves both, else none.

    So what opens the base opens what lies beside it, and credentials go to no other host, bucket or scheme.

    Args:
        url: The other place, as a path or a URL.
        base: What the options were given for.
        storage_options: What the client of the base needs.
    """
    return storage_options if _service(url) == _service(base) else {}


def _service(url: str) -> tuple[str, str]:
    """Scheme and authority; every way to write a local path is of one service."""
    match = _SCHEME.match(url)
    scheme = match.group(1).lower() if match else "file"
    if match is None or scheme == "file":
        return "file", ""
    rest = url[match.end() :]
    return scheme, rest[2:].partition("/")[0].lower() if rest.startswith("//") else ""


def check_url(url: str) -> None:
    """Refuse a URL that no store serves, without opening one.

    Raises:
        ConfigError: The scheme is not supported, or the URL names another host or is relative.
    """
    local_path(url)


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
    return os.path.realpath(local_path(one)) == os.path.realpath(local_path(other))


def absolute(url: str) -> str:
    """A plain path as it is from the working directory of now; a URL as it is."""
    return url if _SCHEME.match(url) else os.path.abspath(url)  # noqa: PTH100 - links stay as they are


def path_inside(path: str, base: str) -> tuple[str, ...] | None:
    """The names from ``base`` down to ``path``, however both are written; None if it is elsewhere.

    Raises:
        ConfigError: One of them is of no store that there is.
    """
    inner, outer = (PurePosixPath(os.path.realpath(local_path(one))) for one in (path, base))
    return inner.relative_to(outer).parts if inner.is_relative_to(outer) else None


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
