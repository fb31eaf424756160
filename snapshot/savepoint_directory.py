"""Savepoints by their location, for those who take and keep them: list, show, dispose of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.opening import open_store
from partfile.snapshot.pointers import pointer_to
from partfile.snapshot.savepoints import delete_savepoint, read_savepoint, savepoints_in

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from partfile.snapshot.savepoint_model import SavepointMetadata
    from partfile.snapshot.savepoints import FoundSavepoint


def list_savepoints(
    directory: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> list[FoundSavepoint]:
    """Every savepoint in a directory, by name; of those that are unfinished or damaged the problem is told.

    Raises:
        StoreError: The directory is not there, or cannot be read.
    """
    with open_store(str(directory), storage_options, create_base=False) as store:
        return savepoints_in(store)


def show_savepoint(
    location: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None
) -> SavepointMetadata:
    """What a savepoint says of itself: job, checkpoint, time, operators.

    Args:
        location: Its directory or the ``_metadata`` in it.
        storage_options: What the store's client needs.

    Raises:
        NotFound: There is no complete savepoint.
        SnapshotCorrupt: It cannot be read.
    """
    pointer = pointer_to(str(location))
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        return read_savepoint(store, pointer.directory)


def dispose_savepoint(location: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> None:
    """Delete a savepoint, or what a crash left of one. Idempotent.

    Raises:
        ConfigError: It is neither a savepoint nor called like one; nothing was deleted.
    """
    pointer = pointer_to(str(location))
    with open_store(pointer.parent, storage_options, create_base=False) as store:
        delete_savepoint(store, pointer.directory)
