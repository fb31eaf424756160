"""The snapshot of keyed state: a view at the synchronous part, its canonical file at the asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.snapshot.keyed.keyed_file import encode_keyed_state
from partfile.snapshot.strategy import EMPTY, open_result_stream, writing
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.strategy import SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


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

    def sync_prepare_resources(self, options: SnapshotOptions) -> KeyedSnapshotResources:  # noqa: ARG002 - of the protocol.
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
        return writing_keyed_state(resources, checkpoint_id, streams, options, self._local)


def writing_keyed_state(
    resources: KeyedSnapshotResources,
    checkpoint_id: int,
    streams: CheckpointStreamFactory,
    options: SnapshotOptions,
    local: LocalStateStore | None = None,
) -> Supplier:
    """What writes a view as the canonical file, to one stream of exclusive scope.

    Args:
        resources: The view.
        checkpoint_id: The checkpoint.
        streams: Opens the stream.
        options: What the snapshot is for.
        local: Where copies on this machine go; None keeps none.
    """
    if not resources.infos:
        return lambda _registry: EMPTY
    return writing(
        lambda: encode_keyed_state(resources),
        lambda: open_result_stream(streams, Scope.EXCLUSIVE, checkpoint_id, options, local),
    )
