"""What botocore knows of S3, read once by a process of tests instead of by each of its clients."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from botocore.loaders import JSONFileLoader

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def read_once() -> Iterator[None]:
    """Let all clients share what the first one has read, as those of one session of botocore's do.

    It is a megabyte of JSON. Most clients here are made in a forked process that makes one, and most of the time that
    this takes is reading.
    """
    really = JSONFileLoader.load_file

    @cache
    def read(path: str) -> Any:
        return really(JSONFileLoader(), path)

    with patch.object(JSONFileLoader, "load_file", lambda _loader, path: read(path)):
        yield
