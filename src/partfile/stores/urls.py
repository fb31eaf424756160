"""Base URLs (``file:``, ``hdfs:``, ``s3:``): parsed, and shown without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote

from partfile.errors import ConfigError

_AT = re.compile("@|%40", re.IGNORECASE)
_COLON = re.compile(":|%3A", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SCHEMES = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*[A-Za-z][A-Za-z0-9+.-]*://")
_LEFT_OUT = "..."


def shown_url(url: str) -> str:
    """The part of a URL that may be shown, quoted: between its last ``@`` and its first ``?``.

    A password may hold a slash or a ``?``, a signature an ``@``: where an ``@`` follows a ``?``, nothing is shown. A
    plain path is shown as it is.
    """
    if not _URL.match(url):
        return repr(url)
    before, is_query, query = url.partition("?")
    if _AT.search(query):
        return repr(_LEFT_OUT)
    signs = list(_AT.finditer(before))
    shown = f"{_LEFT_OUT}@{before[signs[-1].end() :]}" if signs else before
    return repr(f"{shown}?{_LEFT_OUT}" if is_query else shown)


def check_no_secret(url: str) -> None:
    """Refuse a URL that may carry a password or a signature, for URLs are in messages, logs and checkpoints.

    Raises:
        ConfigError: A colon stands before its last ``@``, or it has a query.
    """
    match = _SCHEMES.match(url)
    rest = url[match.end() :] if match else url
    signs = list(_AT.finditer(rest))
    if signs and _COLON.search(rest[: signs[-1].start()]):
        raise ConfigError(
            f"{shown_url(url)} has a password in it, or a colon before an @ that looks like one",
            hint="URLs are in messages; pass it by itself: FileSink(URL, storage_options=OPTIONS)",
        )
    if "?" in rest:
        raise ConfigError(
            f"{shown_url(url)} has a ? in it, and what follows may be a signature",
            hint=(
                "Write the URL without it, and pass what the client needs by itself: FileSink(URL, "
                "storage_options=OPTIONS)"
            ),
        )


SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_SUPPORTED = "a plain path, file:///path, hdfs://host:port/path, s3://bucket/prefix or what fsspec can write to"
INSTEAD = {
    "viewfs": "A view is resolved by its clients alone; name the cluster behind it: hdfs://name-service/path.",
    "webhdfs": "Part files need leases, which WebHDFS has not; write hdfs://namenode/path and set http_address.",
    "dbfs": "It is a path of Databricks; write the storage behind it: s3://bucket/path, or "
    "abfss://container@account.dfs.core.windows.net/path.",
    "s3n": "Write s3://bucket/path.",
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
            raise ConfigError(
                "the base path is empty",
                hint="Name a directory, as FileSink('/data/out', uid=UID); the working directory is '.'.",
            )
        if url.startswith("~"):
            raise ConfigError(
                f"{url!r} begins with ~, which only a shell makes a home directory",
                hint=f"Let the shell expand it, without quotes; in Python write os.path.expanduser({url!r}). "
                f"Write ./{url} for a directory that is called so.",
            )
        return str(Path(url).absolute())
    scheme = match.group(1).lower()
    if scheme != "file":
        raise ConfigError(
            f"no store for scheme {scheme!r}",
            hint=INSTEAD.get(scheme)
            or f"Supported: {_SUPPORTED}. A local path that begins like this can be written as ./{scheme}:...",
        )
    return _path_of_file_url(url, url[match.end() :])


def _path_of_file_url(url: str, rest: str) -> str:
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", rest[:1], rest[1:])
    if host not in {"", "localhost"}:
        raise ConfigError(f"{shown_url(url)} names a host", hint="Write file:///path, with three slashes.")
    if "?" in path or "#" in path:
        raise ConfigError(
            f"{shown_url(url)} has a query or a fragment", hint="Write ? as %3F and # as %23: file:///data/a%3Fb"
        )
    if slash != "/":
        raise ConfigError(
            f"{shown_url(url)} is a relative file URL", hint="Write file:///absolute/path or a plain path."
        )
    try:
        return f"/{unquote(path, errors='strict')}"
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{shown_url(url)} does not decode to UTF-8", hint="Write the plain path, or pathlib.Path(PATH).as_uri()."
        ) from error


_HDFS_URL = re.compile(r"hdfs:(?://([^/]*))?(/.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
_DEFAULT_PORT = ":8020"


class HdfsUrl(NamedTuple):
    """A place in HDFS."""

    authority: str
    """Host and port, or name service; empty for ``fs.defaultFS``."""
    path: str
    """Absolute, without doubled or trailing slashes; ``/`` for the root."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart. Its path is literal: Hadoop decodes no percent signs, and knows no query.

        Raises:
            ConfigError: It is not an absolute URL of HDFS, names a user, or its path has ``.``, ``..`` or a colon.
        """
        shown, match = shown_url(url), _HDFS_URL.fullmatch(url)
        authority, path = (match.group(1) or "", match.group(2) or "") if match else ("", "")
        if match is None or match.groups() == (None, None):
            raise ConfigError(f"{shown} is not an absolute URL of HDFS", hint="Write hdfs://namenode:8020/path.")
        if authority and not _AUTHORITY.fullmatch(authority):
            raise ConfigError(
                f"{shown} names no host or name service",
                hint="Write hdfs://host:port/path or hdfs://name-service/path; users go into storage_options.",
            )
        segments = [segment for segment in path.split("/") if segment]
        if "." in segments or ".." in segments:
            raise ConfigError(
                f"{shown} has a segment '.' or '..' in its path",
                hint="Write the path without it, as hdfs://host:port/path.",
            )
        if ":" in path:
            raise ConfigError(
                f"{shown} has a colon in its path, which HDFS refuses",
                hint="Write the path without it, as hdfs://host:port/path.",
            )
        return cls(authority, "/" + "/".join(segments))

    @property
    def root(self) -> str | None:
        """The URL of the file system alone; None for ``fs.defaultFS``."""
        return f"hdfs://{self.authority}" if self.authority else None

    def __str__(self) -> str:
        return f"hdfs://{self.authority}{self.path}"

    @property
    def file_system(self) -> str:
        """The authority in one spelling; empty for ``fs.defaultFS``."""
        return self.authority.lower().removesuffix(_DEFAULT_PORT)


SCHEMES = ("s3", "s3a")
_S3_URL = re.compile(r"s3a?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")


class S3Url(NamedTuple):
    """A place in S3."""

    bucket: str
    """The S3 bucket, which is not a bucket of a bucketer."""
    prefix: str
    """Keys begin with it; without slashes at its ends; empty for the whole S3 bucket."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart. Its path is literal: no percent sign is decoded.

        Raises:
            ConfigError: It is not a URL of S3, or its path has an empty segment, ``.`` or ``..``.
        """
        shown = shown_url(url)
        match = _S3_URL.fullmatch(url)
        if match is None or not match.group(1):
            raise ConfigError(f"{shown} names no S3 bucket", hint="Write s3://bucket/prefix; keys go elsewhere.")
        if not _BUCKET.fullmatch(match.group(1)):
            raise ConfigError(
                f"{shown} names no S3 bucket: the name of one is 2 to 63 letters, digits, '.', '_' or '-'",
                hint="Write s3://bucket/prefix; keys go elsewhere.",
            )
        prefix = (match.group(2) or "").strip("/")
        if prefix and {"", ".", ".."} & set(prefix.split("/")):
            raise ConfigError(
                f"{shown} has an empty segment, '.' or '..' in its path",
                hint="S3 takes them literally; write s3://bucket/prefix without them.",
            )
        return cls(match.group(1), prefix)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key_of(self, path: str) -> str:
        """The key of a path that is relative to this place; a path that is empty or ends in a slash is a prefix."""
        return f"{self.prefix}/{path}" if self.prefix else path
