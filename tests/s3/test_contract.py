"""The S3 store keeps the contract of the ports, on real servers over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.stores.s3 import store
from partfile.stores.s3.store import S3Store
from partfile.testing.store import StoreContract

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Store
    from partfile.stores.s3.options import S3Options
    from support.s3.server import S3Server


class TestS3Store(StoreContract):
    """Each test below a base of its own. S3 has no leases and no locks."""

    @pytest.fixture(autouse=True)
    def _short_grace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Moto answers 500 to the completion of an upload that is gone, and a store takes that for a broken server."""
        monkeypatch.setattr(store, "_BROKEN_FOR_S", 1.0)

    @pytest.fixture
    def reopen(self, s3_base: str, s3_options: S3Options) -> Callable[[], Store]:
        """Each store of a process shares its one client."""
        return lambda: S3Store(s3_base, s3_options)


@pytest.mark.parametrize("verb", ["append", "no_replace", "exclusive_create"])
def test_what_is_claimed_is_what_the_server_does(
    s3_server: S3Server, s3_base: str, s3_options: S3Options, verb: str
) -> None:
    """Capabilities are found out by trying: each server of the tests honours other preconditions."""
    expected = {
        "moto": {"append": True, "no_replace": True, "exclusive_create": True},
        "radosgw": {"append": True, "no_replace": False, "exclusive_create": True},
        "rclone": {"append": False, "no_replace": False, "exclusive_create": False},
    }
    with S3Store(s3_base, s3_options) as found:
        assert getattr(found.capabilities, verb) is expected[s3_server.name][verb]
