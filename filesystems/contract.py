"""The contract of the ports as a pytest suite, for every store, ours or yours.

    from partfile.filesystems.contract import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path)

A store of metadata files alone passes ``MetadataContract``. Tests of what a store does not claim in its
``capabilities`` are skipped. To see the values in failed assertions, call
``pytest.register_assert_rewrite("partfile.filesystems")`` in a ``conftest.py`` before this module is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.capabilities import Capabilities
from partfile.filesystems.contract_claims import ClaimContract
from partfile.filesystems.contract_cleaning import CleaningContract
from partfile.filesystems.contract_commit import CommitContract
from partfile.filesystems.contract_metadata import ForkedMarkerContract, MetadataContract
from partfile.filesystems.contract_parts import PartContract
from partfile.filesystems.contract_stages import StageContract
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from partfile.filesystems.port import Store

__all__ = ["MetadataContract", "StoreContract"]


class StoreContract(
    PartContract,
    ClaimContract,
    CommitContract,
    StageContract,
    CleaningContract,
    MetadataContract,
    ForkedMarkerContract,
):
    """Both ports. Subclass it, name the subclass ``Test...`` and override the fixture ``reopen``."""

    def test_the_store_says_where_it_is_and_what_it_can_do(self, store: Store) -> None:
        """Messages need the base, decisions the capabilities."""
        assert store.base
        assert isinstance(store.capabilities, Capabilities)

    @pytest.mark.parametrize("path", ["..", "../x", "/etc/x", "a//b", "a/../b", "a\x00b", "x" * 256])
    def test_directories_that_leave_the_base_are_not_listed(self, store: Store, path: str) -> None:
        """The listing of parts checks what it is given, as every verb does."""
        with pytest.raises(ConfigError):
            list(store.list(path))
