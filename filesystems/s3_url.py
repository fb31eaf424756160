"""URLs of S3: a bucket and a prefix in it, taken literally."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.shown_urls import shown_url

SCHEMES = ("s3", "s3a")
_URL = re.compile(r"s3a?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")


class S3Url(NamedTuple):
    """A place in S3."""

    bucket: str
    """The S3 bucket, which is no bucket of a bucketer."""
    prefix: str
    """Keys begin with it; without slashes at its ends; empty for the whole S3 bucket."""

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart. Its path is literal: no percent sign is decoded.

        Raises:
            ConfigError: It is not a URL of S3, or its path has an empty segment, ``.`` or ``..``.
        """
        shown = shown_url(url)
        match = _URL.fullmatch(url)
        if match is None or not _BUCKET.fullmatch(match.group(1)):
            raise ConfigError(f"{shown} names no S3 bucket", hint="Write s3://bucket/prefix; keys go elsewhere.")
        prefix = (match.group(2) or "").strip("/")
        if prefix and {"", ".", ".."} & set(prefix.split("/")):
            raise ConfigError(f"{shown} has an empty segment, '.' or '..' in its path", hint="S3 takes them literally.")
        return cls(match.group(1), prefix)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def key_of(self, path: str) -> str:
        """The key of a path that is relative to this place; a path that is empty or ends in a slash is a prefix."""
        return f"{self.prefix}/{path}" if self.prefix else path
