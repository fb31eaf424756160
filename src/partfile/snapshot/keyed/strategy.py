"""The snapshot of keyed state: a view at the synchronous part, its canonical file at the asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.snapshot.keyed.keyed_file import encode_keyed_state
from partfile.snapshot.strategy import EMPTY, open_result_stream, writing
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
    from partfile.snapshot.strategy import LocalCopies, SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


class KeyedStateStrategy:
    """Full snapshots of keyed state, in the canonical file whether they are checkpoints or savepoints.

    Source: Flink's ``HeapSnapshotStrategy`` and ``SavepointSnapshotStrategy``, as of 1.20.

    Args:
        backend: The live state.
        local: Where copies on this machine go, for a faster restore; None keeps none.
    """

    def __init__(self, backend: KeyedStateBackend, local: LocalCopies | None = None) -> None:
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
