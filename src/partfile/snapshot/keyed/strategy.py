"""The snapshot of keyed state: a view at the synchronous part, its canonical file at the asynchronous one.

A restore reads the files back, from copies on this machine where it has them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, NamedTuple

from partfile.errors import SnapshotError
from partfile.snapshot.keyed.keyed_file import KeyedFile, encode_keyed_state
from partfile.snapshot.strategy import EMPTY, open_result_stream, writing
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.snapshot.strategy import SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


logger = logging.getLogger("partfile")


class KeyedStateStrategy:
    """Full snapshots of keyed state, in the canonical file whether they are checkpoints or savepoints.

    Source: Flink's ``HeapSnapshotStrategy`` and ``SavepointSnapshotStrategy``, as of 1.20.

    Args:
        backend: The live state.
        local: Where copies on this machine go, for a faster restore; None keeps none.
    """

    def __init__(self, backend: KeyedStateBackend, local: LocalStateStore | None = None) -> None:
        self._backend = backend
        self._local = local

    def sync_prepare_resources(self, checkpoint_id: int) -> KeyedSnapshotResources:  # noqa: ARG002 - of the protocol.
        """Take a view of all rows; nothing is copied or encoded."""
        return self._backend.freeze()

    def async_snapshot(
        self,
        resources: KeyedSnapshotResources,
        checkpoint_id: int,
        timestamp_ms: int,  # noqa: ARG002 - of the protocol.
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return what encodes the view and writes it to one stream of exclusive scope."""
        if not resources.infos:
            return lambda _registry: EMPTY
        return writing(
            lambda: encode_keyed_state(resources),
            lambda: open_result_stream(streams, Scope.EXCLUSIVE, checkpoint_id, options, self._local),
        )


class RestoredFile(NamedTuple):
    """A file of keyed state, and from where it was read."""

    file: KeyedFile
    source: Literal["local", "primary"]
    """local: a copy on this machine. primary: the checkpoint's storage, or its metadata."""


def read_keyed_files(
    storage: CheckpointStorage, handles: Iterable[StateHandle], local: LocalStateStore | None = None
) -> list[RestoredFile]:
    """Read files of keyed state, each from its copy on this machine if that is whole.

    Args:
        storage: Of the checkpoint.
        handles: What the checkpoint names.
        local: The copies; None has none.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, and there is no copy of it.
        SnapshotVersionError: It was written in another format version.
        StoreError: It cannot be read.
    """
    return [_read_keyed_file(storage, handle, local) for handle in handles]


def _read_keyed_file(storage: CheckpointStorage, handle: StateHandle, local: LocalStateStore | None) -> RestoredFile:
    shown = storage.shown(handle)
    copy = None if local is None else local.read(handle)
    if copy is not None:
        try:
            restored = RestoredFile(KeyedFile(copy, f"the local copy of {shown}"), "local")
        except SnapshotError as error:
            logger.warning("the local copy of state file %s is not used: %s", shown, error)
        else:
            logger.info("keyed state is restored from the local copy of %s", shown)
            return restored
    file = KeyedFile(storage.read_bytes(handle), shown)
    logger.info("keyed state is restored from %s", shown)
    return RestoredFile(file, "primary")
