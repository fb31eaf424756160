"""Where files go that are taken away without being deleted. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from partfile.filesystems.port import STATE_DIRECTORY
from partfile.filesystems.tokens import new_token

QUARANTINE = "_quarantine"
"""Below the state directory. No uid begins with ``_``."""


def new_run(now_ms: int) -> str:
    """A name that no other run has, beginning with when it was.

    Args:
        now_ms: Now by the store's clock, in milliseconds since the epoch.
    """
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%SZ}-{new_token()}"


def place_of(path: str, run: str, *, below_base: bool = True) -> str:
    """The directory that takes a file in a run.

    Args:
        path: Of the file, relative to its store.
        run: See ``new_run``.
        below_base: Whether the store is that of the base, or else that of the checkpoints.
    """
    top = f"{STATE_DIRECTORY}/{QUARANTINE}/{run}" if below_base else f"{QUARANTINE}/{run}"
    parent = path.rpartition("/")[0]
    return f"{top}/{parent}" if parent else top
