"""The S3 store in front of a test server or proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from partfile.errors import NotApplied
from partfile.stores.s3.options import S3Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partfile.stores.s3.store import S3Store


class Place(Protocol):
    """A server, or a proxy in front of one."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """What s3fs needs to get there."""


def store_options(place: Place, **more: object) -> dict[str, object]:
    """``storage_options`` of a sink, from what s3fs itself needs."""
    given = place.storage_options
    return {
        "endpoint_url": given["endpoint_url"],
        "key": given["key"],
        "secret": given["secret"],
        "region": given["client_kwargs"]["region_name"],
        "path_style": True,
        **more,
    }


def options_of(place: Place, **more: object) -> S3Options:
    """The same, checked."""
    return S3Options.of(store_options(place, **more))


def warm_up(store: S3Store) -> None:
    """Make the client, which takes longer than a short call may where others work."""
    while True:
        try:
            store.file_exists("anything")
        except NotApplied:
            continue
        return
