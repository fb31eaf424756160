"""The S3 store keeps the contract of the ports, on a real server over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.filesystems.contract import StoreContract
from partfile.filesystems.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.filesystems.port import Store
    from partfile.filesystems.s3_options import S3Options


class TestS3Store(StoreContract):
    """Each test below a prefix of its own. S3 has no leases and no locks."""

    markers_are_locks = False

    @pytest.fixture
    def reopen(self, s3_base: str, s3_options: S3Options) -> Callable[[], Store]:
        """Each store of a process shares its one client."""
        return lambda: S3Store(s3_base, s3_options)
