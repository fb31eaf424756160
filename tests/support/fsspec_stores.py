"""Stores over fsspec whose calls a test watches, fails or replaces."""

from __future__ import annotations

from typing import Any

from partfile.stores.fsspec.client import FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl
from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.faults import intercept

DATA, OTHER = b"valid bytes", b"other bytes"


def intercepted(url: str, interceptor: Any) -> FsspecStore:
    """A store whose calls go through an interceptor."""
    return FsspecStore(url, calls=intercept(FsspecCalls(FsspecUrl.of(url), {}), interceptor))


def store_with(calls: type[FsspecCalls], url: str) -> FsspecStore:
    """A store with calls of another class."""
    return FsspecStore(url, calls=calls(FsspecUrl.of(url), {}))
