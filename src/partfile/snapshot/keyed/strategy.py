"""The snapshot of keyed state: a view at the synchronous part, its canonical files at the asynchronous one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from partfile.errors import ConfigError
from partfile.snapshot.keyed.backend import KeyedStateBackend
from partfile.snapshot.keyed.pieces import DEFAULT_PIECE_BYTES, check_piece_bytes, keep_in_pieces
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.strategy import (
    EMPTY,
    SnapshotResult,
    abort_copies_with,
    discard_logged,
    open_result_stream,
    writing,
)
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.keyed_file import KeyedSnapshotResources
    from partfile.snapshot.strategy import CloseableRegistry, SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


class KeyedStateStrategy:
    """Full snapshots of keyed state, in canonical files whether they are checkpoints or savepoints.

    Source: Flink's ``HeapSnapshotStrategy`` and ``SavepointSnapshotStrategy``, as of 1.20.

    Args:
        backend: The live state.
        local: Where copies on this machine go, for a faster restore; None keeps none.
        piece_bytes: State of a subtask that is larger is written in several files of about this size, in bytes. So
            much is in memory beside the state when they are written, about twice.

    Raises:
        ConfigError: ``piece_bytes`` is not from 1 to less than 255 MiB, or an argument is of another kind.
    """

    def __init__(
        self, backend: KeyedStateBackend, local: LocalStateStore | None = None, piece_bytes: int = DEFAULT_PIECE_BYTES
    ) -> None:
        if not isinstance(backend, KeyedStateBackend):
            raise ConfigError(
                f"{backend!r} is no backend of keyed state",
                hint="Write for instance KeyedStateStrategy(HeapBackend(KeyCodec('string'), groups, 128)).",
            )
        self._backend = backend
        self._local = check_local(local)
        self._piece_bytes = check_piece_bytes(piece_bytes)

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
        """Return what encodes the view and writes it to streams of exclusive scope, one after the other."""
        return writing_keyed_state(
            resources, self._piece_bytes, KeyedStateWriter(checkpoint_id, streams, options, self._local)
        )


def check_local(local: LocalStateStore | None) -> LocalStateStore | None:
    """Return where copies go; raises ConfigError if it is no such place."""
    given: object = local
    if given is not None and not isinstance(given, LocalStateStore):
        raise ConfigError(
            f"local={local!r:.50} is no place for copies",
            hint="Write local=LocalStateStore(LocalStore('/data/local-state'), 'subtask-0').",
        )
    return local


def writing_keyed_state(resources: KeyedSnapshotResources, piece_bytes: int, writer: KeyedStateWriter) -> Supplier:
    """What writes a view as canonical files; nothing is written where there is no state.

    Args:
        resources: The view.
        piece_bytes: The most bytes of rows of one file.
        writer: Writes the files.
    """
    if not resources.infos:
        return lambda _registry: EMPTY
    return lambda registry: writer.write(resources, piece_bytes, registry)


class KeyedStateWriter:
    """Writes the files of one snapshot; where it fails or is cancelled, all that it has written are deleted.

    Args:
        checkpoint_id: The checkpoint.
        streams: Opens the streams.
        options: What the snapshot is for.
        local: Where copies on this machine go; None keeps none.
    """

    def __init__(
        self,
        checkpoint_id: int,
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
        local: LocalStateStore | None = None,
    ) -> None:
        self._checkpoint_id = checkpoint_id
        self._streams = streams
        self._options = options
        self._local = local
        self._written: list[SnapshotResult] = []

    def write(self, resources: KeyedSnapshotResources, piece_bytes: int, registry: CloseableRegistry) -> SnapshotResult:
        """Write a view; returns its handle, and those of the files that this one names."""
        try:
            keep_in_pieces(resources, piece_bytes, lambda data: self._keep(data, registry))
        except BaseException:
            self._discard()
            raise
        abort_copies_with(registry, self._local, self._checkpoint_id)
        *pieces, last = self._written
        return SnapshotResult(last.primary, last.local, tuple(one.primary for one in pieces if one.primary is not None))

    def _keep(self, data: bytes, registry: CloseableRegistry) -> StateHandle:
        kept = writing(
            lambda: data,
            lambda: open_result_stream(self._streams, Scope.EXCLUSIVE, self._checkpoint_id, self._options, self._local),
        )(registry)
        self._written.append(kept)
        # No file is empty, so there is one.
        return cast("StateHandle", kept.primary)

    def _discard(self) -> None:
        for one in self._written:
            if one.primary is not None:
                discard_logged(self._streams, one.primary)
        if self._local is not None and self._written:
            self._local.abort(self._checkpoint_id)
