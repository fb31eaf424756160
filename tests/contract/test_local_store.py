"""The local store keeps the contract of the ports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.contract import StoreContract
from partfile.filesystems.local import LocalStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.filesystems.port import Store


class TestLocalStore(StoreContract):
    """On the file system of pytest's temporary directory."""

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Callable[[], Store]:
        """Each store has descriptors, and so locks, of its own."""
        return lambda: LocalStore(str(tmp_path / "base"))
