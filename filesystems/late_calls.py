"""A fault of networks: a request that was given up is done all the same, after others that were sent later."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.faults import Numbered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from partfile.filesystems.faults import Call


class LateAt(Numbered):
    """Fails one call, which is done all the same, but later: a request that was given up and was still on its way.

    Args:
        n: The call, counted from 1.
        error: What it raises.
        gap: Before how many calls after that one it is done, at least 1.
        only: The methods that count for ``n``; every call counts for ``gap``.
    """

    def __init__(self, n: int, error: Exception, *, gap: int, only: Collection[str] | None = None) -> None:
        super().__init__(only)
        self._n = n
        self._error = error
        self._left = gap
        self._late: Callable[[], object] | None = None

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Fail the call if it is its turn, and do it once its time has come."""
        if self.number(call) == self._n:
            self._late = proceed
            raise self._error
        self._left -= self._late is not None
        if self._late is not None and self._left == 0:
            # Nobody hears what comes of it.
            with suppress(Exception):
                self._late()
        return proceed()
