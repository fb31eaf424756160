"""No way to hand over a URL shows a secret that is in it, however it is written there."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import fsspec
import pytest
from fsspec import AbstractFileSystem

import partfile as pf
from partfile.errors import ConfigError
from partfile.stores.registry import check_url, open_store
from partfile.stores.urls import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable


NO_SPARK: Any = None
ENTRIES: dict[str, Callable[[str], object]] = {
    "FileSink": lambda url: pf.FileSink(url, uid="u", format="text"),
    "checkpoints": lambda url: pf.FileSink("/base", uid="u", format="text", checkpoint_dir=url),
    "read": pf.read,
    "list_savepoints": pf.list_savepoints,
    "valid_length_filesystem": pf.valid_length_filesystem,
    "read_spark": lambda url: pf.read_spark(NO_SPARK, url, format="text"),
    "open_store": open_store,
}
CARRIERS = [
    "sftp://user:SECRET@host/x",
    "sftp://user:SECRET@host",
    "sftp://user:a/SECRET@host/x",
    "sftp://user:SECRET/a@host/x",
    "sftp://user:a@SECRET@host/x",
    "sftp://user:a?SECRET@host/x",
    "sftp://user:SECRET?a@host/x",
    "sftp://user%3ASECRET@host/x",
    "sftp://user%3aSECRET%40host/x",
    "sftp:user:SECRET@host",
    "SFTP://user:SECRET@host/a/../b",
    "simplecache::sftp://user:SECRET@host/x",
    "nosuch://user:SECRET@host/x",
    "https://user:SECRET@host/x",
    "https://host/x?token=SECRET",
    "abfs://c@a.dfs.core.windows.net/x?sig=SECRET",
    "abfs://c@a.dfs.core.windows.net/x?sig=SECRET@a",
    "gs://bucket/x?X-Goog-Signature=a@SECRET",
    "dir://user:SECRET@host/x",
    "s3://key:SECRET@bucket/x",
    "s3://key:a/SECRET@bucket/x",
    "s3:key:SECRET@bucket",
    "hdfs://user:SECRET@host/x",
    "hdfs://user:SECRET/a@host/x",
    "hdfs:user:SECRET@host",
    "file://user:SECRET@host/x",
    "file:x?SECRET",
]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("url", CARRIERS)
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str, entry: str) -> None:
    """Neither in the error nor in what caused it: both are in logs."""
    with pytest.raises(ConfigError) as raised:
        ENTRIES[entry](url)
    assert "SECRET" not in "".join(traceback.format_exception(raised.value)) + repr(raised.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("gs://bucket/x", "gs://bucket/x"),
        ("abfs://c@a.net/x", "...@a.net/x"),
        ("gs://bucket/x?sig=a", "gs://bucket/x?..."),
        ("sftp://u:a@b@host/x?y", "...@host/x?..."),
        ("sftp://u:a?b@host/x", "..."),
        ("/data/a@b?c", "/data/a@b?c"),
    ],
)
def test_what_is_shown_tells_which_url_is_meant(url: str, shown: str) -> None:
    """The rest of it, and a plain path as it is."""
    assert shown_url(url) == repr(shown)


@pytest.mark.parametrize("url", ["abfs://container@account.net:443/x:y", "sftp://user@host:22/x", "memory://a/b:c"])
def test_a_user_or_a_container_before_an_at_is_no_secret(url: str) -> None:
    """Ports and paths may have colons."""
    check_url(url)


def test_what_a_client_says_of_its_options_is_not_shown() -> None:
    """It may repeat them."""

    class Repeating(AbstractFileSystem):  # type: ignore[misc]
        protocol = "repeating"

        def __init__(self, **options: object) -> None:
            raise ValueError(options)

    fsspec.register_implementation("repeating", Repeating, clobber=True)
    with pytest.raises(ConfigError, match=r"repeating://host/x.*ValueError") as raised:
        pf.read("repeating://host/x", storage_options={"token": "hunter2".upper()})
    assert "HUNTER2" not in "".join(traceback.format_exception(raised.value))
