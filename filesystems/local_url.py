"""Plain paths and ``file:`` URLs, and the scheme of any other URL."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.shown_urls import shown_url

SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_SUPPORTED = "a plain path, file://, hdfs://, s3:// or what fsspec can write to"
_INSTEAD = {
    "viewfs": "A view is resolved by its clients alone; name the cluster behind it: hdfs://name-service/path.",
    "webhdfs": "Part files need leases, which WebHDFS has not; write hdfs://namenode/path and set http_address.",
    "swebhdfs": "Part files need leases, which WebHDFS has not; write hdfs://namenode/path and set http_address.",
}


def local_path(url: str) -> str:
    """Return the absolute path that a plain path or a ``file:`` URL stands for.

    Raises:
        ConfigError: It has another scheme, names another host, or is relative although it is a URL.
    """
    match = SCHEME.match(url)
    if match is None:
        if not url:
            raise ConfigError("the base path is empty", hint="Name a directory; the working directory is '.'.")
        return str(Path(url).absolute())
    scheme = match.group(1).lower()
    if scheme != "file":
        raise ConfigError(
            f"no store for scheme {scheme!r}",
            hint=_INSTEAD.get(scheme)
            or f"Supported: {_SUPPORTED}. A local path that begins like this can be written as ./{scheme}:...",
        )
    return _path_of_file_url(url, url[match.end() :])


def _path_of_file_url(url: str, rest: str) -> str:
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", rest[:1], rest[1:])
    if host not in {"", "localhost"}:
        raise ConfigError(f"{shown_url(url)} names a host", hint="Write file:///path, with three slashes.")
    if "?" in path or "#" in path:
        raise ConfigError(f"{shown_url(url)} has a query or a fragment", hint="Write ? as %3F and # as %23.")
    if slash != "/":
        raise ConfigError(
            f"{shown_url(url)} is a relative file URL", hint="Write file:///absolute/path or a plain path."
        )
    try:
        return f"/{unquote(path, errors='strict')}"
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown_url(url)} does not decode to UTF-8") from error
