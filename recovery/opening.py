"""From the URL of a base path to the fsspec file system that reads it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import fsspec
from fsspec.core import split_protocol

from partfile.filesystems.errors import ConfigError
from partfile.filesystems.hdfs_options import HdfsOptions
from partfile.filesystems.hdfs_url import HdfsUrl
from partfile.filesystems.local_encoding import check_encoding_of_names
from partfile.filesystems.local_url import local_path
from partfile.filesystems.s3_options import S3Options
from partfile.filesystems.s3_url import SCHEMES, S3Url
from partfile.filesystems.shown_urls import check_no_secret, shown_url
from partfile.recovery.local_reading import LocalReading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsspec import AbstractFileSystem

_LOCAL = {None, "file"}


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
    url = os.fspath(url)
    scheme = split_protocol(url)[0]
    if scheme in _LOCAL:
        if storage_options:
            raise ConfigError(
                f"local files take no storage_options, got {sorted(storage_options)}",
                hint="Leave storage_options out, or check the URL.",
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
            hint="Install its client (partfile[hdfs], partfile[s3], ...), and check the scheme and storage_options.",
        ) from None
    return file_system, path


def _open_hdfs(url: str, storage_options: Mapping[str, object] | None) -> tuple[AbstractFileSystem, str]:
    # Only who opens such a URL needs the package.
    if find_spec("hdfs_native") is None:
        raise ConfigError(f"{shown_url(url)} needs the package hdfs-native", hint="pip install 'partfile[hdfs]'")
    from partfile.filesystems.hdfs_reading import HdfsReading  # noqa: PLC0415

    place = HdfsUrl.of(url)
    return HdfsReading(place, HdfsOptions.of(storage_options)), place.path


def _open_s3(url: str, storage_options: Mapping[str, object] | None) -> tuple[AbstractFileSystem, str]:
    place = S3Url.of(url)
    if find_spec("s3fs") is None:
        raise ConfigError(f"{shown_url(url)} needs the package s3fs", hint="pip install 'partfile[s3]'")
    from partfile.filesystems.s3_reading import reading_client  # noqa: PLC0415 - only who reads from S3 needs it.

    return reading_client(S3Options.of(storage_options)), f"{place.bucket}/{place.prefix}".rstrip("/")
