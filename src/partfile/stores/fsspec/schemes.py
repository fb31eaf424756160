"""URLs of file systems that fsspec reaches and that have no store of their own, taken literally."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from partfile.errors import ConfigError
from partfile.stores.urls import INSTEAD, check_no_secret, shown_url


class Way(StrEnum):
    """The ways to give a whole file its name, the best first."""

    LINK = "link"
    """A second name for a staged file: at once, and replacing nothing."""
    CREATE = "create"
    """The bytes are sent again on the condition that the name is free: at once, and replacing nothing."""
    RENAME = "rename"
    """A rename that replaces; so a look goes before it."""
    COPY = "copy"
    """A copy, or writing again, of which nothing is known; a look goes before and after it."""


MOVING = frozenset({Way.LINK, Way.RENAME})
"""The ways that need no copy to give a file another name."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One file system of fsspec."""

    way: Way = Way.COPY
    package: str = ""
    """The package to install; empty where fsspec names it."""
    is_durable: bool = False
    """Acknowledged bytes survive power loss."""
    is_shared: bool = True
    """Other processes see the same files."""
    has_directories: bool = True
    """A directory is made before there are files in it, and stays when they are gone."""
    reserved: str = ""
    """Characters that its client does not take as part of a name."""
    threads: int = 1
    """Calls that a process does well to make at the same time."""


_GOOGLE = Scheme(Way.CREATE, "gcsfs", is_durable=True, has_directories=False, threads=8)
# adlfs takes what follows a question mark for the version of a blob, and drops it.
_AZURE = Scheme(Way.CREATE, "adlfs", is_durable=True, has_directories=False, reserved="?", threads=8)
_SSH = Scheme(Way.RENAME, "paramiko")
_UNKNOWN = Scheme()

_KNOWN = {
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "dir": Scheme(Way.LINK, is_shared=False),
    "gcs": _GOOGLE,
    "gs": _GOOGLE,
    "memory": Scheme(Way.CREATE, is_shared=False, has_directories=False),
    "sftp": _SSH,
    "smb": Scheme(Way.RENAME, "smbprotocol"),
    "ssh": _SSH,
}

_SAME_PLACE = {"abfss": "abfs", "az": "abfs", "gcs": "gs", "ssh": "sftp"}

_READ_ONLY = "it can only be read"
_ARCHIVE = "it is an archive, in which a file cannot get another name"
_CACHE = "it is a cache, which shows what is no longer so; write the URL behind it"
_NO_STORAGE = "it is not a storage of its own; write the URL behind it"
_OWN = "partfile has a store of its own for it"
_REFUSED = {
    "adl": "Azure has shut it down; write abfs://container@account.dfs.core.windows.net/path",
    "arrow_hdfs": f"{_OWN}; write hdfs://",
    "async_wrapper": _NO_STORAGE,
    "asynclocal": f"{_OWN}; write file://",
    "asyncwrapper": _NO_STORAGE,
    "blockcache": _CACHE,
    "cached": _CACHE,
    "dask": _NO_STORAGE,
    "data": _READ_ONLY,
    "dbfs": "it shows files of another storage, which has a URL of its own",
    "dvc": _READ_ONLY,
    "filecache": _CACHE,
    "generic": _NO_STORAGE,
    "gist": _READ_ONLY,
    "git": _READ_ONLY,
    "github": _READ_ONLY,
    "http": _READ_ONLY,
    "https": _READ_ONLY,
    "libarchive": _ARCHIVE,
    "local": f"{_OWN}; write file://",
    "pyscript": _NO_STORAGE,
    "reference": _READ_ONLY,
    "simplecache": _CACHE,
    "tar": _ARCHIVE,
    "wandb": _READ_ONLY,
    "zip": _ARCHIVE,
}


def scheme_named(name: str) -> Scheme:
    """The properties of the file system of a scheme; a scheme that is not in the table has none."""
    return _KNOWN.get(name, _UNKNOWN)


def is_listed(name: str) -> bool:
    """Whether anything is known of a scheme."""
    return name in _KNOWN or name in _REFUSED


def why_refused(name: str) -> str | None:
    """Why no sink can write to the file systems of a scheme; None if one can."""
    return _REFUSED.get(name)


def canonical(name: str) -> str:
    """The one name of a scheme that has several."""
    return _SAME_PLACE.get(name, name)


_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_DIRECTORY = "dir::file://"
_ELSEWHERE = frozenset({"", "file", "hdfs", "viewfs", "webhdfs", "swebhdfs", "s3", "s3a"})
"""Schemes that have a store of their own, or are told which one to write instead."""


class FsspecUrl(NamedTuple):
    """A place in such a file system."""

    scheme: str
    authority: str
    path: str
    """Without slashes at its ends; of ``dir`` an absolute path."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart.

        Raises:
            ConfigError: No sink can write there, or it carries a secret, or its path is none.
        """
        if url.startswith(_DIRECTORY):
            return cls("dir", "", _checked(url, url.removeprefix(_DIRECTORY), is_absolute=True))
        match = _URL.fullmatch(url)
        if match is None or "::" in url:
            hint = INSTEAD.get(url.partition(":")[0].lower(), "Write scheme://place/path.")
            raise ConfigError(f"{shown_url(url)} is not the URL of one file system", hint=hint)
        scheme, authority, path = match.group(1).lower(), match.group(2), match.group(3) or ""
        if scheme == "dir":
            raise ConfigError(
                f"{shown_url(url)} does not say of what it is a directory",
                hint=f"Write {_DIRECTORY}/absolute/path.",
            )
        reason = why_refused(scheme)
        if reason is not None:
            raise ConfigError(
                f"a sink cannot write to {scheme}://: {reason}",
                hint=INSTEAD.get(scheme)
                or "The base is a plain path, file:///path, hdfs://host:port/path, s3://bucket/prefix or what fsspec "
                "can write to.",
            )
        check_no_secret(url)
        if scheme_named(scheme).package and not authority:
            raise ConfigError(f"{shown_url(url)} names no place", hint=f"Write {scheme}://place/path.")
        return cls(scheme, authority, _checked(url, path, is_absolute=False))

    def __str__(self) -> str:
        return f"{_DIRECTORY}{self.path}" if self.scheme == "dir" else f"{self.scheme}://{self.place}"

    @property
    def place(self) -> str:
        """Authority and path."""
        return f"{self.authority}/{self.path}".rstrip("/")

    @property
    def file_system(self) -> str:
        """The kind of the file system, however its scheme is written."""
        return f"{canonical(self.scheme)}://"


def is_of_fsspec(url: str) -> bool:
    """Whether a URL names a file system that fsspec knows, or refuses, and that has no store of its own."""
    scheme, separator, _ = url.partition(":")
    scheme = scheme.lower()
    if not separator or scheme in _ELSEWHERE:
        return False
    if is_listed(scheme):
        return True
    from fsspec.registry import known_implementations, registry  # noqa: PLC0415 - it loads asyncio.

    return scheme in known_implementations or scheme in registry


def _checked(url: str, path: str, *, is_absolute: bool) -> str:
    if is_absolute and not path.startswith("/"):
        raise ConfigError(f"{shown_url(url)} is a relative file URL", hint=f"Write {_DIRECTORY}/absolute/path.")
    inner = path.strip("/")
    if inner and {"", ".", ".."} & set(inner.split("/")):
        raise ConfigError(
            f"{shown_url(url)} has an empty segment, '.' or '..' in its path", hint="Write scheme://place/path."
        )
    if set(path) & set("?#*["):
        raise ConfigError(
            f"{shown_url(url)} has one of ?, #, * and [ in its path",
            hint="Some file systems do not take them. Write scheme://place/path without them.",
        )
    return f"/{inner}" if is_absolute else inner
