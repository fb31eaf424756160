"""A local store for tests that repeat a schedule, or kill at each call in turn: its calls come in one order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from partfile.stores.base import Capabilities


class SingleThreadedStore(LocalStore):
    """A store that asks for no threads: whoever takes turns with others makes one call at a time."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of a local store."""
        return super().capabilities.model_copy(update={"publish_threads": 1})
