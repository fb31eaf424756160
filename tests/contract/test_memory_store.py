"""The store in memory keeps the metadata part of the contract."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from checkpoint_owner import Owner, held

from partfile.errors import NotApplied
from partfile.snapshot.storage import CheckpointStorage
from partfile.stores.memory import MemoryFiles, MemoryMetadataStore
from partfile.testing.store import MetadataContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from partfile.stores.base import MetadataStore, Store


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


def test_a_chain_of_checkpoints_lives_in_memory() -> None:
    """A coordinator starts, completes and subsumes; a second one goes on from its newest link."""
    files = MemoryFiles()
    first = Owner(CheckpointStorage(MemoryMetadataStore(files), "job"), retained=1)
    first.start()
    first.complete("a")
    assert first.storage.list_links() == [2]
    second = Owner(CheckpointStorage(MemoryMetadataStore(files), "job"))
    assert held(second.checkpoints.look()) == "a"
    assert second.start().generation == 2
