"""What every open part knows of itself: which process opened it, and whether it may still be used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from partfile.filesystems.errors import AlreadyExists, NotApplied
from partfile.filesystems.part_errors import part_lost, part_of_another_process

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle


def check_new(handle: PartHandle) -> None:
    """Refuse to create a part that has been created already. Asks nothing of storage.

    Raises:
        AlreadyExists, NotApplied: Its handle says so.
    """
    path = handle.path_of(handle.in_progress)
    if handle.staging:
        raise AlreadyExists(f"part {path!r} has been created already", path=path)
    if handle.valid_length:
        raise NotApplied(f"a new part cannot have {handle.valid_length} valid bytes", path=path)


class OpenStream:
    """Base of the open parts of every store. Holds no resource.

    Args:
        path: Of the part, for messages.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._is_closed = False
        self._failure = ""
        """Why the part is lost to this process; empty while it is not."""

    @property
    def _is_ours_to_close(self) -> bool:
        """Whether there is something to release: a forked child leaves that to its parent."""
        return not self._is_closed and os.getpid() == self._process

    def _check_usable(self) -> None:
        """Refuse use by another process, after a failure, and after the end.

        Raises:
            PartfileError: The part was carried over a fork.
            NotApplied: It has failed before, or is closed.
        """
        if os.getpid() != self._process:
            raise part_of_another_process(self._path, self._process, os.getpid())
        if self._failure:
            raise part_lost(self._path, self._failure)
        if self._is_closed:
            raise NotApplied(f"part {self._path!r} is closed", path=self._path)
