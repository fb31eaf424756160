"""URLs of file systems that fsspec reaches and that have no store of their own, taken literally."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from fsspec.registry import known_implementations, registry

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.fsspec_schemes import canonical, is_listed, scheme_named, why_refused
from partfile.filesystems.shown_urls import check_no_secret, shown_url

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
            raise ConfigError(f"{shown_url(url)} is no URL of one file system", hint="Write scheme://place/path.")
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
                hint="The base is a plain path, file://, hdfs://, s3:// or what fsspec can write to.",
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
        """What tells one kind of file system from another, however its scheme is written."""
        return f"{canonical(self.scheme)}://"


def is_of_fsspec(url: str) -> bool:
    """Whether a URL names a file system that fsspec knows, or refuses, and that has no store of its own."""
    scheme, separator, _ = url.partition(":")
    scheme = scheme.lower()
    if not separator or scheme in _ELSEWHERE:
        return False
    return is_listed(scheme) or scheme in known_implementations or scheme in registry


def _checked(url: str, path: str, *, is_absolute: bool) -> str:
    if is_absolute and not path.startswith("/"):
        raise ConfigError(f"{shown_url(url)} is a relative file URL", hint=f"Write {_DIRECTORY}/absolute/path.")
    inner = path.strip("/")
    if inner and {"", ".", ".."} & set(inner.split("/")):
        raise ConfigError(f"{shown_url(url)} has an empty segment, '.' or '..' in its path")
    if set(path) & set("?#*["):
        raise ConfigError(
            f"{shown_url(url)} has one of ?, #, * and [ in its path", hint="Some file systems do not take them."
        )
    return f"/{inner}" if is_absolute else inner
