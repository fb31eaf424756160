"""The local store keeps the contract of the ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import Recorder, intercept
from partfile.testing.store import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.stores.base import Store


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
