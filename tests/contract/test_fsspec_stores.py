"""The store over file systems of fsspec keeps the contract of the ports, as far as its capabilities claim it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import fsspec
import pytest
from plain_file_systems import register

from partfile.stores.fsspec.store import FsspecStore
from partfile.testing.store import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.stores.base import Store


class TestMemory(StoreContract):
    """Another process is a fork, which sees what was there when it was made."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Callable[[], Store]]:
        """All stores of one URL share what fsspec keeps for the process."""
        url = f"memory:/{tmp_path}"
        yield lambda: FsspecStore(url)
        with suppress(FileNotFoundError):
            fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)


class TestDirectory(StoreContract):
    """fsspec's DirFileSystem over its LocalFileSystem."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        """A client of its own for each store."""
        return lambda: FsspecStore(f"dir::file://{tmp_path}")


class TestUnknown(StoreContract):
    """A scheme in no table: a look, then a copy; of the capabilities next to nothing is claimed."""

    scheme = "copying"

    @pytest.fixture
    def reopen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Store]:
        """Each with a client of its own."""
        register(monkeypatch)
        return lambda: FsspecStore(f"{self.scheme}:/{tmp_path}")

    def test_nothing_is_claimed_that_is_not_known(self, store: Store) -> None:
        """Neither exclusive creation nor publishing without replacing, although a look would seem to prove both."""
        assert not store.capabilities.no_replace
        assert not store.capabilities.exclusive_create
        assert not store.capabilities.durable


class TestRenaming(TestUnknown):
    """What SFTP has: a rename that replaces."""

    scheme = "renaming"


class TestWithoutCopies(TestUnknown):
    """Where nothing can be copied, the bytes go through this process."""

    scheme = "copyless"
