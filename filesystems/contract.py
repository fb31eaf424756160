"""The contract of the ports as a pytest suite, for every store, ours or yours.

    from partfile.filesystems.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path)

Tests of what a store does not claim in its ``capabilities`` are skipped. To see the values in failed assertions, call
``pytest.register_assert_rewrite("partfile.filesystems")`` in a ``conftest.py`` before this module is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.contract_commit import CommitContract
from partfile.filesystems.contract_metadata import MetadataContract
from partfile.filesystems.contract_parts import PartContract
from partfile.filesystems.port import Capabilities

if TYPE_CHECKING:
    from partfile.filesystems.port import Store

__all__ = ["StoreContract"]


class StoreContract(PartContract, CommitContract, MetadataContract):
    """Both ports. Subclass it, name the subclass ``Test...`` and override the fixture ``reopen``."""

    def test_the_store_says_where_it_is_and_what_it_can_do(self, store: Store) -> None:
        """Messages need the base, decisions the capabilities."""
        assert store.base
        assert isinstance(store.capabilities, Capabilities)
