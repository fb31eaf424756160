"""Incremental snapshots of keyed state in RocksDB: files that a checkpoint before has are not written again.

The synchronous part writes all rows to files and links these into a directory of the snapshot. The asynchronous part
writes those that are new to ``shared/``, and the engine's lists of them to ``chk-N``. The engine never changes a file,
and gives none of its files the name of another. So the file of a name is that which an earlier snapshot has written.

The snapshot's handle is that of one document, which names all files and says what is in them. A restore reads every
file, and of its rows the key groups that the new range covers; so any backend can be restored, with any parallelism.

Source: Flink's ``RocksIncrementalSnapshotStrategy``, as of 1.20.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from partfile.errors import SnapshotCancelled, StoreError
from partfile.snapshot.documents import (
    StateHandle,
    encode_document,
)
from partfile.snapshot.keyed.backend import PLACE_BYTES
from partfile.snapshot.keyed.keyed_file import KeyedFile, KeyedSnapshotResources, encode_keyed_state
from partfile.snapshot.keyed.keys import KeyGroupRange, end_of_piece
from partfile.snapshot.keyed.rocksdb.backend import GROUP_BYTES, after
from partfile.snapshot.keyed.rocksdb.database import ANOTHER_DISK, LinkedFiles, new_directory, remove_files
from partfile.snapshot.keyed.shared_files import SCHEMA, SORTED_FILES, IncrementalDocument, NativeFile
from partfile.snapshot.strategy import EMPTY, SnapshotResult
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedView
    from partfile.snapshot.keyed.keyed_file import Pairs
    from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
    from partfile.snapshot.state_file import StateMetaInfo
    from partfile.snapshot.storage import CheckpointStorage
    from partfile.snapshot.strategy import CloseableRegistry, SnapshotOptions, Supplier
    from partfile.snapshot.streams import CheckpointStreamFactory


TRANSFER_THREADS = 4
"""So many files of a snapshot are written or read at once."""
_OF_NO_USE = ("OPTIONS-", "LOG")


class LinkedView:
    """What the synchronous part of an incremental snapshot has taken.

    Args:
        view: The rows, for a savepoint and for what the files are of.
        directory: Where the files are linked.
        known: Handles of the files that the newest complete checkpoint has, by name.
    """

    def __init__(self, view: KeyedView, directory: str, known: dict[str, StateHandle]) -> None:
        self.view = view
        self.directory = directory
        self.known = known

    def release(self) -> None:
        """Remove the links."""
        self.view.release()
        remove_files(self.directory)


class IncrementalStrategy:
    """Snapshots that write what the newest complete checkpoint has not. A savepoint is the canonical file.

    Its owner tells it which checkpoints are complete. Until then every snapshot writes all files that are newer than
    the newest one of which it was told, also those that a snapshot under way has written (RI-03).

    Args:
        backend: The live state.
    """

    def __init__(self, backend: RocksDBBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._written: dict[int, dict[str, StateHandle]] = {}
        self._known: dict[str, StateHandle] = {}

    def sync_prepare_resources(self, checkpoint_id: int) -> LinkedView:  # noqa: ARG002 - of the protocol.
        """Write the rows to files, and link them: as long as it takes to write what is in memory."""
        view = self._backend.freeze()
        try:
            directory = self._backend.database.checkpoint()
        except BaseException:
            view.release()
            raise
        with self._lock:
            return LinkedView(view, directory, self._known)

    def async_snapshot(
        self,
        resources: LinkedView,
        checkpoint_id: int,
        timestamp_ms: int,  # noqa: ARG002 - of the protocol.
        streams: CheckpointStreamFactory,
        options: SnapshotOptions,
    ) -> Supplier:
        """Return what writes the new files, and the document that names all."""
        if not resources.view.infos:
            return lambda _registry: EMPTY
        if options.is_savepoint:
            return lambda registry: _Upload(streams, registry).canonical(resources.view)

        def write(registry: CloseableRegistry) -> SnapshotResult:
            result, files = _Upload(streams, registry).incremental(resources)
            with self._lock:
                self._written[checkpoint_id] = files
            return result

        return write

    def confirm(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: snapshots from now on name its files. Idempotent."""
        with self._lock:
            written = self._written.get(checkpoint_id)
            if written is not None:
                self._known = written
            self._written = {number: files for number, files in self._written.items() if number > checkpoint_id}

    def abort(self, checkpoint_id: int) -> None:
        """A checkpoint will never be complete: no snapshot names its files. Idempotent."""
        with self._lock:
            self._written.pop(checkpoint_id, None)


class _Upload:
    """Writes the files of one snapshot; where it fails or is cancelled, what it has written is deleted.

    Args:
        streams: Keep what is written.
        registry: Says that the snapshot is cancelled.
    """

    def __init__(self, streams: CheckpointStreamFactory, registry: CloseableRegistry) -> None:
        self._streams = streams
        self._registry = registry
        self._written: list[StateHandle] = []

    def incremental(self, resources: LinkedView) -> tuple[SnapshotResult, dict[str, StateHandle]]:
        """Write what is new; return the result, and the handles of all sorted files by name."""
        try:
            return self._incremental(resources)
        except BaseException:
            self._discard()
            raise

    def canonical(self, view: KeyedView) -> SnapshotResult:
        """Write the canonical file."""
        try:
            return SnapshotResult(self._keep(encode_keyed_state(view), Scope.EXCLUSIVE))
        except BaseException:
            self._discard()
            raise

    def _incremental(self, resources: LinkedView) -> tuple[SnapshotResult, dict[str, StateHandle]]:
        view, known = resources.view, resources.known
        linked = (path.name for path in Path(resources.directory).iterdir())
        names = sorted(name for name in linked if not name.startswith(_OF_NO_USE))
        missing = [name for name in names if name not in known]
        with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
            handles = list(pool.map(lambda name: self._keep_file(Path(resources.directory, name)), missing))
        files = {name: handle for name, handle in known.items() if name in names} | dict(
            zip(missing, handles, strict=True)
        )
        carried = _CarriedRows(view)
        document = IncrementalDocument(
            key=view.key_codec.kinds,
            max_parallelism=view.max_parallelism,
            first_group=view.groups.first,
            last_group=view.groups.last,
            states=tuple(info for info in view.infos if info not in carried.infos),
            files=tuple(NativeFile(name=name, handle=files[name]) for name in names),
            carried=self._keep(encode_keyed_state(carried), Scope.EXCLUSIVE) if carried.infos else None,
        )
        others = tuple(self._written)
        primary = self._keep(encode_document(SCHEMA, document), Scope.EXCLUSIVE)
        sorted_files = {name: handle for name, handle in files.items() if name.endswith(SORTED_FILES)}
        return SnapshotResult(primary, others=others), sorted_files

    def _keep_file(self, path: Path) -> StateHandle:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"RocksDB's file {path} cannot be read: {error}", hint=ANOTHER_DISK) from error
        return self._keep(data, Scope.SHARED if path.suffix == SORTED_FILES else Scope.EXCLUSIVE)

    def _keep(self, data: bytes, scope: Scope) -> StateHandle:
        if self._registry.closed:
            raise SnapshotCancelled("the snapshot was cancelled while its files were written")
        handle = self._streams.keep(data, scope)
        self._written.append(handle)
        return handle

    def _discard(self) -> None:
        for handle in self._written:
            self._streams.discard(handle)


class _CarriedRows(KeyedSnapshotResources):
    """Of a view, the states that were restored and are not registered: no file of the engine has them."""

    def __init__(self, view: KeyedView) -> None:
        self.infos = view.carried_infos
        self.key_codec = view.key_codec
        self.groups = view.groups
        self.max_parallelism = view.max_parallelism
        self._view = view

    def rows(self, group: int) -> Iterator[tuple[int, Pairs]]:
        """The states that have rows in a key group."""
        for state_id, info in enumerate(self.infos):
            pairs = self._view.carried_rows(info.name, group)
            if pairs[0]:
                yield state_id, pairs

    def release(self) -> None:
        """The view is its owner's."""


class IncrementalFiles:
    """Keyed state in files of RocksDB, as a restore reads it. Close it when the backend has been made.

    Args:
        document: What names the files.
        storage: Of the checkpoint.
        path: Where the document came from, for messages.
        directory: Where the files are read to, on a disk of this machine; None is that for temporary files.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, or they are not those of one database.
        StoreError: A file cannot be read.
        ConfigError: The directory cannot be made.
    """

    def __init__(
        self, document: IncrementalDocument, storage: CheckpointStorage, path: str, directory: str | None = None
    ) -> None:
        self.path = path
        self.key_kinds = document.key
        self.max_parallelism = document.max_parallelism
        self.groups = KeyGroupRange(document.first_group, document.last_group)
        self._native = document.states
        self._carried = None
        if document.carried is not None:
            self._carried = KeyedFile(storage.read_bytes(document.carried), storage.shown(document.carried))
        self.infos = document.states + (() if self._carried is None else self._carried.infos)
        """Name, kind and codecs of each state."""
        read_to = new_directory(directory)
        try:
            with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
                list(pool.map(lambda file: self._fetch(storage, file, read_to), document.files))
            self._files = LinkedFiles(read_to, path)
        except BaseException:
            remove_files(read_to)
            raise

    def rows(self, group: int) -> Iterator[tuple[str, Pairs]]:
        """The states that have rows in a key group: name, rows and values, encoded as in the canonical file.

        Values that have expired are among them, with their times.

        Raises:
            SnapshotCorrupt: A row is none of keyed state.
            StoreError: The engine cannot read a row.
        """
        for info in self._native:
            pairs = self._elements(info, group) if info.options["kind"] == "list" else self._cells(info, group)
            if pairs[0]:
                yield info.name, pairs
        if self._carried is not None:
            yield from self._carried.rows(group)

    def close(self) -> None:
        """Close the files and remove them; may be called twice."""
        self._files.close()

    @staticmethod
    def _fetch(storage: CheckpointStorage, file: NativeFile, directory: str) -> None:
        data = storage.read_bytes(file.handle)
        try:
            Path(directory, file.name).write_bytes(data)
        except OSError as error:
            raise StoreError(
                f"state file {storage.shown(file.handle)} cannot be written to {directory}: {error}",
                hint="Name a directory on a disk that has room: read_keyed_files(..., directory='/var/tmp')",
            ) from error

    def _all(self, info: StateMetaInfo, group: int) -> Iterator[tuple[bytes, bytes]]:
        head = group.to_bytes(GROUP_BYTES, "big")
        return ((key[GROUP_BYTES:], data) for key, data in self._files.between(info.name, head, after(head)))

    def _cells(self, info: StateMetaInfo, group: int) -> Pairs:
        rows: list[bytes] = []
        values: list[bytes] = []
        for row, data in self._all(info, group):
            rows.append(row)
            values.append(data)
        return rows, values

    def _elements(self, info: StateMetaInfo, group: int) -> Pairs:
        """The elements of lists, numbered anew, without the rows in front of the lists."""
        rows: list[bytes] = []
        values: list[bytes] = []
        place = 0
        for row, data in self._all(info, group):
            end = end_of_piece(row, end_of_piece(row, 0)[1])[1]
            if end == len(row):
                place = 0
                continue
            rows.append(row[:end] + place.to_bytes(PLACE_BYTES, "big"))
            values.append(data)
            place += 1
        return rows, values
