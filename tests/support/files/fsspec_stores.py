"""File systems of fsspec of which nothing is known, and stores over them whose calls a test watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from partfile.stores.fsspec import schemes, store
from partfile.stores.fsspec.client import FsspecCalls
from partfile.stores.fsspec.schemes import FsspecUrl, Scheme, Way
from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.faults import intercept

if TYPE_CHECKING:
    import pytest


# Two file systems of which it is unknown what holds, over local files: one copies, the other renames and replaces.


class CopyingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A scheme that is in no table."""

    protocol = "copying"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """The path in a URL, or a path as it is."""
        return "/" + path.partition("://")[2].strip("/") if "://" in path else path


class RenamingFileSystem(CopyingFileSystem):
    """Like SFTP: a rename replaces, and nothing is copied."""

    protocol = "renaming"

    def mv(self, old: str, new: str) -> None:
        """Replaces what has the name."""
        Path(old).replace(new)

    def cp_file(self, *_arguments: Any, **_keywords: Any) -> None:
        """As on a server that cannot."""
        raise NotImplementedError


class CopylessFileSystem(CopyingFileSystem):
    """A scheme that is in no table, and cannot copy."""

    protocol = "copyless"

    def cp_file(self, *_arguments: Any, **_keywords: Any) -> None:
        """As on a server that cannot."""
        raise NotImplementedError


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make them known to fsspec, and the renaming one to the table. There is no wait for rivals that are not there."""
    for kind in (CopyingFileSystem, RenamingFileSystem, CopylessFileSystem):
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    known = {**schemes._KNOWN, "renaming": Scheme(Way.RENAME)}
    monkeypatch.setattr(store, "_RIVALS_ARE_DONE_AFTER_S", 0)
    monkeypatch.setattr(schemes, "_KNOWN", known)


# Stores over fsspec whose calls a test watches, fails or replaces.

DATA, OTHER = b"valid bytes", b"other bytes"


def intercepted(url: str, interceptor: Any) -> FsspecStore:
    """A store whose calls go through an interceptor."""
    return FsspecStore(url, calls=intercept(FsspecCalls(FsspecUrl.of(url), {}), interceptor))


def store_with(calls: type[FsspecCalls], url: str) -> FsspecStore:
    """A store with calls of another class."""
    return FsspecStore(url, calls=calls(FsspecUrl.of(url), {}))
