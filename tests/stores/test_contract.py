"""The store contract on stores that need no server: memory, local disk, fsspec."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import fsspec
import pytest

from partfile.errors import NotApplied
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.fsspec.store import FsspecStore
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryFiles, MemoryMetadataStore
from partfile.testing.faults import Recorder, intercept
from partfile.testing.store import MetadataContract, StoreContract
from support.files.fsspec_stores import register
from support.state.checkpoint_owner import Owner, held

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from partfile.stores.base import MetadataStore, Store


# The store in memory keeps the metadata part of the contract.


class TestMemoryStore(MetadataContract):
    """Stores that share files; another store of this process stands for another process."""

    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        """Each store holds markers of its own."""
        files = MemoryFiles()
        return lambda: cast("Store", MemoryMetadataStore(files))

    @pytest.fixture
    def elsewhere(self, reopen: Callable[[], Store]) -> Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]:
        """Work on a store that is closed with the block."""

        @contextmanager
        def work_elsewhere(work: Callable[[Store], Any]) -> Iterator[Any]:
            with reopen() as other:
                yield work(other)

        return work_elsewhere


def test_a_file_is_no_directory() -> None:
    """As on a file system, nothing is created below a file or in place of a directory."""
    store: MetadataStore = MemoryMetadataStore()
    store.create_file("a/b", b"")
    for path in ("a/b/c", "a"):
        with pytest.raises(NotApplied):
            store.create_file(path, b"")
    assert store.list_names("a") == ["b"]


def test_a_checkpoint_log_lives_in_memory() -> None:
    """A coordinator starts, completes and subsumes; a second one goes on from its newest checkpoint."""
    files = MemoryFiles()
    first = Owner(CheckpointStorage(MemoryMetadataStore(files), "job"), retained=1)
    first.start()
    first.complete("a")
    assert first.storage.list_completed_ids() == [2]
    second = Owner(CheckpointStorage(MemoryMetadataStore(files), "job"))
    assert held(second.checkpoints.look()) == "a"
    assert second.start().epoch == 2


# The local store keeps the contract of the ports.


class TestLocalStore(StoreContract):
    """On the file system of pytest's temporary directory."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        """Each store has descriptors, and so locks, of its own."""
        return lambda: LocalStore(str(tmp_path / "base"))


def test_listing_does_not_walk_the_state(tmp_path: Path) -> None:
    """The cost of a listing does not grow with the checkpoints."""
    recorder = Recorder({"open_directory"})
    with LocalStore(str(tmp_path), calls=intercept(PosixCalls(), recorder)) as store:
        store.create_file("_partfile/uid/chk-1/_metadata", b"")
        before = recorder.count
        assert list(store.list()) == []
        assert list(store.list("_partfile/uid")) == []
        assert {call.arguments[1] for call in recorder.calls[before:]} <= {"_partfile", "uid"}
        assert recorder.count <= before + 2


# The store over file systems of fsspec keeps the contract of the ports, as far as its capabilities claim it.


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
