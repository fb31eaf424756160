"""Deletes the acknowledged state of a checkpoint that will never need it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from partfile.filesystems.errors import PartfileError
from partfile.snapshot.layout import checkpoint_directory
from partfile.snapshot.model import FileHandle

if TYPE_CHECKING:
    from partfile.snapshot.model import StateHandle
    from partfile.snapshot.storage import CheckpointStorage

logger = logging.getLogger("partfile")


def discard(storage: CheckpointStorage, checkpoint_id: int, handle: StateHandle | None) -> bool:
    """Delete a state file, unless it is shared or the link of its checkpoint names it.

    Only that link can name it (S11), and links never change. A failure is logged: what stays goes with its directory.

    Returns:
        Whether it was deleted.
    """
    if not isinstance(handle, FileHandle) or not handle.path.startswith(f"{checkpoint_directory(checkpoint_id)}/"):
        return False
    try:
        link = storage.read_link(checkpoint_id)
        if link is not None and handle in link.handles():
            return False
        storage.store.delete_file(storage.path(handle.path))
    except PartfileError as error:
        logger.warning("state file %s of checkpoint %d stays for now: %s", handle.path, checkpoint_id, error)
        return False
    return True
