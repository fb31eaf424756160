"""URLs of HDFS: read as Hadoop reads them, and compared."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.shown_urls import shown_url

_URL = re.compile(r"hdfs:(?://([^/]*))?(/.*)?", re.IGNORECASE | re.DOTALL)
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
        shown, match = shown_url(url), _URL.fullmatch(url)
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
            raise ConfigError(f"{shown} has a segment '.' or '..' in its path", hint="Write the path without it.")
        if ":" in path:
            raise ConfigError(f"{shown} has a colon in its path, which HDFS refuses", hint="Write the path without it.")
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
